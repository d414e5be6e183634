"""A client that disconnects at any moment: quota, turn and worker are free again. On the production runner."""

import asyncio
import json

import aiohttp
import pytest

from gateway.web.exchange import HttpExchange
from tests.fakes.scripted_worker import ScriptedWorker
from workers.adapters.connection_pool import ConnectionPool

SOON = 20.0
"""Far less than the answers that are left would take, and more than a busy machine stops a process for."""

LIMITS = [{"requests": 100, "per": "day"}, {"total_tokens": 100_000, "per": "day"}]


async def left(running):
    """Return the requests and tokens that remain, after all leases are settled."""
    await running.settled()
    headers = {**running.headers(), "Content-Type": "application/json"}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
    async with running.http.post(
        running.url + "/v1/chat/completions", data=body, headers=headers
    ) as response:
        await response.read()
        return tuple(
            int(response.headers[f"x-ratelimit-remaining-{kind}"]) for kind in ("requests", "tokens")
        )


async def leave(call):
    """The client's connection is closed hard, as when a process dies or a browser tab is shut."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def reading(request):
    async with request as response:
        await response.read()


def alone():
    """A client of its own, so that its connection is its own."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_byte_frees_everything(gateway, stream):
    async with ScriptedWorker() as worker, gateway(worker, limits=LIMITS, concurrency=5) as running:
        worker.then(silent=True)
        call = asyncio.create_task(reading(running.chat("hello", stream=stream)))
        await running.until(lambda: worker.seen)
        await leave(call)
        assert await running.until(lambda: running.idle) < SOON
        await asyncio.wait_for(worker.seen[0].done.wait(), SOON)
        assert worker.seen[0].ended == "aborted"


async def test_leaving_in_the_middle_of_a_stream_frees_everything_and_charges_what_came(gateway):
    async with ScriptedWorker() as worker, gateway(worker, limits=LIMITS, concurrency=5) as running:
        before = await left(running)
        worker.then(tokens=1000, gap=0.1)
        async with running.chat(stream=True, max_tokens=1000) as response:
            async for line in response.content:
                if b"w4" in line:
                    break
            response.close()
        assert await running.until(lambda: running.idle) < SOON
        await asyncio.wait_for(worker.seen[-1].done.wait(), SOON)
        assert worker.seen[-1].ended == "aborted"
        worker.then(tokens=1, gap=0.0)
        after = await left(running)
        assert before[0] - after[0] == 2
        assert 5 <= before[1] - after[1] < 200


async def test_leaving_while_a_worker_pauses_between_tokens_is_noticed_at_once(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=3, gap=60.0)
        async with running.chat(stream=True) as response:
            await response.content.readline()
            response.close()
        await asyncio.wait_for(worker.seen[0].done.wait(), SOON)
        assert worker.seen[0].ended == "aborted"


async def test_leaving_an_unstreamed_request_stops_the_worker(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=100, gap=1.0)
        call = asyncio.create_task(reading(running.chat()))
        await running.until(lambda: worker.seen)
        await leave(call)
        await asyncio.wait_for(worker.seen[0].done.wait(), SOON)
        assert worker.seen[0].ended == "aborted"


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_queued_frees_the_turn_and_the_quota(gateway, stream):
    settings = {"queueing.release_window_tokens": "1"}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=LIMITS, concurrency=5, **settings) as running,
    ):
        worker.then(silent=True)
        first = asyncio.create_task(reading(running.chat()))
        await running.until(lambda: worker.seen)
        at = running.here.gateway.services.dispatch
        waiting = asyncio.create_task(reading(running.chat("second", stream=stream)))
        await running.until(lambda: len(at.rooms.of("m")) == 1)
        assert len(at.reservations.leases) == 2
        await leave(waiting)
        assert (
            await running.until(lambda: len(at.rooms.of("m")) == 0 and len(at.reservations.leases) == 1)
            < SOON
        )
        await leave(first)
        await running.until(lambda: running.idle)
        worker.then(silent=False)
        requests, _ = await left(running)
        # The first had been sent to a worker and counts; the one that left the queue has cost nothing.
        assert requests == 98
        assert len(worker.seen) == 2


async def test_the_request_behind_one_that_leaves_gets_its_turn(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **{"queueing.release_window_tokens": "1"}) as running,
    ):
        held = asyncio.Event()
        worker.then(until=held)
        first = asyncio.create_task(reading(running.chat("first", stream=True)))
        await running.until(lambda: worker.seen)
        at = running.here.gateway.services.dispatch
        leaver = asyncio.create_task(reading(running.chat("leaver")))
        await running.until(lambda: len(at.rooms.of("m")) == 1)
        last = asyncio.create_task(reading(running.chat("last")))
        await running.until(lambda: len(at.rooms.of("m")) == 2)
        await leave(leaver)
        held.set()
        await asyncio.wait_for(asyncio.gather(first, last), 60)
        assert [seen.body["messages"][0]["content"] for seen in worker.seen] == ["first", "last"]


