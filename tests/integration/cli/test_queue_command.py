"""`radixgate queue` and the console's part of it, on a gateway with waiting requests."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.support import deployment
from gateway.cli.support.admin_access import admin_url
from gateway.process import running_gateways
from gateway.settings.listeners import AdminSettings, ListenerTlsSettings
from gateway.settings.tree import Settings
from tests.fakes.scripted_worker import ScriptedWorker

TOKEN = "7be41c0d9a5f4e3288c6d1b0f7a9e253"


@pytest.fixture(autouse=True)
def no_other_gateways(tmp_path, monkeypatch):
    """Let the commands find no gateway that another test runs on this machine at the same time."""
    monkeypatch.setattr(running_gateways, "_directory", lambda: tmp_path / "running")


async def run(running, *options):
    command = ["queue", "--url", running.admin, *options]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 0, result.output
    return result.output


async def test_it_shows_which_tenants_wait_why_and_what_each_has_received(gateway):
    settings = {"queueing.release_window_tokens": "1"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        gate = asyncio.Event()
        worker.then(until=gate)
        first = asyncio.ensure_future(running.chat("x" * 300).__aenter__())
        await running.until(lambda: worker.seen)
        second = asyncio.ensure_future(running.chat("y" * 300, tenant="globex").__aenter__())
        rooms = running.here.gateway.services.dispatch.rooms.all
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


async def test_it_reports_that_no_gateway_answers_and_why():
    result = await asyncio.to_thread(CliRunner().invoke, app, ["queue", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "no gateway answers at http://127.0.0.1:1: Connection refused" in str(result.exception)


async def test_it_reports_that_another_server_answers():
    async with ScriptedWorker() as worker:
        address = worker.url.removeprefix("http://")
        result = await asyncio.to_thread(CliRunner().invoke, app, ["queue", "--url", address])
        assert f"{worker.url} is not the admin listener of a gateway" in str(result.exception)


def test_the_listener_of_settings_with_a_certificate_is_called_by_https():
    tls = ListenerTlsSettings(certificate="a", key="b")
    assert admin_url(Settings(admin=AdminSettings(tls=tls))) == "https://127.0.0.1:8001"


@pytest.mark.parametrize("command", [["queue"], ["route"]], ids=["queue", "route"])
async def test_a_gateway_that_is_named_by_its_url_is_not_looked_for(gateway, command, tmp_path, monkeypatch):
    def several():
        raise AssertionError("the gateways of this machine were looked for")

    monkeypatch.setattr(deployment, "running_gateways", several)
    prompt = tmp_path / "prompt.json"
    prompt.write_text('{"model": "m", "prompt": "hello"}')
    given = {"queue": [], "route": [str(prompt), "--tenant", "acme"]}[command[0]]
    database = {"database.url": f"sqlite:///{tmp_path}/t.db"}
    async with ScriptedWorker() as worker, gateway(worker, **database, **{"admin.token": TOKEN}) as running:
        arguments = [*command, *given, "--url", running.admin, "--token", TOKEN]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert result.exit_code == 0, result.output


async def two_waiting(running, other, worker):
    """One tenant waits at each gateway, while a request of a third caller holds the worker. Gives how to end it."""
    gate = asyncio.Event()
    worker.then(until=gate)
    calls = [asyncio.ensure_future(running.chat("x").__aenter__())]
    await running.until(lambda: worker.seen)
    for at, tenant in ((running, "acme"), (other, "globex")):
        calls.append(asyncio.ensure_future(at.chat("y", tenant=tenant).__aenter__()))
        await at.until(lambda at=at: len(at.here.gateway.services.dispatch.rooms.of("m")) == 1)

    async def end():
        gate.set()
        for call in calls:
            assert (await call).status == 200
        for at in (running, other):
            await at.until(lambda at=at: at.idle)

    return end


ONE_AT_A_TIME = {"queueing.release_window_tokens": "1"}


async def test_each_gateway_shows_the_queues_of_all(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **ONE_AT_A_TIME) as running,
        gateway(worker, **ONE_AT_A_TIME) as other,
    ):
        for at in (running, other):
            queue = at.here.gateway.services.dispatch.queue
            await at.until(lambda queue=queue: queue.shared)
        end = await two_waiting(running, other, worker)
        for at in (running, other):
            found = json.loads(await run(at, "--json"))
            assert (found["gateways"], len(found["answered"])) == (2, 2)
            (queue,) = found["queues"]
            assert queue["waiting"] == 2
            assert {one["tenant"] for one in queue["requests"]} == {"acme", "globex"}
        assert "2 of 2 gateways answered" in await run(other)
        await end()
        (queue,) = json.loads(await run(other, "--json"))["queues"]
        shares = {one["tenant"]: one["share"] for one in queue["tenants"]}
        assert sum(shares.values()) == pytest.approx(1.0)
        assert set(shares) == {"acme", "globex"}


async def test_a_silent_gateway_does_not_hide_the_others_requests(gateway, monkeypatch):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **ONE_AT_A_TIME) as running,
        gateway(worker, **ONE_AT_A_TIME) as other,
    ):
        queue = running.here.gateway.services.dispatch.queue
        await running.until(lambda: queue.shared)
        reports = other.here.gateway.queues._reports

        async def nothing(name):
            return None

        monkeypatch.setattr(reports, "_write_report", nothing)
        end = await two_waiting(running, other, worker)
        found = json.loads(await run(running, "--json"))
        assert (found["gateways"], len(found["answered"])) == (2, 1)
        assert [one["tenant"] for one in found["queues"][0]["requests"]] == ["acme"]
        await end()
