"""`radixgate queue` and the operator page's part of it, on a gateway where somebody waits."""

import asyncio
import json

from typer.testing import CliRunner

from gateway.cli.main import app
from tests.fakes.scripted_worker import ScriptedWorker


async def run(running, *options):
    command = ["queue", "--url", running.admin, *options]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 0, result.output
    return result.output


async def test_it_says_who_waits_why_and_what_each_has_received(gateway):
    settings = {"queueing.release_window_tokens": "100"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        gate = asyncio.Event()
        worker.then(until=gate)
        first = asyncio.ensure_future(running.chat("x" * 300).__aenter__())
        await running.until(lambda: worker.seen)
        second = asyncio.ensure_future(running.chat("y" * 300, tenant="globex").__aenter__())
        rooms = running.here.gateway.services.reservations.rooms
        await running.until(lambda: len(rooms()["m"]) == 1)
        text = await run(running)
        assert "m: 1 waiting" in text
        assert "no worker has room for its prompt" in text
        (queue,) = json.loads(await run(running, "--json"))["queues"]
        (waiting,) = queue["requests"]
        assert (waiting["tenant"], waiting["class"]) == ("globex", "chat")
        assert [one["tenant"] for one in queue["tenants"]] == ["acme"]
        async with running.http.get(running.admin + "/admin/v1/overview") as answer:
            assert (await answer.json())["queue"]["queues"][0]["waiting"] == 1
        gate.set()
        for task in (first, second):
            assert (await task).status == 200
        await running.until(lambda: running.idle)
        (queue,) = json.loads(await run(running, "--json"))["queues"]
        assert {one["tenant"]: one["due"] for one in queue["tenants"]} == {"acme": 0.0, "globex": 1.0}


async def test_it_says_that_no_gateway_answers():
    result = await asyncio.to_thread(CliRunner().invoke, app, ["queue", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
