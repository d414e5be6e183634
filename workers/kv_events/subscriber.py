"""A subscriber to the KV events of one engine, which requests the batches that it has missed.

SUB  <- PUB       every batch as it happens, numbered; a slow or late subscriber misses some
DEALER <-> ROUTER  replay: all kept batches from a number on, then an end marker

number expected    the batch is passed on
number too high    a gap: the missing batches are requested and passed on first; LOST if they are not kept any more
number too low     the engine has restarted: RESTARTED, and everything from 0 is requested

A request for missing batches includes the last batch that was received. If the engine keeps another batch under
that number, it has restarted, and has published more batches since than before. Clocks are not compared, since an
engine's clock may step back.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from enum import Enum

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from radix_cache.events import EventBatch
from radix_cache.loop_yield import LoopYielder
from workers.kv_events.source import EventSource
from workers.kv_events.wire import EventsUnreadable, decode_batch

log = logging.getLogger(__name__)

REPLAY_SECONDS_MAX = 5.0
RECONNECT_SECONDS = 0.1
RECEIVED_MAX = 32
"""Largest number of received messages that wait to be read; further ones wait at the publisher."""
REPLAYED_MAX = 50_000
REPLAYED_BYTES_MAX = 64 * 1024**2
MESSAGE_BYTES_MAX = 6 * 1024**2
"""Larger messages end the connection. A message with the blocks of a million tokens is a little smaller."""
LONG_BYTES = 128 * 1024
"""Longer messages are decoded in a thread."""
BYTES_PER_SECOND_MAX = 1024**2
"""Bytes per second that a publisher may sustain; 50,000 tokens per second make a third of that."""
BURST_SECONDS = 32.0
"""Largest burst: the bytes of this many seconds at BYTES_PER_SECOND_MAX."""


class TooManyEvents(OSError):
    """The publisher sends more than the gateway can process beside its requests."""


class FeedNotice(Enum):
    """What a subscriber reports besides the batches."""

    RESTARTED = "restarted"
    """The engine restarted: everything known about its cache is obsolete."""
    LOST = "lost"
    """Batches are lost: what is known about the cache may be wrong."""
    CAUGHT_UP = "caught up"
    """All earlier batches that the engine keeps have been passed on. Reported once, before the live ones."""


class KvEventSubscriber:
    """A subscriber to one EventSource; it is connected while `batches` is iterated."""

    def __init__(self, source: EventSource, context: "zmq.asyncio.Context") -> None:
        """Make a subscriber. All subscribers share one ZMQ context.

        Each context has threads, and aborts the process when it gets no file descriptors.
        """
        self.source = source
        self._context = context
        self.gaps = 0
        """Gaps in the numbers of live batches."""
        self.unreadable = 0
        """Messages that could not be decoded."""
        self.connected = False
        """Whether a publisher is connected."""
        self._expected = 0
        self._last_at: float | None = None
        self._cut_off = False
        self._replayed: dict[int, float] = {}
        self._bytes_from = 0.0
        """The moment at which the bytes so far would have been sent at BYTES_PER_SECOND_MAX."""

    async def batches(self) -> AsyncGenerator[EventBatch | FeedNotice]:
        """Yield every batch once and in order, from the oldest that the engine keeps.

        Raises OSError, and TooManyEvents.
        """
        listener: zmq.asyncio.Socket | None = None
        watching: asyncio.Task[None] | None = None
        yielder = LoopYielder()
        try:
            listener = self._context.socket(zmq.SUB)
            listener.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
            listener.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            listener.setsockopt(zmq.LINGER, 0)
            listener.subscribe(self.source.topic.encode())
            watching = asyncio.create_task(self._stay_connected(listener))
            await asyncio.sleep(0)  # The monitor must run before the first connection.
            listener.connect(self.source.endpoint)
            # Subscribe before asking for earlier batches, so that no batch is missed in between.
            for item in await self._missed():
                yield item
            yield FeedNotice.CAUGHT_UP
            while True:
                frames = await listener.recv_multipart()
                self._count_bytes(frames)
                received = await self._decoded(frames)
                # Messages that have arrived already are received without a pause, so give other tasks a turn.
                await yielder.yield_if_due()
                if received is None or self._replayed.get(received.sequence) == received.at:
                    continue  # Received twice: live, and in a replay.
                self._replayed = {}
                if received.sequence < self._expected:
                    yield self._restarted()
                if received.sequence > self._expected or self._cut_off:
                    self.gaps += received.sequence > self._expected
                    self._cut_off = False
                    for item in await self._missed(received.sequence):
                        yield item
                yield self._take(received)
        except zmq.ZMQError as err:
            raise OSError(err.errno, f"{self.source.endpoint}: {err.strerror}") from err
        finally:
            self.connected = False
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            if listener is not None:
                listener.close()

    def _count_bytes(self, frames: list[bytes]) -> None:
        """Raise TooManyEvents if more was sent than the bounds on bytes allow."""
        now = time.monotonic()
        seconds = sum(map(len, frames)) / BYTES_PER_SECOND_MAX
        self._bytes_from = max(self._bytes_from, now - BURST_SECONDS) + seconds
        if self._bytes_from > now:
            raise TooManyEvents(f"{self.source.endpoint}: more than {BYTES_PER_SECOND_MAX} bytes a second")

    async def _stay_connected(self, listener: zmq.asyncio.Socket) -> None:
        """Reconnect after every disconnection. ZMQ itself does not after a malformed or too large message."""
        monitor = listener.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            while True:
                event = parse_monitor_message(await monitor.recv_multipart())["event"]
                self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if self.connected:
                    continue
                # The next publisher may be another engine that continues the numbers by chance.
                self._cut_off = True
                await asyncio.sleep(RECONNECT_SECONDS)
                with suppress(zmq.ZMQError):
                    listener.disconnect(self.source.endpoint)
                listener.connect(self.source.endpoint)
        finally:
            listener.disable_monitor()  # This leaves the monitor socket open.
            monitor.close(linger=0)

    async def is_same_instance(self) -> bool:
        """Return whether the engine still keeps the last batch, and so has not restarted since."""
        expected, last_at = self._expected, self._last_at
        kept = await self._replay(expected - 1, 1) if expected else []
        return bool(kept) and (kept[0].sequence, kept[0].at) == (expected - 1, last_at)

    def _take(self, batch: EventBatch) -> EventBatch:
        self._expected, self._last_at = batch.sequence + 1, batch.at
        return batch

    def _restarted(self) -> FeedNotice:
        self._expected, self._last_at = 0, -1.0
        return FeedNotice.RESTARTED

    async def _missed(self, until: int | None = None) -> list[EventBatch | FeedNotice]:
        """Return the batches that the engine keeps from the expected one up to number `until`, and notices.

        `until` is None when subscribing: all kept batches are returned. A hole in those is not a loss yet: its
        batches are requested at the next gap.
        """
        items: list[EventBatch | FeedNotice] = []
        kept = await self._replay(max(self._expected - 1, 0))
        if self._expected and kept and kept[0].sequence == self._expected - 1:
            if kept[0].at == self._last_at:
                del kept[0]
            else:
                items.append(self._restarted())
                kept = await self._replay(0)
        if self._last_at is not None and kept and kept[0].sequence > self._expected:
            items.append(FeedNotice.LOST)
            self._expected = kept[0].sequence
        for number, batch in enumerate(kept):
            if number and batch.sequence != self._expected:
                break
            if until is None:
                self._replayed[batch.sequence] = batch.at
            elif batch.sequence >= until:
                break
            items.append(self._take(batch))
        if until is not None and self._expected < until:
            items.append(FeedNotice.LOST)
        return items

    async def _replay(self, start: int, most: int = REPLAYED_MAX) -> list[EventBatch]:
        """Return at most `most` kept batches from number `start` on; none if the engine does not answer in time."""
        if self.source.replay is None:
            return []
        asking: zmq.asyncio.Socket | None = None
        found: list[EventBatch] = []
        bytes_left = REPLAYED_BYTES_MAX
        yielder = LoopYielder()
        try:
            asking = self._context.socket(zmq.DEALER)
            asking.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
            asking.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            asking.setsockopt(zmq.LINGER, 0)
            asking.connect(self.source.replay)
            await asking.send_multipart([b"", start.to_bytes(8, "big")])
            async with asyncio.timeout(REPLAY_SECONDS_MAX):
                while len(found) < most and bytes_left > 0:
                    frames = await asking.recv_multipart()
                    bytes_left -= sum(map(len, frames))
                    await yielder.yield_if_due()
                    # [empty, (topic,) sequence, payload]; the last one has no payload.
                    if not frames[-1]:
                        return found
                    batch = await self._decoded(frames)
                    if batch is not None:
                        found.append(batch)
                return found
        except (TimeoutError, zmq.ZMQError):
            log.debug("no complete replay of KV events from %s", self.source.replay)
            return found
        finally:
            if asking is not None:
                asking.close()

    async def _decoded(self, frames: list[bytes]) -> EventBatch | None:
        try:
            if len(frames[-1]) > LONG_BYTES:
                return await asyncio.to_thread(decode_batch, frames)
            return decode_batch(frames)
        except EventsUnreadable as err:
            self.unreadable += 1
            log.debug("unreadable KV events from %s: %s", self.source.endpoint, err)
            return None