async def test_leaving_while_the_body_is_sent_leaves_nothing_behind(gateway):
    async with ScriptedWorker() as worker, gateway(worker, limits=LIMITS) as running:
        host, port = running.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        key = running.keys["acme"].text
        head = [
            "POST /v1/chat/completions HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {key}",
            "Content-Length: 1000",
        ]
        writer.write("\r\n".join([*head, "", '{"model"']).encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        overview = running.here.gateway.overview
        assert await running.until(lambda: overview.all.total.requests == 1) < SOON
        assert running.idle
        assert worker.seen == []


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_there_is_a_connection_to_a_worker_costs_nothing(
    gateway, records, monkeypatch, stream
):
    async with ScriptedWorker() as worker, gateway(worker, limits=LIMITS, concurrency=5) as running:
        first = await left(running)
        before = await left(running)
        connecting = asyncio.Event()

        async def never(pool):
            connecting.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(ConnectionPool, "_take", lambda pool: None)
            patched.setattr(ConnectionPool, "_open", never)
            call = asyncio.create_task(reading(running.chat("hello " * 100, stream=stream)))
            await asyncio.wait_for(connecting.wait(), 60)
            await running.until(lambda: not running.idle)
            await leave(call)
            await running.until(lambda: running.idle)
        after = await left(running)
        assert len(worker.seen) == 3
    (gone,) = [record for record in records if record.code == "client_closed"]
    assert (gone.charged, gone.spend, gone.attempts) == (None, 0, 1)
    # What is gone is what asking how much there is takes.
    assert [a - b for a, b in zip(before, after, strict=True)] == [
        a - b for a, b in zip(first, before, strict=True)
    ]


async def test_many_clients_that_leave_at_random_moments_leave_nothing_behind(gateway):
    settings = {"queueing.release_window_tokens": "40"}
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        async with gateway(one, two, limits=LIMITS, concurrency=100, **settings) as running, alone() as http:
            for worker in (one, two):
                worker.then(first_after=0.01, gap=0.005, tokens=8)
            running.http = http
            calls = [
                asyncio.create_task(reading(running.chat(f"text {n}", stream=n % 2 == 0))) for n in range(60)
            ]
            for number in range(len(calls)):
                await asyncio.sleep(0.003)
                if number % 3:
                    calls[number - number % 7].cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert await running.until(lambda: running.idle) < SOON
            for seen in one.seen + two.seen:
                await asyncio.wait_for(seen.done.wait(), SOON)


async def test_a_reader_that_stops_reading_stops_the_worker_from_sending(gateway):
    """Back-pressure through the gateway: what is not read fills sockets, and then nothing more is taken."""
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=10**6)
        async with running.chat(stream=True) as response:
            await response.content.readline()
            async with asyncio.timeout(120):
                passed = -1
                while worker.seen[0].frames != passed:
                    passed = worker.seen[0].frames
                    await asyncio.sleep(0.5)
            assert passed < 200_000
            response.close()
        await asyncio.wait_for(worker.seen[0].done.wait(), SOON)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reader_that_stops_for_good_is_a_client_that_has_left(gateway, stream):
    settings = {"requests.idle_seconds_max": "0.3", "queueing.whole_from_streams": "false"}
    async with ScriptedWorker() as worker, gateway(worker, concurrency=1, **settings) as running:
        worker.then(tokens=10**6)
        async with running.chat(stream=stream) as response:
            await running.until(lambda: worker.seen and worker.seen[0].done.is_set(), seconds=60)
            overview = running.here.gateway.overview
            await running.until(lambda: overview.all.total.requests == 1, seconds=60)
            await running.until(lambda: running.idle)
            response.close()
        worker.then(tokens=1)
        async with running.chat() as response:
            assert response.status == 200
        async with running.http.get(running.admin + "/metrics") as response:
            assert 'code="client_closed"' in await response.text()


async def test_a_reader_that_is_slow_but_reads_gets_all_of_it(gateway):
    # Longer than a busy machine stops the process, which is the worker's silence too.
    settings = {"requests.idle_seconds_max": "3"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(tokens=100, gap=0.04)
        async with running.chat(stream=True) as response:
            await asyncio.sleep(3.5)
            assert "[DONE]" in await response.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_at_the_very_first_byte_is_quiet(gateway, monkeypatch, caplog, stream):
    name = "begin" if stream else "answer"
    send = getattr(HttpExchange, name)

    async def gone(self, *args):
        self._http.transport.abort()
        await send(self, *args)

    monkeypatch.setattr(HttpExchange, name, gone)
    async with ScriptedWorker() as worker, gateway(worker) as running, alone() as running.http:
        worker.then(gap=0.2)
        with pytest.raises(aiohttp.ClientError):
            await reading(running.chat(stream=stream))
        overview = running.here.gateway.overview
        await running.until(lambda: overview.all.total.requests == 1)
        await running.settled()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
