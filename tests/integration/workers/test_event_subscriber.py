"""The subscriber of KV events over real sockets: a late start, gaps, a restart, malformed messages."""

import asyncio
import gc
import os
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from unittest.mock import patch

import msgspec
import pytest
import zmq
import zmq.asyncio

from radix_cache import loop_yield
from radix_cache.events import EventBatch
from tests.stage.ports import free_ports
from workers.engine.kv.kv_events import BlockRemoved, BlockStored, Cleared
from workers.engine_server.kv_events import KvEventPublisher
from workers.kv_events.batch_order import FeedNotice
from workers.kv_events.bounded_socket import MESSAGE_BYTES_MAX
from workers.kv_events.source import EventSource
from workers.kv_events.subscriber import BURST_SECONDS, KvEventSubscriber, TooManyEvents
from workers.kv_events.wire import decode_batch


@asynccontextmanager
async def published(port=0, *, replays=True, kept=10_000):
    # An XPUB socket is a PUB socket that tells of its subscriptions.
    with patch.object(zmq, "PUB", zmq.XPUB):
        publisher = KvEventPublisher("127.0.0.1", port, page_size=2, batches_kept_max=kept)
    publisher._publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
    task = asyncio.create_task(publisher.replay()) if replays else None
    try:
        yield publisher
    finally:
        # One that stays open hangs the garbage collector.
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        publisher.close()


async def subscribed(publisher, count=1):
    """Wait for so many more subscribers: they hear what is published from now on."""
    async with asyncio.timeout(60):
        while count:
            try:
                count -= publisher._publisher.recv(zmq.NOBLOCK).startswith(b"\x01")
            except zmq.Again:
                await asyncio.sleep(0.005)


def source_of(publisher, *, replay=True):
    return EventSource(
        endpoint=f"tcp://127.0.0.1:{publisher.port}",
        replay=f"tcp://127.0.0.1:{publisher.replay_port}" if replay else None,
    )


def stored(number):
    return [BlockStored(number, None, (number, number), "")]


