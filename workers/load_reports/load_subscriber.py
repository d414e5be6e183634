"""The load feed of an engine: SGLang publishes the load of each of its data-parallel ranks.

ZMQ PUB (engine, one port for each rank)  -> SUB     topic, sequence number, ["LoadStat", running, waiting, ...]

A reading is sent after each change, and every second without one. Only the newest counts: the next reading makes up
for a missed one, so sequence numbers are ignored, and a slow reader skips readings.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import zmq
import zmq.asyncio

from workers.load_reports.engine_loads import EngineLoad

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""Least time between two readings that are used; an engine may publish after every step."""

SILENT_SECONDS = 3.0
"""Time without readings (three missed heartbeats) after which the last one is out of date."""

CONNECT_SECONDS = 10.0
"""Time without readings after which to reconnect; ZMQ never does so after a malformed message."""

RECONNECT_MS, RECONNECT_MS_MAX = 100, 5000
RECEIVED_MAX = 256
MESSAGE_BYTES_MAX = 64 * 1024

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSource:
    """The ZMQ address and topic where one rank publishes its load."""

    endpoint: str
    topic: str = "load"


class LoadStat(msgspec.Struct, frozen=True, array_like=True, tag="LoadStat", gc=False):
    """One reading, as it is published: an array of fields.

    The first versions end after `rank`; more fields may follow.
    """

    running: Count
    waiting: Count
    kv_tokens: Count
    """Tokens in use."""
    kv_tokens_max: Count = 0
    rank: int | None = None
    waiting_uncached_tokens: Count = 0
    kv_tokens_asked: Count = 0
    running_max: Count = 0
    prefilled_tokens: Count = 0
    prefill_us: Count = 0
    """Microseconds that computing the `prefilled_tokens` took, both since the engine's start."""

    @property
    def load(self) -> EngineLoad:
        """The reading as an EngineLoad."""
        return EngineLoad(
            streams=self.running + self.waiting,
            tokens_queued=self.waiting_uncached_tokens,
            kv_tokens=self.kv_tokens,
        )


_READER = msgspec.msgpack.Decoder(LoadStat)


class LoadSubscriber:
    """A subscriber to the load feed of one rank."""

    def __init__(self, source: LoadSource, context: "zmq.asyncio.Context") -> None:
        """Make a subscriber; all subscribers share one ZMQ context, since each context has threads."""
        self.source = source
        self.unreadable = 0
        """Readings that could not be decoded."""
        self._context = context

    async def readings(self) -> AsyncGenerator[LoadStat]:
        """Yield the newest reading each time. While the engine is gone, wait for it.

        Raises OSError for an invalid address.
        """
        while True:
            socket: zmq.asyncio.Socket | None = None
            try:
                socket = self._connected()
                while (frames := await _newest(socket)) is not None:
                    if (stat := self._decoded(frames)) is not None:
                        yield stat
                    await asyncio.sleep(LOOK_SECONDS)
            except zmq.ZMQError as err:
                raise OSError(err.errno, f"{self.source.endpoint}: {err.strerror}") from err
            finally:
                if socket is not None:
                    socket.close()

    def _connected(self) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        socket.subscribe(self.source.topic.encode())
        try:
            socket.connect(self.source.endpoint)
        except zmq.ZMQError:
            socket.close()
            raise
        return socket

    def _decoded(self, frames: list[bytes]) -> LoadStat | None:
        try:
            return _READER.decode(frames[-1])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            self.unreadable += 1
            log.debug("unreadable load reading from %s: %s", self.source.endpoint, err)
            return None


async def _newest(socket: zmq.asyncio.Socket) -> list[bytes] | None:
    """Return the newest received message, and wait for one if there is none; None after a long time without one."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            newest: list[bytes] = await socket.recv_multipart()
    except TimeoutError:
        return None
    for _ in range(RECEIVED_MAX):
        try:
            newest = await socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            break
    return newest
