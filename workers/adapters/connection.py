"""An HTTP/1.1 connection to a worker, with only the part of HTTP that a relay needs and little work per chunk.

The parser is llhttp (package httptools). The other features of a general client (redirects, cookies, proxies,
decompression, a timer at every read) would cost more than the rest of a request's way through the gateway. The
connections of a worker are in a pool: see connection_pool.py.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from workers.adapters.body_buffers import Buffers

BUFFERED_BYTES_MAX = 256 * 1024
"""Beyond this many unread bytes, reading from the worker pauses until the client has caught up."""

HEADERS_MAX = 128
"""The most headers of an answer, by name, including trailers of a chunked body."""

OVERHEAD_BYTES_MAX = 64 * 1024
"""The most bytes that may arrive before the body, so that an endless head fails."""

PLAIN = frozenset({b"application/json", b"text/event-stream"})
"""Content types that are passed on without their parameters."""


def do_nothing() -> None:
    """Do nothing: the caller has nothing to do while it waits."""


class ConnectionBroken(OSError):
    """The connection failed, or the received bytes are not HTTP."""


class ConnectionTimedOut(ConnectionBroken):
    """No bytes came for too long."""


class ConnectionAbandoned(ConnectionBroken):
    """The answer is no longer expected, because the worker is down."""


class Connection(asyncio.Protocol):
    """One connection with one request at a time, made by the pool.

    Use `ask`, `read`, then `release`; the other public methods are callbacks of asyncio and httptools.
    """

    def __init__(self, released: Callable[["Connection"], None], traffic: "PoolTraffic") -> None:
        """Make a connection of a pool.

        Args:
            released: Takes the connection back once its answer was read to the end.
            traffic: The traffic of the pool.
        """
        self._released = released
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        # The parser's callbacks for headers and pieces of the body. As C methods they cost nothing per chunk. The
        # parser binds them once, so these two objects must stay the same.
        self.on_header = self._headers.__setitem__
        self.on_body = self._pieces.append
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._lost: ConnectionBroken | None = None
        self._paused = False
        self.take: Callable[[bytes], bool] | None = None
        """Is offered each piece of the body that a reader waits for, unless it is the last one; see
        WorkerAnswer."""
        self.taken_at = 0.0
        """When a piece was taken last."""
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        """Reset the state for the next answer."""
        self.status = 0
        self.content_type = ""
        self.retry_after = ""
        self.date = ""
        self.nothing_received = True
        """Whether no byte of the answer has arrived yet."""
        self.answered = False
        """Whether the head of the answer was read."""
        self.complete = False
        """Whether the answer has arrived completely."""
        self._sized = False
        self._head_done = False
        self._reusable = False
        self._overhead = 0
        self._buffered = 0
        self._headers.clear()

    # For its user

    async def ask(self, request: Buffers, seconds: float, on_wait: Callable[[], None] = do_nothing) -> bytes:
        """Send a whole request, wait for the head, and return the first piece of the body, which may be empty.

        `on_wait` is called when the request was written. Raises ConnectionBroken, and ConnectionTimedOut after
        `seconds`. On every error, cancellation included, the connection is closed.
        """
        self._begin()
        assert self._transport is not None
        if len(request) == 1:
            self._transport.write(request[0])
        else:
            self._transport.writelines(request)
        self._traffic.asked.add(self)
        timer = self._loop.call_later(seconds, self._expire)
        first = None
        try:
            on_wait()
            first = await self.read()
        finally:
            timer.cancel()
            if first is None:
                self.close()
        self.answered = True
        return first

    async def read(self) -> bytes:
        """Return the next piece of the body; empty at its end. Raises ConnectionBroken."""
        pieces = self._pieces
        while not pieces:
            if self.complete:
                return b""
            if self._lost is not None:
                raise _copy_of(self._lost)
            self._waiter = self._loop.create_future()
            await self._waiter
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def fail(self, error: ConnectionBroken) -> None:
        """Close the connection with an error, which the waiting reader and all later readers get."""
        self._lost = self._lost or error
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def release(self) -> None:
        """Return the connection to the pool; close it if part of the answer is unread, so that the worker stops."""
        if self._reusable and not self._pieces and self.usable:
            self.idle_since = self._loop.time()
            self.take = None
            self._traffic.asked.discard(self)
            self._released(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection at once."""
        self.take = None  # It refers to this object; kept, it would be a reference cycle.
        self._traffic.asked.discard(self)
        self._lost = self._lost or ConnectionBroken("closed")
        if self._transport is not None:
            self._transport.abort()

    @property
    def awaited(self) -> bool:
        """Whether a reader waits for bytes of the worker."""
        return self._waiter is not None

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._lost is None and self._transport is not None and not self._transport.is_closing()

    def _taken(self) -> bool:
        """Offer what has arrived to `take`, and return whether it was taken."""
        pieces = self._pieces
        assert self.take is not None
        if self.complete or not pieces or not self.take(b"".join(pieces)):
            return False
        pieces.clear()
        self._buffered = 0
        self.taken_at = self._loop.time()
        return True

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _expire(self) -> None:
        self.fail(ConnectionTimedOut("no first byte in time"))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass.

    def data_received(self, data: bytes) -> None:
        """Feed bytes to the parser, and stop reading while too many are unread."""
        if self.complete:
            self.fail(ConnectionBroken("bytes after the end of an answer"))
            return
        assert self._parser is not None
        self.nothing_received = False
        self._traffic.received += 1
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.fail(ConnectionBroken("the worker switched to another protocol"))
            return
        except HttpParserError as err:
            self._reusable = False
            if not self.complete:
                self.fail(ConnectionBroken(f"not HTTP: {err}"))
            self._wake()
            return
        if self._pieces:
            self._overhead = 0
            self._buffered += len(data)
            if self._buffered > BUFFERED_BYTES_MAX and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        else:
            self._overhead += len(data)
            if self._overhead > OVERHEAD_BYTES_MAX and not self.complete:
                self.fail(ConnectionBroken("a head without end"))
                return
        if len(self._headers) > HEADERS_MAX:
            self._reusable = self.complete = False
            self._pieces.clear()
            self.fail(ConnectionBroken("too many headers"))
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self.take is None or not self._taken()):
            self._waiter = None
            waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer, or fail it if more was to come."""
        if self._head_done and not self._sized and exc is None and self._lost is None:
            self.complete = True  # An answer without a length ends with its connection.
        self._lost = self._lost or ConnectionBroken(f"hung up{f': {exc}' if exc is not None else ''}")
        # Parser and transport refer to this object; kept, they would be a reference cycle after each disconnect.
        self._parser = self._transport = None
        self._wake()

    # httptools

    def on_message_begin(self) -> None:
        """Refuse a second answer, since the connection can no longer be trusted."""
        if self.complete:
            raise ConnectionBroken("more than one answer")

    def on_headers_complete(self) -> None:
        """Keep the status and the headers that the relay needs; an interim answer (1xx) is dropped."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self._headers.clear()
            return
        self._head_done = True
        for name, value in self._headers.items():
            name = name.lower()
            if name == b"content-type":
                kind = value.partition(b";")[0].strip().lower()
                # Parameters have no meaning for these types; for text they name the encoding.
                self.content_type = (kind if kind in PLAIN else value.strip()).decode("latin-1")
            elif name == b"retry-after":
                self.retry_after = value.decode("latin-1").strip()
            elif name == b"date":
                self.date = value.decode("latin-1").strip()
            elif name == b"content-length" or name == b"transfer-encoding":
                self._sized = True

    def on_message_complete(self) -> None:
        """Record the end of the answer; an interim answer (1xx) is followed by the real one."""
        assert self._parser is not None
        self.complete = self._head_done
        self._reusable = self._head_done and self._parser.should_keep_alive()


def _copy_of(error: ConnectionBroken) -> ConnectionBroken:
    """Return a copy to raise, because a raised error refers to its stack frames, and these to the connection."""
    return type(error)(*error.args)


class PoolTraffic:
    """The traffic of one pool: which connections are in use, and whether bytes arrive."""

    __slots__ = ("asked", "received")

    def __init__(self) -> None:
        self.asked: set[Connection] = set()
        """The connections with an outstanding or unread answer."""
        self.received = 0
        """Rises whenever bytes arrive from the worker."""

    @property
    def awaited(self) -> bool:
        """Whether any reader waits for bytes from the worker; readers that wait for slow clients do not count."""
        return any(connection.awaited for connection in self.asked)
