"""Listens to one engine's KV events, and asks for what it has missed.

SUB  <- PUB       every batch as it happens, numbered; a slow or late listener misses some
DEALER <-> ROUTER  replay: all kept batches from a number on, then an end marker

number expected    the batch is handed on
number too high    a gap: what is missing is asked for, and handed on first; if it is not kept any more: `lost`
number too low     the engine has begun anew: `restarted`, and everything from 0 is asked for
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from enum import Enum

import zmq
import zmq.asyncio

from radix_cache.events import EventBatch
from radix_cache.turns import Turns
from workers.kv_events.source import EventSource
from workers.kv_events.wire import EventsUnreadable, decode_batch

log = logging.getLogger(__name__)

REPLAY_SECONDS_MAX = 5.0
RECEIVED_MAX = 100_000
REPLAYED_MAX = 50_000
MESSAGE_BYTES_MAX = 16 * 1024**2


class Turn(Enum):
    """What a listener must know besides the batches."""

    RESTARTED = "restarted"
    """The engine began anew: nothing of before holds."""
    LOST = "lost"
    """Batches are missing for good: what is known of the engine may be wrong."""
    CAUGHT_UP = "caught up"
    """What was before has been handed on, as far as it is kept: once, before what happens now."""


class Subscriber:
    """`batches` for as long as somebody iterates."""

    def __init__(self, source: EventSource, context: "zmq.asyncio.Context") -> None:
        """`context`: one for all, since each has threads, and ends the process when it gets no descriptors."""
        self.source = source
        self._context = context
        self.gaps = 0
        self.unreadable = 0
        self._expected = 0
        self._last_at = 0.0

    async def batches(self) -> AsyncGenerator[EventBatch | Turn]:
        """Every batch once and in order, from the oldest that the engine keeps. Raises OSError."""
        listener: zmq.asyncio.Socket | None = None
        turns = Turns()
        try:
            listener = self._context.socket(zmq.SUB)
            listener.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
            listener.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            listener.setsockopt(zmq.LINGER, 0)
            listener.subscribe(self.source.topic.encode())
            listener.connect(self.source.endpoint)
            # First listen, then ask for what was before: so nothing falls between.
            for at, batch in enumerate(await self._replay(self._expected)):
                if at and batch.sequence != self._expected:
                    break  # A hole: the engine sent faster than its queue took. It is a gap, and asked for again.
                yield self._take(batch)
            yield Turn.CAUGHT_UP
            while True:
                received = self._decoded(await listener.recv_multipart())
                # What lies there already is received without waiting: others would wait.
                await turns.give()
                if received is None or (received.sequence < self._expected and received.at <= self._last_at):
                    continue  # Heard twice: live, and in a replay.
                if received.sequence < self._expected:
                    self._expected = 0
                    yield Turn.RESTARTED
                if received.sequence > self._expected:
                    self.gaps += 1
                    for batch in await self._replay(self._expected):
                        if self._expected == batch.sequence < received.sequence:
                            yield self._take(batch)
                    if received.sequence > self._expected:
                        yield Turn.LOST
                yield self._take(received)
        except zmq.ZMQError as err:
            raise OSError(err.errno, f"{self.source.endpoint}: {err.strerror}") from err
        finally:
            if listener is not None:
                listener.close()

    async def unbroken(self) -> bool:
        """Is the engine still in the life of which the last batch was heard? It replays that batch, if so."""
        expected, last_at = self._expected, self._last_at
        kept = await self._replay(expected - 1, 1) if expected else []
        return bool(kept) and (kept[0].sequence, kept[0].at) == (expected - 1, last_at)

    def _take(self, batch: EventBatch) -> EventBatch:
        self._expected, self._last_at = batch.sequence + 1, batch.at
        return batch

    async def _replay(self, start: int, most: int = REPLAYED_MAX) -> list[EventBatch]:
        """What is kept from that batch on; nothing if nothing is kept, or if nobody answers in time."""
        if self.source.replay is None:
            return []
        asking: zmq.asyncio.Socket | None = None
        found: list[EventBatch] = []
        turns = Turns()
        try:
            asking = self._context.socket(zmq.DEALER)
            asking.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
            asking.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            asking.setsockopt(zmq.LINGER, 0)
            asking.connect(self.source.replay)
            await asking.send_multipart([b"", start.to_bytes(8, "big")])
            async with asyncio.timeout(REPLAY_SECONDS_MAX):
                while len(found) < most:
                    frames = await asking.recv_multipart()
                    await turns.give()
                    # [empty, (topic,) sequence, payload]; the last one has no payload.
                    if not frames[-1]:
                        return found
                    batch = self._decoded(frames)
                    if batch is not None:
                        found.append(batch)
                return found
        except (TimeoutError, zmq.ZMQError):
            log.debug("no replay from %s", self.source.replay)
            return found
        finally:
            if asking is not None:
                asking.close()

    def _decoded(self, frames: list[bytes]) -> EventBatch | None:
        try:
            return decode_batch(frames)
        except EventsUnreadable as err:
            self.unreadable += 1
            log.debug("unreadable KV events from %s: %s", self.source.endpoint, err)
            return None
