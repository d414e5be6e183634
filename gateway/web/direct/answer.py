"""DirectAnswer: the answer to a request that is served without aiohttp's server."""

import asyncio
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

LAST_CHUNK = b"0\r\n\r\n"


class AnsweredConnection(Protocol):
    """A connection that answers are written to."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """Its transport; None once the connection is lost."""
        ...

    @property
    def writable(self) -> "asyncio.Future[None] | None":
        """Done when the client has caught up; None while it need not."""
        ...


class AnswerHead:
    """The status and the headers of an answer as bytes; it may be made before the answer begins."""

    __slots__ = ("headers", "is_chunked", "keep_alive", "start", "status")

    def __init__(self, status: int, headers: Mapping[str, str], *, keep_alive: bool) -> None:
        """Make the head, but for the headers that are known when the answer begins.

        `keep_alive`: whether the connection serves further requests. Raises ValueError for a line break in a
        header.
        """
        self.status = status
        self.headers = headers
        self.keep_alive = keep_alive
        self.is_chunked = "content-length" not in headers
        lines = [f"HTTP/1.1 {_status_line(status)}", *map(": ".join, headers.items())]
        if self.is_chunked:
            lines.append("transfer-encoding: chunked")
        if not keep_alive:
            lines.append("connection: close")
        text = "\r\n".join(lines)
        if not text.count("\n") == text.count("\r") == len(lines) - 1:
            raise ValueError("a header of an answer has a line break")
        self.start = text.encode("utf-8", "surrogateescape")
        """All lines that are known, without the end of the last one."""


class DirectAnswer:
    """An answer with the methods of aiohttp's StreamResponse that exchanges use.

    Its head leaves together with its first bytes, as one write. A body without a content-length is sent in chunks.
    """

    prepared = True
    """Whether the answer has begun."""
    ended = False
    """Whether all of it was written."""
    body_length = 0
    """Bytes of the body, with their framing."""
    output_size = 0
    """All bytes that were written."""

    def __init__(
        self, connection: AnsweredConnection, head: AnswerHead, processing_ms: int | None = None
    ) -> None:
        """Begin the answer. `processing_ms`: value of the header `openai-processing-ms`; None: it is left out."""
        self.status = head.status
        self.headers = head.headers
        self.keep_alive = head.keep_alive
        self._connection = connection
        self._chunked = head.is_chunked
        duration = b"openai-processing-ms: %d\r\n" % processing_ms if processing_ms is not None else b""
        self._head = b"%b\r\n%bdate: %b\r\n\r\n" % (head.start, duration, _date(int(time.time())))

    async def write(self, data: bytes) -> None:
        """Send more of the body, and wait while the client reads too slowly. Raises ConnectionResetError."""
        self.send(data)
        if self._connection.writable is not None:
            await asyncio.shield(self._connection.writable)

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Send more of the body. Raises ConnectionResetError."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if last:
                data += LAST_CHUNK
        self.body_length += len(data)
        if self._head:
            data, self._head = self._head + data, b""
        self.ended = last
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        transport.write(data)
        self.output_size += len(data)

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the last bytes of the body. Raises ConnectionResetError."""
        self.send(data, last=True)
        if self._connection.writable is not None:
            await asyncio.shield(self._connection.writable)


@lru_cache(maxsize=256)
def _status_line(status: int) -> str:
    """Return a status with its reason phrase."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} "


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """Return the value of the `date` header."""
    return formatdate(second, usegmt=True).encode()
