"""DirectConnection: a connection that serves plain inference requests, and leaves all others to aiohttp.

    POST /v1/chat/completions HTTP/1.1, content-length, no upgrade ...   served here, in a task
    anything else, also what is no HTTP                                  aiohttp, from the request's first byte on

Whether a request is plain is decided by its head, before anything is done about it. Once aiohttp has a request of a
connection, it has all that follow. A gateway in a cell has no such connections: there aiohttp serves all, and
gateway/web/cell_relay.py passes on what belongs to other cells. Parsing is llhttp's (package httptools).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.settings.listeners import names_loopback
from gateway.web.direct.request import NO_HEADERS, DirectHeaders, DirectRequest

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 * 1024
"""A longer head is aiohttp's, which has bounds of its own."""
NEXT_BYTES_MAX = 64 * 1024
"""Beyond this many bytes of later requests, reading pauses until the one under way is answered."""
LINGER_SECONDS = 10.0
"""How long the rest of a body may arrive that an answer has not waited for."""

LEFT_TO_AIOHTTP = frozenset(
    {
        "connection",
        "expect",
        "origin",
        "sec-fetch-site",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of requests that are not plain; `connection: keep-alive` is."""

DirectHandler = Callable[[Any], Awaitable[object]]
"""Answers a DirectRequest, or the same request of aiohttp."""


class DirectRoutes:
    """The handlers of inference requests by their exact path.

    `local_names_only`: whether the Host header has to name loopback; see foreign_pages. `answer_headers` are
    added to every answer.
    """

    def __init__(
        self,
        handlers: Mapping[str, DirectHandler],
        local_names_only: Callable[[], bool],
        answer_headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        self.local_names_only = local_names_only
        self.answer_headers = answer_headers
        self.by_path = {
            path.encode(): (
                path,
                handler,
                SimpleNamespace(route=SimpleNamespace(resource=SimpleNamespace(canonical=path))),
            )
            for path, handler in handlers.items()
        }


class DirectConnection(asyncio.Protocol):
    """One connection of a client. `inner` is aiohttp's protocol of the same connection.

    The public methods are callbacks of asyncio and httptools, and what answers are written with.
    """

    transport: asyncio.Transport | None = None
    writable: "asyncio.Future[None] | None" = None
    """Done when the client has caught up; None while it need not."""

    def __init__(self, inner: web.RequestHandler, routes: DirectRoutes, keepalive_seconds: float) -> None:
        self._inner = inner
        self._routes = routes
        self._keepalive_seconds = keepalive_seconds
        self._loop = asyncio.get_running_loop()
        self._handed_over = False
        self._head = b""
        """What has arrived of a request that is not served yet."""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        # The parser's callbacks are methods of C, which it binds once: these two objects must stay the same.
        self.on_header = self._headers.__setitem__
        self.on_body = self._pieces.append
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._request: DirectRequest | None = None
        """The request under way."""
        self._task: asyncio.Task[Any] | None = None
        self._next = b""
        """What has arrived of later requests."""
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass.
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Begin or continue a request."""
        if self._handed_over:
            self._inner.data_received(data)
        elif self._request is None:
            self._begin(data)
        else:
            missing = self._request.content.missing
            if missing:
                self._request.content.add(data[:missing])
            if len(data) > missing:
                self._keep(data[missing:])

    def eof_received(self) -> None:
        """Let the transport close."""

    def pause_writing(self) -> None:
        """Let answers wait for the client."""
        self.writable = self._loop.create_future()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Let answers continue."""
        if self.writable is not None:
            self.writable.set_result(None)
            self.writable = None
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request under way: its client has left."""
        if self._request is not None:
            self._request.transport = None
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        # These refer to this object; kept, they would be reference cycles.
        self._task = self._request = self._parser = self.transport = None
        self._inner.connection_lost(exc)

    def _begin(self, data: bytes) -> None:
        """Take more of a head, and serve the request once that is complete, or leave it to aiohttp."""
        self._head = self._head + data if self._head else data
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._hand_over()
            return
        end = self._head.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
        if end < 4 and len(self._head) < HEAD_BYTES_MAX:
            return
        found = self._plain_request(end) if end >= 4 else None
        if found is None:
            self._hand_over()
            return
        if self._timer is None:
            self._inner.keep_alive(True)  # This object has a timer of its own for idle connections.
        if found[1].content.missing:
            self._parser = HttpRequestParser(self)  # The old one waits for the rest of the body.
        self._head = b""
        self._headers.clear()
        self._pieces.clear()
        handler, self._request = found
        self._task = self._loop.create_task(self._serve(handler, self._request))

    def _plain_request(self, end: int) -> "tuple[DirectHandler, DirectRequest] | None":
        """Return the request whose head ends there, with its handler; None if it is not plain."""
        if self._parser is None or self.transport is None:
            return None  # The connection was refused.
        head = self._head
        route = self._routes.by_path.get(head[5 : head.find(b" ", 5)])
        if route is None or not head.startswith(b"POST ") or self._parser.get_http_version() != "1.1":
            return None
        headers = DirectHeaders()
        for name, value in self._headers.items():
            headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")
        # Each header has a line of its own, so that none is repeated or folded.
        if not len(headers) == len(self._headers) == head.count(b"\r\n", 0, end) - 2:
            return None
        if "connection" in headers and headers["connection"].lower() == "keep-alive":
            del headers["connection"]
        host, size = headers.get("host"), headers.get("content-length")
        if host is None or size is None or not LEFT_TO_AIOHTTP.isdisjoint(headers):
            return None
        if not names_loopback(host) and self._routes.local_names_only():
            return None  # foreign_pages.py refuses it.
        body = b"".join(self._pieces)
        missing = int(size) - len(body)
        if missing < 0 or int(size) < len(head) - end:
            return None  # Another request has come with this one.
        path, handler, match_info = route
        request = DirectRequest(path, headers, body, missing, self, match_info)
        request.answer_headers = self._routes.answer_headers
        return handler, request

    async def _serve(self, handler: DirectHandler, request: DirectRequest) -> None:
        """Answer a request by its handler, then continue with the next one, or close the connection."""
        answer = None
        try:
            await handler(request)
            answer = request.answer
        except (asyncio.CancelledError, ConnectionResetError):
            pass  # The client has left, or the gateway stops.
        except Exception:
            log.exception("a request failed in the gateway")
        transport = self.transport
        if transport is None:
            return
        if answer is None or not answer.ended or not answer.keep_alive:
            transport.close()
        if transport.is_closing():
            return
        if request.content.missing:
            await self._discard_rest(request, transport)
        else:
            self._go_on(transport)

    async def _discard_rest(self, request: DirectRequest, transport: asyncio.Transport) -> None:
        """Wait for the rest of a body that an answer has not waited for."""
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await request.content.discard()
        except TimeoutError:
            transport.close()
        else:
            self._go_on(transport)

    def _go_on(self, transport: asyncio.Transport) -> None:
        """Wait for the next request, which may have arrived."""
        self._task = self._request = None
        self._idle_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._keepalive_seconds, self._check_idle)
        data, self._next = self._next, b""
        if len(data) > NEXT_BYTES_MAX:
            transport.resume_reading()
        if data:
            self._begin(data)

    def _keep(self, data: bytes) -> None:
        """Keep bytes of later requests, and stop reading while there are many."""
        before, self._next = len(self._next), self._next + data
        if before <= NEXT_BYTES_MAX < len(self._next) and self.transport is not None:
            self.transport.pause_reading()

    def _hand_over(self) -> None:
        """Leave the request that has begun to aiohttp, and all that follow it."""
        data, self._head = self._head, b""
        self._handed_over, self._parser = True, None
        if self._timer is not None and b"\r\n\r\n" in data:
            self._timer.cancel()  # From its next answer on, aiohttp watches for an idle connection.
        self._inner.data_received(data)

    def _check_idle(self) -> None:
        """Close a connection that has been idle for too long, or has had a part of a head for so long."""
        self._timer = None
        if self.transport is None or self._request is not None:
            return
        left = self._idle_since + self._keepalive_seconds - self._loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self._timer = self._loop.call_later(left, self._check_idle)
