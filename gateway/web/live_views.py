"""Views of the operators' listener, each as one JSON answer or as a stream of server-sent events.

    GET ...                               one answer
    GET ...  Accept: text/event-stream    an event with the present answer, and one after each change

All streams of one URL share one answer, which is computed once per refresh interval, and only while a stream
watches the URL. A stream ends after some minutes, so that its caller is authorized again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec
from aiohttp import web

from gateway.adminapi.problems import Problem, database_problem
from gateway.database.database import DatabaseDown
from gateway.web.console import SECURITY_HEADERS
from gateway.web.middleware.error_middleware import Handler

View = Callable[[Mapping[str, str]], Awaitable[object]]
"""Returns the view for these query parameters. Raises Problem."""

EVENT_STREAM = "text/event-stream"
STREAMS_MAX = 64
REFRESH_SECONDS = 2.0
STREAM_SECONDS_MAX = 300.0
SILENCE_SECONDS_MAX = 15.0
"""After this long without a change a comment is sent, to find out whether the client is still connected."""
WRITE_SECONDS_MAX = 10.0
RETRY = b"retry: 2000\n\n"


class LiveView:
    """The encoded answer of one view, for all streams that watch it."""

    def __init__(self, compute: Callable[[], Awaitable[object]], refresh_seconds: float) -> None:
        self.watchers = 0
        self._compute = compute
        self._refresh_seconds = refresh_seconds
        self._lock = asyncio.Lock()
        self._computed_at: float | None = None
        self._body = b""

    async def body(self) -> bytes:
        """Return the answer as JSON, not older than the refresh interval."""
        async with self._lock:
            now = time.monotonic()
            if self._computed_at is None or now - self._computed_at >= 0.9 * self._refresh_seconds:
                self._body = msgspec.json.encode(await self._compute(), enc_hook=str)
                self._computed_at = time.monotonic()
        return self._body


class LiveViews:
    """Serves views, and the streams that watch them; `close` ends all streams."""

    def __init__(self, *, streams_max: int = STREAMS_MAX) -> None:
        self._streams_max = streams_max
        self._streams = 0
        self._watched: dict[str, LiveView] = {}
        self._closing = asyncio.Event()

    @property
    def watched(self) -> int:
        """The number of different views that streams watch."""
        return len(self._watched)

    def handler(self, view: View, refresh_seconds: float = REFRESH_SECONDS) -> Handler:
        """Return the handler that answers with a view, or streams it."""

        async def answer(http: web.Request) -> web.StreamResponse:
            if EVENT_STREAM in http.headers.get("Accept", ""):
                return await self._stream(http, view, refresh_seconds)
            return web.Response(
                body=msgspec.json.encode(await view(http.query), enc_hook=str),
                content_type="application/json",
                headers=SECURITY_HEADERS,
            )

        return answer

    async def close(self, _: web.Application | None = None) -> None:
        """End all streams."""
        self._closing.set()

    async def _stream(self, http: web.Request, view: View, refresh_seconds: float) -> web.StreamResponse:
        """Stream the view until the client leaves or the stream is old. Raises Problem."""
        if self._streams >= self._streams_max or self._closing.is_set():
            raise Problem(503, "Too many pages are being watched at this gateway.", {"retry-after": "10"})
        address, parameters = http.path_qs, http.query
        watched = self._watched.get(address)
        if watched is None:
            watched = self._watched[address] = LiveView(partial(view, parameters), refresh_seconds)
        self._streams += 1
        watched.watchers += 1
        try:
            return await self._send(http, watched, refresh_seconds)
        finally:
            self._streams -= 1
            watched.watchers -= 1
            if not watched.watchers:
                del self._watched[address]

    async def _send(self, http: web.Request, watched: LiveView, refresh_seconds: float) -> web.StreamResponse:
        body = await watched.body()  # Before the headers, so that a problem is answered with its own status.
        response = web.StreamResponse(headers={**SECURITY_HEADERS, "x-accel-buffering": "no"})
        response.content_type, response.charset = EVENT_STREAM, "utf-8"
        await response.prepare(http)
        began = sent_at = time.monotonic()
        with suppress(ConnectionResetError, TimeoutError):  # The client has left, or reads nothing.
            await _write(response, RETRY + _event(body))
            while not self._closing.is_set() and time.monotonic() - began < STREAM_SECONDS_MAX:
                with suppress(TimeoutError):
                    async with asyncio.timeout(refresh_seconds):
                        await self._closing.wait()
                before = body
                try:
                    body = await watched.body()
                except (Problem, DatabaseDown) as err:
                    problem = err if isinstance(err, Problem) else database_problem(err)
                    await _write(response, b"event: problem\n" + _event(msgspec.json.encode(problem.detail)))
                    break
                if body != before:
                    await _write(response, _event(body))
                elif time.monotonic() - sent_at < SILENCE_SECONDS_MAX:
                    continue
                else:
                    await _write(response, b":\n\n")
                sent_at = time.monotonic()
        return response


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write to the stream. Raises ConnectionResetError, TimeoutError."""
    async with asyncio.timeout(WRITE_SECONDS_MAX):
        await response.write(data)
