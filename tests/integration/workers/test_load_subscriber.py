"""The subscriber of a load feed over real sockets: a late start, malformed messages, a restart."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.fakes.load_publisher import LoadPublisher, stat
from workers.load_reports import load_subscriber
from workers.load_reports.engine_loads import EngineLoad
from workers.load_reports.load_subscriber import LoadSource, LoadSubscriber


class Listening:
    def __init__(self, endpoint):
        self.context = zmq.asyncio.Context()
        self.subscriber = LoadSubscriber(LoadSource(endpoint=endpoint), self.context)
        self.heard = []
        self.task = asyncio.create_task(self.listen())

    async def listen(self):
        async with aclosing(self.subscriber.readings()) as readings:
            async for reading in readings:
                self.heard.append(reading)

    async def until(self, true):
        async with asyncio.timeout(60):
            while not true(self):
                assert not self.task.done(), self.task
                await asyncio.sleep(0.01)

    async def close(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.context.destroy(linger=0)


@pytest.fixture
async def listen():
    started = []

    def start(endpoint):
        started.append(Listening(endpoint))
        return started[-1]

    yield start
    for one in started:
        await one.close()


@pytest.fixture
def publisher():
    with LoadPublisher() as publisher:
        yield publisher


async def joined(publisher, listening):
    """A subscriber that has just connected misses the first load reports."""
    await publisher.until_received(lambda: listening.heard, stat(running=1))


async def test_a_reading_is_received_with_all_of_its_fields(publisher, listen):
    listening = listen(publisher.endpoint)
    told = stat(running=3, waiting=2, kv=700, waiting_uncached=90, prefilled=5000, prefill_us=2500)
    await publisher.until_received(lambda: listening.heard, told)
    heard = listening.heard[-1]
    assert heard.load == EngineLoad(streams=5, tokens_queued=90, kv_tokens=700)
    assert (heard.prefilled_tokens, heard.prefill_us) == (5000, 2500)


async def test_of_many_that_come_at_once_the_last_one_is_received_and_few_others(publisher, listen):
    listening = listen(publisher.endpoint)
    await joined(publisher, listening)
    for running in range(2, 202):
        publisher.publish(stat(running=running))
    await listening.until(lambda it: it.heard[-1].running == 201)
    assert len(listening.heard) < 20


async def test_older_engines_send_fewer_fields_and_newer_ones_may_send_more(publisher, listen):
    listening = listen(publisher.endpoint)
    await joined(publisher, listening)
    publisher.publish(["LoadStat", 7, 1, 30, 1000, 0])
    await listening.until(lambda it: it.heard[-1].running == 7)
    assert (listening.heard[-1].load.tokens_queued, listening.heard[-1].prefilled_tokens) == (0, 0)
    publisher.publish([*stat(running=8), "something new", {"a": 1}])
    await listening.until(lambda it: it.heard[-1].running == 8)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{}",
        msgspec.msgpack.encode(["Other", 1, 2, 3]),
        msgspec.msgpack.encode(stat(running=-1)),
        b"\xdc\x00\x0c" + msgspec.msgpack.encode(stat())[1:] + b"\x91" * 60_000 + b"\x00",
    ],
    ids=["empty", "no-msgpack", "no-array", "another-kind", "below-nothing", "too-deep"],
)
async def test_unreadable_readings_are_counted_and_later_ones_received(publisher, listen, payload):
    listening = listen(publisher.endpoint)
    await joined(publisher, listening)
    publisher.send(payload)
    await listening.until(lambda it: it.subscriber.unreadable == 1)
    publisher.publish(stat(running=5))
    await listening.until(lambda it: it.heard[-1].running == 5)


async def test_an_engine_that_restarts_is_received_again(publisher, listen):
    listening = listen(publisher.endpoint)
    await joined(publisher, listening)
    publisher.close()
    with LoadPublisher(publisher.port) as again:
        await again.until_received(lambda: [h for h in listening.heard if h.running == 9], stat(running=9))


async def test_a_peer_that_sent_unreadable_data_is_connected_again_after_a_silence(listen, monkeypatch):
    monkeypatch.setattr(load_subscriber, "CONNECT_SECONDS", 0.3)

    answered = asyncio.Event()

    async def babble(reader, writer):
        answered.set()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    listening = listen(f"tcp://127.0.0.1:{port}")
    await answered.wait()
    server.close()
    await server.wait_closed()
    with LoadPublisher(port) as publisher:
        await joined(publisher, listening)


async def test_what_is_no_address_is_an_error(listen):
    listening = listen("nonsense")
    with pytest.raises(OSError, match="nonsense"):
        await listening.task