class Listener:
    """Takes what a subscriber hands on."""

    def __init__(self, source):
        self.context = zmq.asyncio.Context()
        self.subscriber = KvEventSubscriber(source, self.context)
        self.heard = []
        self.caught_up_after = None
        self.task = asyncio.create_task(self.listen())

    async def listen(self):
        async with aclosing(self.subscriber.batches()) as batches:
            async for item in batches:
                if item is FeedNotice.CAUGHT_UP:
                    self.caught_up_after = len(self.heard)
                else:
                    self.heard.append(item.sequence if isinstance(item, EventBatch) else item)

    async def until(self, expected):
        async with asyncio.timeout(60):
            while self.heard != expected:
                await asyncio.sleep(0.01)

    async def close(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.context.destroy(linger=0)


@pytest.fixture
async def listen():
    listeners = []

    def new(source):
        listeners.append(Listener(source))
        return listeners[-1]

    yield new
    for listener in listeners:
        await listener.close()


async def test_a_late_subscriber_receives_everything_from_the_beginning(listen):
    async with published() as publisher:
        for number in range(5):
            publisher.publish(stored(number))
        listener = listen(source_of(publisher))
        await listener.until([0, 1, 2, 3, 4])
        publisher.publish(stored(5))
        await listener.until([0, 1, 2, 3, 4, 5])


async def test_no_more_is_kept_for_replay_than_was_allowed(listen):
    async with published(kept=2) as publisher:
        for number in range(5):
            publisher.publish(stored(number))
        listener = listen(source_of(publisher))
        await listener.until([3, 4])


async def test_a_gap_is_filled_from_the_replay_and_nothing_is_received_twice(listen):
    async with published() as publisher:
        listener = listen(source_of(publisher))
        publisher.publish(stored(0))
        await listener.until([0])
        # What is kept but was never sent is what a full queue drops.
        for number in (1, 2):
            publisher._kept.append((number, publisher._kept[-1][1]))
        publisher._sequence = 3
        publisher.publish(stored(3))
        await listener.until([0, 1, 2, 3])
        assert listener.subscriber.gaps == 1


async def test_a_gap_that_cannot_be_filled_is_reported(listen):
    async with published() as publisher:
        listener = listen(source_of(publisher, replay=False))
        await subscribed(publisher)
        publisher.publish(stored(0))
        await listener.until([0])
        publisher._sequence = 5
        publisher.publish(stored(5))
        await listener.until([0, FeedNotice.LOST, 5])


async def test_a_replay_that_does_not_answer_is_not_waited_for_without_end(listen, monkeypatch):
    monkeypatch.setattr("workers.kv_events.replay.REPLAY_SECONDS_MAX", 0.2)
    async with published(replays=False) as publisher:
        listener = listen(source_of(publisher))
        await subscribed(publisher)
        publisher.publish(stored(0))
        await listener.until([0])


async def test_a_restart_of_an_engine_is_noticed(listen):
    port = free_ports(2)[0]
    async with published(port) as publisher:
        listener = listen(source_of(publisher, replay=False))
        await subscribed(publisher)
        for number in range(3):
            publisher.publish(stored(number))
        await listener.until([0, 1, 2])
    async with published(port) as publisher:
        await subscribed(publisher)
        publisher.publish(stored(0))
        await listener.until([0, 1, 2, FeedNotice.RESTARTED, 0])


async def test_nonsense_is_passed_over(listen):
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.XPUB)  # It receives subscriptions.
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    listener = listen(EventSource(endpoint=f"tcp://127.0.0.1:{port}"))
    assert await publisher.recv() == b"\x01"
    for frames in ([b"x"], [b"", b"", b"\xc1"], [b"", bytes(8), b"\x93\xcb" + bytes(8) + b"\x90\x00"]):
        await publisher.send_multipart(frames)
    await listener.until([0])
    assert listener.subscriber.unreadable == 2
    publisher.close()
    await listener.close()
    context.term()


async def test_a_publisher_that_sends_too_much_loses_its_listener(monkeypatch):
    # So little that the slowest machine sends more.
    monkeypatch.setattr("workers.kv_events.subscriber.BYTES_PER_SECOND_MAX", 1024)
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.SNDHWM, 8)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    subscriber = KvEventSubscriber(EventSource(endpoint=f"tcp://127.0.0.1:{port}"), context)
    removed = msgspec.msgpack.encode([1.0, [["BlockRemoved", list(range(2_000))]]])
    heard = 0

    async def listen():
        nonlocal heard
        async for _ in subscriber.batches():
            heard += 1

    listening = asyncio.create_task(listen())
    number = 0
    while not listening.done():
        await publisher.send_multipart([b"", number.to_bytes(8, "big"), removed])
        number += 1
        await asyncio.sleep(0.01)
    with pytest.raises(TooManyEvents):
        await listening
    assert 0 < heard * len(removed) <= BURST_SECONDS * 1024 * 2
    publisher.close(linger=0)
    context.term()


async def test_a_message_without_bound_is_not_received():
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.SNDHWM, 8)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    subscriber = KvEventSubscriber(EventSource(endpoint=f"tcp://127.0.0.1:{port}"), context)
    batches = subscriber.batches()
    heard = asyncio.ensure_future(anext(batches))
    assert await heard is FeedNotice.CAUGHT_UP
    heard = asyncio.ensure_future(anext(batches))
    small = msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]]])
    number = 0
    while not heard.done():
        await publisher.send_multipart([b"", number.to_bytes(8, "big"), bytes(MESSAGE_BYTES_MAX + 1)])
        await asyncio.sleep(0.2)
        await publisher.send_multipart([b"", (number + 1).to_bytes(8, "big"), small])
        number += 2
    assert await heard is FeedNotice.LOST
    assert subscriber.unreadable == 0
    await batches.aclose()
    publisher.close(linger=0)
    context.term()


