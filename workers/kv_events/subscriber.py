"""Listens to one engine's KV events, and asks for what it has missed.

SUB  <- PUB       every batch as it happens, numbered; a slow or late listener misses some
DEALER <-> ROUTER  replay: all kept batches from a number on, then an end marker

number expected    the batch is handed on
number too high    a gap: what is missing is asked for, and handed on first; if it is not kept any more: `lost`
number too low     the engine has begun anew: `restarted`, and everything from 0 is asked for

Whoever asks for what is missing asks for the last batch that he has as well: if the engine keeps another one under
its number, it has begun anew, and come further already than it was. No clock is asked: an engine's may step back.
"""

import asyncio
import logging
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
        self.reaches = False
        """Is somebody there who publishes?"""
        self._expected = 0
        self._last_at: float | None = None
        self._cut_off = False
        self._replayed: dict[int, float] = {}

    async def batches(self) -> AsyncGenerator[EventBatch | Turn]:
        """Every batch once and in order, from the oldest that the engine keeps. Raises OSError."""
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
            await asyncio.sleep(0)  # It looks before there is anything to be seen.
            listener.connect(self.source.endpoint)
            # First listen, then ask for what was before: so nothing falls between.
            for item in await self._missed():
                yield item
            yield Turn.CAUGHT_UP
            while True:
                received = self._decoded(await listener.recv_multipart())
                # What lies there already is received without waiting: others would wait.
                await yielder.yield_if_due()
                if received is None or self._replayed.get(received.sequence) == received.at:
                    continue  # Heard twice: live, and in a replay.
                self._replayed = {}
                if received.sequence < self._expected:
                    yield self._anew()
                if received.sequence > self._expected or self._cut_off:
                    self.gaps += received.sequence > self._expected
                    self._cut_off = False
                    for item in await self._missed(received.sequence):
                        yield item
                yield self._take(received)
        except zmq.ZMQError as err:
            raise OSError(err.errno, f"{self.source.endpoint}: {err.strerror}") from err
        finally:
            self.reaches = False
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            if listener is not None:
                listener.close()

    async def _stay_connected(self, listener: zmq.asyncio.Socket) -> None:
        """ZMQ connects again by itself, but for a peer that sent what is none of its protocol, or too much."""
        news = listener.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            while True:
                event = parse_monitor_message(await news.recv_multipart())["event"]
                self.reaches = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if self.reaches:
                    continue
                # Who is there now may be another one, whose numbers go on where the other's ended.
                self._cut_off = True
                await asyncio.sleep(RECONNECT_SECONDS)
                with suppress(zmq.ZMQError):
                    listener.disconnect(self.source.endpoint)
                listener.connect(self.source.endpoint)
        finally:
            listener.disable_monitor()  # That leaves its own end open.
            news.close(linger=0)

    async def unbroken(self) -> bool:
        """Is the engine still in the life of which the last batch was heard? It replays that batch, if so."""
        expected, last_at = self._expected, self._last_at
        kept = await self._replay(expected - 1, 1) if expected else []
        return bool(kept) and (kept[0].sequence, kept[0].at) == (expected - 1, last_at)

    def _take(self, batch: EventBatch) -> EventBatch:
        self._expected, self._last_at = batch.sequence + 1, batch.at
        return batch

    def _anew(self) -> Turn:
        self._expected, self._last_at = 0, -1.0
        return Turn.RESTARTED

    async def _missed(self, until: int | None = None) -> list[EventBatch | Turn]:
        """What the engine keeps from the expected batch on, before that number; and what has to be known of it.

        None: all, as it was before one listened. Of that, a hole is no loss yet: it is asked for at the next gap.
        """
        items: list[EventBatch | Turn] = []
        kept = await self._replay(max(self._expected - 1, 0))
        if self._expected and kept and kept[0].sequence == self._expected - 1:
            if kept[0].at == self._last_at:
                del kept[0]
            else:
                items.append(self._anew())
                kept = await self._replay(0)
        if self._last_at is not None and kept and kept[0].sequence > self._expected:
            items.append(Turn.LOST)
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
            items.append(Turn.LOST)
        return items

    async def _replay(self, start: int, most: int = REPLAYED_MAX) -> list[EventBatch]:
        """What is kept from that batch on; nothing if nothing is kept, or if nobody answers in time."""
        if self.source.replay is None:
            return []
        asking: zmq.asyncio.Socket | None = None
        found: list[EventBatch] = []
        yielder = LoopYielder()
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
                    await yielder.yield_if_due()
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
