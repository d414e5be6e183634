"""A subscriber to the KV events of one engine, which requests the batches that it has missed.

SUB <- PUB   every batch as it happens, numbered; a slow or late subscriber misses some
replay.py    all kept batches from a number on, on request
batch_order  what the number of a batch means: it is next, after a gap, or after a restart

The missing batches are passed on before the batch after the gap. A request for them includes the last batch that
was received: if the engine keeps another batch under that number, it has restarted, and has published more batches
since than before.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import suppress

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from radix_cache.events import EventBatch
from radix_cache.loop_yield import LoopYielder
from workers.kv_events.batch_order import BatchOrder, FeedNotice
from workers.kv_events.bounded_socket import bounded_socket
from workers.kv_events.replay import kept_batches
from workers.kv_events.source import EventSource
from workers.kv_events.wire import EventsUnreadable, decode_batch

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.1
LONG_BYTES = 128 * 1024
"""Longer messages are decoded in a thread."""
BYTES_PER_SECOND_MAX = 1024**2
"""Bytes per second that a publisher may sustain; 50,000 tokens per second make a third of that."""
BURST_SECONDS = 32.0
"""Largest burst: the bytes of this many seconds at BYTES_PER_SECOND_MAX."""


class TooManyEvents(OSError):
    """The publisher sends more than the gateway can process beside its requests."""


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
        self._order = BatchOrder()
        self._cut_off = False
        """Whether the connection was lost since the last batch: some may be missing."""
        self._bytes_from = 0.0
        """The moment at which the bytes so far would have been sent at BYTES_PER_SECOND_MAX."""

    async def batches(self) -> AsyncGenerator[EventBatch | FeedNotice]:
        """Yield every batch once and in order, from the oldest that the engine keeps.

        Raises OSError, and TooManyEvents.
        """
        listener: zmq.asyncio.Socket | None = None
        watching: asyncio.Task[None] | None = None
        yielder, order = LoopYielder(), self._order
        try:
            listener = bounded_socket(self._context, zmq.SUB)
            listener.subscribe(self.source.topic.encode())
            watching = asyncio.create_task(self._stay_connected(listener))
            await asyncio.sleep(0)  # The monitor must run before the first connection.
            listener.connect(self.source.endpoint)
            # Subscribe before asking for earlier batches, so that no batch is missed in between.
            for item in await self._missed():
                yield item
            yield FeedNotice.CAUGHT_UP
            while True:
                batch = await self._receive(listener, yielder)
                if batch is None or order.repeats(batch):
                    continue
                if batch.sequence < order.expected:
                    yield order.restart()
                if batch.sequence > order.expected or self._cut_off:
                    self.gaps += batch.sequence > order.expected
                    self._cut_off = False
                    for item in await self._missed(until=batch.sequence):
                        yield item
                yield order.take(batch)
        except zmq.ZMQError as err:
            raise OSError(err.errno, f"{self.source.endpoint}: {err.strerror}") from err
        finally:
            self.connected = False
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            if listener is not None:
                listener.close()

    async def _receive(self, listener: "zmq.asyncio.Socket", yielder: LoopYielder) -> EventBatch | None:
        """Return the next live batch; None for a message that cannot be read. Raises TooManyEvents."""
        frames = await listener.recv_multipart()
        self._count_bytes(frames)
        batch = await self._decoded(frames)
        # Messages that have arrived already are received without a pause, so give other tasks a turn.
        await yielder.yield_if_due()
        return batch

    async def _missed(self, until: int | None = None) -> list[EventBatch | FeedNotice]:
        """Return the batches that the engine keeps from the expected one up to number `until`, and notices.

        `until`: see BatchOrder.take_kept.
        """
        order, notices = self._order, list[EventBatch | FeedNotice]()
        kept = await self._kept_from(max(order.expected - 1, 0))
        if order.shows_restart(kept):
            notices.append(order.restart())
            kept = await self._kept_from(0)
        return notices + order.take_kept(kept, until)

    async def _kept_from(self, start: int, most: int | None = None) -> list[EventBatch]:
        return await kept_batches(self.source.replay, self._context, self._decoded, start, most)

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
        order = self._order
        kept = await self._kept_from(order.expected - 1, most=1) if order.expected else []
        return bool(kept) and order.is_last(kept[0])

    async def _decoded(self, frames: list[bytes]) -> EventBatch | None:
        try:
            if len(frames[-1]) > LONG_BYTES:
                return await asyncio.to_thread(decode_batch, frames)
            return decode_batch(frames)
        except EventsUnreadable as err:
            self.unreadable += 1
            log.debug("unreadable KV events from %s: %s", self.source.endpoint, err)
            return None
