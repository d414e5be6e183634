"""Background responses: they outlive their client, can be followed and cancelled, and end with their gateway."""

import asyncio
import json
import time

import aiohttp
import pytest

from gateway.database.background_store import BackgroundStore, StoredEvents
from gateway.database.database import Database
from gateway.database.response_store import ResponseStore
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.files.test_files_api import with_database
from tests.integration.web.test_responses_api import events, got, post


@pytest.fixture
def gateway(gateway):
    def start(*workers, **settings):
        return gateway(*workers, **with_database(**settings))

    return start


async def begun(running, **more):
    async with post(running, background=True, **more) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def come_to(running, identity, *statuses, tenant="acme"):
    until = time.monotonic() + 60
    while True:
        status, found = await got(running, identity, tenant=tenant)
        assert status == 200
        if found["status"] in statuses:
            return found
        assert time.monotonic() < until, found
        await asyncio.sleep(0.02)


async def followed(running, identity, query="", tenant="acme"):
    url = f"{running.url}/v1/responses/{identity}?stream=true{query}"
    async with running.http.get(url, headers=running.headers(tenant)) as response:
        assert response.status == 200
        return events(await response.text())


async def test_it_is_answered_at_once_and_worked_on_meanwhile(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        held = asyncio.Event()
        worker.then(until=held)
        first = await begun(running)
        assert (first["status"], first["background"], first["output"]) == ("queued", True, [])
        await running.until(lambda: worker.seen, 60)
        assert (await got(running, first["id"]))[1]["status"] == "queued"
        async with post(running, previous_response_id=first["id"]) as response:
            refusal = (await response.json())["error"]
            assert (response.status, refusal["param"]) == (400, "previous_response_id")
        held.set()
        ended = await come_to(running, first["id"], "incomplete")
        await running.until(lambda: running.idle, 60)
        assert ended["output"][0]["content"][0]["text"] == "w0 w1 w2 w3 "
        assert ended["usage"]["total_tokens"] == 14
        assert (await got(running, first["id"], tenant="globex"))[0] == 404
        async with post(running, previous_response_id=first["id"]) as response:
            assert response.status == 200


async def test_a_client_that_leaves_ends_nothing(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        held = asyncio.Event()
        worker.then(until=held)
        async with aiohttp.ClientSession() as http:
            body = {"model": "m", "input": "hello", "background": True, "stream": True}
            url = f"{running.url}/v1/responses"
            response = await http.post(url, json=body, headers=running.headers())
            line = await response.content.readuntil(b"\n\n")
            identity = json.loads(line.split(b"data: ", 1)[1])["response"]["id"]
        held.set()
        assert (await come_to(running, identity, "incomplete"))["output"]
        assert worker.seen[0].ended == "finished"


async def test_its_stream_can_be_taken_up_from_any_event(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(gap=0.05)
        async with post(running, background=True, stream=True) as response:
            live = events(await response.text())
        identity = live[0][1]["response"]["id"]
        assert [data["sequence_number"] for _, data in live] == list(range(len(live)))
        assert [name.removeprefix("response.") for name, _ in live] == [
            *("created", "queued", "in_progress", "output_item.added", "content_part.added"),
            *["output_text.delta"] * 4,
            *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
        ]
        assert await followed(running, identity) == live
        for number in (0, 5, len(live) - 2):
            assert await followed(running, identity, f"&starting_after={number}") == live[number + 1 :]
        assert await followed(running, identity, "&starting_after=99") == []
        assert live[-1][1]["response"] == (await got(running, identity))[1]
        assert (await got(running, f"{identity}?stream=true&starting_after=x"))[0] == 400
        url = f"{running.url}/v1/responses/{identity}?stream=true"
        async with running.http.get(url, headers=running.headers("globex")) as response:
            assert response.status == 404


async def test_cancelling_aborts_it_and_stays(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(until=asyncio.Event())
        identity = (await begun(running))["id"]
        await running.until(lambda: worker.seen, 60)
        following = asyncio.create_task(followed(running, identity))
        assert (await got(running, f"{identity}/cancel", method="POST", tenant="globex"))[0] == 404
        for _ in range(2):
            status, found = await got(running, f"{identity}/cancel", method="POST")
            assert (status, found["status"]) == (200, "cancelled")
        await running.until(lambda: running.idle and worker.seen[0].ended == "aborted", 60)
        assert [name for name, _ in await following] == ["response.created", "response.queued"]
        assert (await got(running, identity))[1]["status"] == "cancelled"


async def test_one_that_is_refused_has_failed(gateway):
    limits = [{"requests": 1, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        await come_to(running, (await begun(running))["id"], "incomplete")
        failed = await come_to(running, (await begun(running))["id"], "failed")
        assert failed["error"]["code"] == "rate_limit_exceeded"
        told = await followed(running, failed["id"])
        assert told[-1][0] == "response.failed"


async def test_it_has_to_be_kept(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with post(running, background=True, store=False) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "background")


async def test_a_response_has_failed_when_its_gateway_stops_and_another_gateway_reports_it(gateway, tmp_path):
    async with ScriptedWorker() as worker:
        worker.then(until=asyncio.Event())
        async with gateway(worker) as running:
            identity = (await begun(running))["id"]
            await running.until(lambda: worker.seen, 60)
        database = Database("sqlite:///radixgate.db", tmp_path)
        stored = await ResponseStore(database, kept_seconds=60, tenant_responses_max=5).get("acme", identity)
        assert json.loads(stored.response)["status"] == "failed"
        await database.close()


async def test_a_response_has_failed_when_its_gateway_is_gone_and_is_written_no_more(gateway, tmp_path):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(until=asyncio.Event())
        identity = (await begun(running))["id"]
        await running.until(lambda: worker.seen, 60)
        database = Database("sqlite:///radixgate.db", tmp_path)
        stored = await ResponseStore(database, kept_seconds=60, tenant_responses_max=5).get("acme", identity)
        assert stored.running
        later = BackgroundStore(database, wall=lambda: time.time() + 3600)
        assert json.loads((await later.fail_if_abandoned(stored)).response)["error"]["code"] == "server_error"
        assert not await later.add(identity, StoredEvents(number=99, count=1, text=b"late\n\n"))
        # The gateway that still works on it learns that it is over.
        await running.until(lambda: worker.seen[0].ended == "aborted", 60)
        await running.until(lambda: running.idle, 60)
        assert (await got(running, identity))[1]["status"] == "failed"
        await database.close()
