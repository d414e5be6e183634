"""The load feed of an engine: SGLang tells by itself how busy each of its data-parallel ranks is.

PUB (engine, one port a rank)  -> SUB     topic, number, ["LoadStat", running, waiting, ...]

It comes when something has changed, and every second when nothing has. Only the newest counts: a reading that was
missed is made up for by the next one, so numbers are not looked at, and who reads too slowly leaves readings out.
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
"""At most so often something is made of a feed; an engine may publish after every step."""
SILENT_SECONDS = 3.0
"""After three heartbeats that did not come nothing is known from it any more."""
CONNECT_SECONDS = 10.0
"""After so long without a word one connects anew: ZMQ leaves a peer that spoke nonsense alone for good."""
RECONNECT_MS, RECONNECT_MS_MAX = 100, 5000
RECEIVED_MAX = 256
MESSAGE_BYTES_MAX = 64 * 1024

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSource:
    """Where one rank publishes, as ZMQ has it."""

    endpoint: str
    topic: str = "load"


class LoadStat(msgspec.Struct, frozen=True, array_like=True, tag="LoadStat", gc=False):
    """One reading, as it comes: fields by their place. The first versions end after `rank`; more may follow.

    `kv_tokens`: that are held. `prefilled_tokens`, `prefill_us`: since the engine's start, and how long it took.
    """

    running: Count
    waiting: Count
    kv_tokens: Count
    kv_tokens_max: Count = 0
    rank: int | None = None
    waiting_uncached_tokens: Count = 0
    kv_tokens_asked: Count = 0
    running_max: Count = 0
    prefilled_tokens: Count = 0
    prefill_us: Count = 0

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(
            streams=self.running + self.waiting,
            tokens_queued=self.waiting_uncached_tokens,
            kv_tokens=self.kv_tokens,
        )


_READER = msgspec.msgpack.Decoder(LoadStat)


class LoadListener:
    """`readings` for as long as somebody iterates."""

    def __init__(self, source: LoadSource, context: "zmq.asyncio.Context") -> None:
        """`context`: one for all, since each has threads."""
        self.source = source
        self.unreadable = 0
        self._context = context

    async def readings(self) -> AsyncGenerator[LoadStat]:
        """The newest one each time. An engine that goes is waited for. Raises OSError for what is no address."""
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
            log.debug("an unreadable load from %s: %s", self.source.endpoint, err)
            return None


async def _newest(socket: zmq.asyncio.Socket) -> list[bytes] | None:
    """What lies there last, waited for if nothing does; None after a long silence."""
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
