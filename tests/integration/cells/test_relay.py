"""Relayed requests of other cells' tenants: bytes, streams, errors, and clients that disconnect."""

import asyncio
import json

import pytest
import pytest_asyncio

from gateway.cells.hop import HEADER
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.cells import cell_fleet

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory):
    """Two cells of one gateway each, before a worker that both use; the last test kills a gateway."""
    async with (
        ScriptedWorker(models=["m"]) as worker,
        cell_fleet(tmp_path_factory.mktemp("relay"), [worker.url], cells={"east": 1, "west": 1}) as fleet,
    ):
        yield fleet, worker


async def test_a_tenant_is_served_by_its_cell_whichever_gateway_gets_the_request(fleet):
    fleet, worker = fleet
    east, west = fleet.gateways["east"][0], fleet.gateways["west"][0]
    theirs = fleet.tenants_of("west")[0]
    for asked in (west, east):
        async with fleet.chat(asked, theirs) as answer:
            assert answer.status == 200
            assert answer.headers["x-radixgate-cell"] == "west"
            body = await answer.read()
            assert int(answer.headers["content-length"]) == len(body)
            assert json.loads(body)["usage"]["completion_tokens"] == 4
    served = {cell: await gateways[0].metrics(fleet.http) for cell, gateways in fleet.gateways.items()}
    assert served["west"]["requests_total"] == 2
    assert served["east"].get("requests_total", 0) == 0
    assert served["east"]["cell_requests_total"] == 1

    # What its cell remembers of its requests is shown by every gateway.
    lists = []
    for asked in (west, east):
        async with fleet.http.get(f"{asked.url}/v1/requests", headers=fleet.headers(theirs)) as answer:
            assert answer.status == 200, await answer.text()
            lists.append(await answer.json())
    assert lists[0] == lists[1]
    assert len(lists[0]["data"]) == 2

    # A stream, byte by byte the same.
    streams = []
    for asked in (west, east):
        async with fleet.chat(asked, theirs, stream=True) as answer:
            assert answer.content_type == "text/event-stream"
            streams.append(await answer.read())
    assert streams[0] == streams[1]
    assert streams[0].endswith(b"data: [DONE]\n\n")

    # Whatever way the address is written, it goes to the cell and nowhere else.
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    for target in ("//v1/chat/completions?a=%2F", "http://elsewhere.invalid/v1/chat/completions"):
        reader, writer = await asyncio.open_connection(east.host, east.port)
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: radixgate\r\nauthorization: %b\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (target.encode(), fleet.headers(theirs)["Authorization"].encode(), len(body), body)
        )
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 OK"), answer
        assert b"x-radixgate-cell: west" in answer.lower()
        writer.close()

    # Every API is relayed, each in its own shape.
    for path, more in (
        ("responses", {"input": "hello", "store": False}),
        ("messages", CHAT),
        ("embeddings", {}),
    ):
        url = f"{east.url}/v1/{path}"
        body = {"model": "m", "max_tokens": 4, **more} if more else {"model": "unknown", "input": "x"}
        headers = {"x-api-key": fleet.keys[theirs].text}
        async with fleet.http.post(url, json=body, headers=headers) as answer:
            assert answer.status == (200 if more else 404), await answer.text()
            assert answer.headers["x-radixgate-cell"] == "west"
            assert answer.headers["x-request-id"].startswith("req-")

    # Errors are the cell's own, in the API's shape.
    async with fleet.chat(east, theirs, model="unknown") as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "model_not_found"
    wrong = {"Authorization": "Bearer sk-wrong"}
    async with fleet.http.post(f"{east.url}/v1/chat/completions", json={}, headers=wrong) as answer:
        assert answer.status == 401

    # A body that arrives late and in pieces goes on as it comes.
    async def pieces():
        yield b'{"model": "m", "messages": '
        await asyncio.sleep(0.1)
        yield b'[{"role": "user", "content": "' + 300_000 * b"x" + b'"}]}'

    headers = {**fleet.headers(theirs), "content-type": "application/json"}
    url = f"{east.url}/v1/chat/completions"
    async with fleet.http.post(url, data=pieces(), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
    assert len(worker.seen[-1].body["messages"][0]["content"]) == 300_000


async def test_a_client_that_leaves_ends_its_relayed_request(fleet):
    fleet, worker = fleet
    east = fleet.gateways["east"][0]
    worker.then(tokens=100_000, gap=0.05)
    async with fleet.chat(east, fleet.tenants_of("west")[0], stream=True, max_tokens=100_000) as answer:
        await answer.content.readany()
    async with asyncio.timeout(30):
        await worker.seen[-1].done.wait()
    assert worker.seen[-1].ended == "aborted"


async def test_no_client_can_choose_its_cell(fleet):
    fleet, worker = fleet
    east, theirs, seen = fleet.gateways["east"][0], fleet.tenants_of("west")[0], len(worker.seen)
    for forged in ("- 00", "127.0.0.1", "", "- " + 64 * "0"):
        headers = {**fleet.headers(theirs), HEADER: forged}
        url = f"{east.url}/v1/chat/completions"
        async with fleet.http.post(url, json={"model": "m"}, headers=headers) as answer:
            assert answer.status == 400
            assert HEADER in (await answer.json())["error"]["message"]
    assert len(worker.seen) == seen


async def test_a_broken_answer_breaks_at_the_client_too(fleet):
    fleet, worker = fleet
    east, west = fleet.gateways["east"][0], fleet.gateways["west"][0]
    theirs = fleet.tenants_of("west")[0]
    worker.then(tokens=100_000, gap=0.05)
    with pytest.raises(Exception, match=r"payload|Response|disconnected|reset"):
        async with fleet.chat(east, theirs, stream=True, max_tokens=100_000) as answer:
            await answer.content.readany()
            west.signal(9)
            await answer.read()
    # Requests are served here at once, although the other cell's lease is not over. A connection whose end has not
    # been noticed may cost one of them.
    worker.then(tokens=4, gap=0.0)
    statuses = []
    while 200 not in statuses and len(statuses) < 3:
        async with fleet.chat(east, theirs) as answer:
            statuses.append(answer.status)
            assert answer.status == 200 or answer.headers["retry-after"] == "1"
    assert statuses[-1] == 200