async def test_blocks_that_follow_each_other_go_out_as_one_event():
    async with published() as publisher:
        chain = [BlockStored(1, None, (1, 2), "s"), BlockStored(-2, 1, (3, 4), "s")]
        publisher.publish(
            [*chain, BlockStored(9, None, (5, 6), ""), BlockRemoved(1), BlockRemoved(9), Cleared()]
        )

        batch = decode_batch([b"", bytes(8), publisher._kept[0][1]])
        first, second, removed, _ = batch.events
        assert (first.hashes, list(first.tokens), first.salt) == ((1, 2**64 - 2), [1, 2, 3, 4], "s")
        assert (second.hashes, second.salt, removed.hashes) == ((9,), "", (1, 9))


async def test_earlier_events_end_with_a_notice_of_their_own(listen):
    async with published() as publisher:
        for number in range(3):
            publisher.publish(stored(number))
        listener = listen(source_of(publisher))
        await listener.until([0, 1, 2])
        async with asyncio.timeout(60):
            while listener.caught_up_after is None:
                await asyncio.sleep(0.01)
        assert listener.caught_up_after == 3


async def test_an_engine_that_still_keeps_the_last_batch_is_in_the_same_life(listen):
    port = free_ports(2)[0]
    async with published(port) as publisher:
        listener = listen(source_of(publisher))
        publisher.publish(stored(0))
        await listener.until([0])
        assert await listener.subscriber.is_same_instance()
    async with published(port) as publisher:
        listener.subscriber.source = source_of(publisher)
        assert not await listener.subscriber.is_same_instance()
        publisher._kept.append((0, msgspec.msgpack.encode([1.0, [], 0])))
        assert not await listener.subscriber.is_same_instance()


async def test_a_gap_in_earlier_events_is_requested_again(listen):
    async with published() as publisher:
        for number in range(4):
            publisher.publish(stored(number))
        whole = list(publisher._kept)
        del publisher._kept[1]
        listener = listen(source_of(publisher))
        await listener.until([0])
        publisher._kept.clear()
        publisher._kept.extend(whole)
        publisher.publish(stored(4))
        await listener.until([0, 1, 2, 3, 4])


async def test_an_engine_whose_clock_stepped_back_at_its_restart_is_received_at_once(listen, monkeypatch):
    port = free_ports(2)[0]
    async with published(port) as publisher:
        listener = listen(source_of(publisher))
        for number in range(3):
            publisher.publish(stored(number))
        await listener.until([0, 1, 2])
    monkeypatch.setattr("workers.engine_server.kv_events.time", SimpleNamespace(time=lambda: 1000.0))
    async with published(port) as publisher:
        listener.subscriber.source = source_of(publisher)
        await subscribed(publisher)
        publisher.publish(stored(0))
        await listener.until([0, 1, 2, FeedNotice.RESTARTED, 0])
        publisher.publish(stored(1))
        await listener.until([0, 1, 2, FeedNotice.RESTARTED, 0, 1])


async def test_an_engine_that_restarted_and_has_come_further_is_received_from_its_beginning(listen):
    async with published() as publisher:
        listener = listen(source_of(publisher))
        for number in range(2):
            publisher.publish(stored(number))
        await listener.until([0, 1])
        # What it kept is of another life by now, and the next number heard is beyond the one expected.
        publisher._kept.clear()
        publisher._kept.extend((number, msgspec.msgpack.encode([1.0, [], 0])) for number in range(4))
        publisher._sequence = 4
        publisher.publish(stored(4))
        await listener.until([0, 1, FeedNotice.RESTARTED, 0, 1, 2, 3, 4])


