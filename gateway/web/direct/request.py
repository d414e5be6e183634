"""DirectRequest: a request that is served without aiohttp's server, and its body as it arrives."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from gateway.web.direct.answer import AnsweredConnection, DirectAnswer

UNREAD_BYTES_MAX = 256 * 1024
"""Beyond this many unread bytes of a body, reading from the client pauses."""
NO_HEADERS: Mapping[str, str] = {}
NOTHING_WRITTEN = SimpleNamespace(output_size=0)


class DirectHeaders(dict[str, str]):
    """The headers of a request by their names in small letters, none of which is repeated.

    Code that serves both kinds of requests looks headers up by small letters, too.
    """

    def getall(self, name: str, default: Sequence[str] = ()) -> Sequence[str]:
        """Return the value of a header as a list, as aiohttp's headers do; `default` without the header."""
        value = self.get(name)
        return default if value is None else [value]


class DirectBody:
    """The body of a request as it arrives, with the methods of aiohttp's StreamReader that exchanges use."""

    def __init__(self, transport: asyncio.Transport, missing: int, arrived: bytes) -> None:
        self.missing = missing
        """Bytes that have not arrived yet."""
        self._transport = transport
        self._pieces = [arrived]
        self._unread = len(arrived)
        self._paused = self._unwanted = False
        self._arrived: asyncio.Future[None] | None = None

    def add(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self.missing -= len(data)
        if self._unwanted:
            data = b""
        self._pieces.append(data)
        self._unread += len(data)
        if self._unread > UNREAD_BYTES_MAX and self.missing and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def is_eof(self) -> bool:
        """Return whether all of the body has arrived."""
        return not self.missing

    def read_nowait(self) -> bytes:
        """Return the bytes that have arrived and were not read."""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._unread = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def readany(self) -> bytes:
        """Return the bytes that have arrived, or wait for more; empty at the end."""
        while not self._unread and self.missing:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return self.read_nowait()

    async def discard(self) -> None:
        """Wait for the end of the body without keeping it."""
        self._unwanted = True
        self.read_nowait()
        while self.missing:
            await self.readany()


class DirectRequest(dict[Any, Any]):
    """A request with the attributes of aiohttp's Request that exchanges use.

    Its items are notes for the access log. `match_info` names the route, as in aiohttp.
    """

    method = "POST"
    answer_headers: Mapping[str, str] = NO_HEADERS
    """Headers that are added to its answer."""

    def __init__(
        self,
        path: str,
        headers: DirectHeaders,
        body: bytes,
        missing: int,
        connection: AnsweredConnection,
        match_info: object,
    ) -> None:
        """`body` came together with the head; so many bytes of it are missing."""
        self.path = path
        self.headers = headers
        self.content_length = len(body) + missing
        self.whole = None if missing else body
        """The body, if it came together with the head; else it is in `content`."""
        self.transport = connection.transport
        """The transport of the connection; None once that is lost."""
        assert self.transport is not None
        self.content = DirectBody(self.transport, missing, body if missing else b"")
        self.match_info = match_info
        self.connection = connection
        self.answer: DirectAnswer | None = None
        """The answer, once it has begun."""

    @property
    def writer(self) -> "DirectAnswer | SimpleNamespace":
        """What was written of the answer."""
        return self.answer or NOTHING_WRITTEN

    @property
    def remote(self) -> str | None:
        """The address of the connection's other end."""
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        if peer is None:
            return None
        return str(peer[0]) if isinstance(peer, tuple) else str(peer)