async def test_of_a_gap_that_cannot_be_filled_the_part_that_is_kept_is_received(listen):
    async with published() as publisher:
        listener = listen(source_of(publisher))
        publisher.publish(stored(0))
        await listener.until([0])
        payload = publisher._kept[0][1]
        publisher._kept.clear()
        publisher._kept.extend((number, payload) for number in (3, 4))
        publisher._sequence = 5
        publisher.publish(stored(5))
        await listener.until([0, FeedNotice.LOST, 3, 4, 5])


async def test_a_subscriber_that_stops_and_starts_again_misses_nothing():
    async with published() as publisher:
        context = zmq.asyncio.Context()
        subscriber = KvEventSubscriber(source_of(publisher), context)
        heard = []
        for number in range(4):
            publisher.publish(stored(number))
            async with aclosing(subscriber.batches()) as batches:
                async for item in batches:
                    if item is FeedNotice.CAUGHT_UP:
                        break
                    heard.append(item.sequence)
        assert heard == [0, 1, 2, 3]
        context.destroy(linger=0)


async def test_other_tasks_run_while_a_flood_of_batches_is_received(listen, monkeypatch):
    # The time of one turn is over at once, however fast the machine is.
    monkeypatch.setattr(loop_yield, "WORK_SECONDS_MAX", 0.0)
    async with published() as publisher:
        listener = listen(source_of(publisher))
        publisher.publish(stored(0))
        await listener.until([0])
        longest, running = 0, True

        async def watch():
            nonlocal longest
            while running:
                before = len(listener.heard)
                await asyncio.sleep(0)
                longest = max(longest, len(listener.heard) - before)

        watching = asyncio.create_task(watch())
        for number in range(1, 5000):
            publisher.publish(stored(number))
        await listener.until(list(range(5000)))
        running = False
        await watching
        # Without turns the event loop would run nothing else before all 5,000 are heard.
        assert longest < 50


async def test_a_message_that_is_too_large_is_not_taken(listen, monkeypatch):
    monkeypatch.setattr("workers.kv_events.bounded_socket.MESSAGE_BYTES_MAX", 1000)
    monkeypatch.setattr("workers.kv_events.replay.REPLAY_SECONDS_MAX", 0.5)
    async with published() as publisher:
        listener = listen(source_of(publisher))
        await subscribed(publisher)
        publisher.publish(stored(0))
        await listener.until([0])
        publisher.publish([BlockStored(number, None, (1, 2), "") for number in range(1000)])
        # The connection is cut, comes back, and what was too large is a gap.
        await subscribed(publisher)
        publisher.publish(stored(2))
        publisher.publish(stored(3))
        async with asyncio.timeout(60):
            while 3 not in listener.heard:
                await asyncio.sleep(0.01)
        assert listener.heard[0] == 0
        assert 1 not in listener.heard
        assert FeedNotice.LOST in listener.heard


async def test_a_replay_without_end_is_cut(listen, monkeypatch):
    monkeypatch.setattr("workers.kv_events.replay.REPLAYED_MAX", 10)
    async with published() as publisher:
        for number in range(30):
            publisher.publish(stored(number))
        subscriber = listen(source_of(publisher)).subscriber
        assert len(await subscriber._kept_from(0)) == 10


async def test_a_subscriber_that_stops_leaves_no_descriptor_open():
    """Also before the collector of cycles looks, which a gateway lets do so seldom."""
    context = zmq.asyncio.Context()
    async with published() as publisher:
        publisher.publish(stored(1))

        async def listen_once():
            async with aclosing(KvEventSubscriber(source_of(publisher), context).batches()) as batches:
                assert isinstance(await anext(batches), EventBatch)
                assert await anext(batches) is FeedNotice.CAUGHT_UP

        async def open_at_rest():
            await asyncio.sleep(0.1)  # Sockets are closed by a thread of ZMQ's.
            return len(os.listdir("/proc/self/fd"))

        await listen_once()
        before = await open_at_rest()
        gc.disable()
        try:
            for _ in range(8):
                await listen_once()
            assert await open_at_rest() <= before + 2
        finally:
            gc.enable()
    context.destroy(linger=0)
