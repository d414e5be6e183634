"""The HTTP client that all adapters share: sends requests, streams answers, and maps status codes to failures.

A worker stops generating when its connection closes. Requests are therefore aborted by closing the connection, and
every early exit closes it. Connections that were read to the end go back to the pool.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from workers.adapter import (
    FailureKind,
    StreamBroken,
    WorkerAnswer,
    WorkerCall,
    WorkerFailed,
    WorkerTarget,
)
from workers.adapters.body_buffers import Buffers, total_bytes
from workers.adapters.connection import (
    Connection,
    ConnectionBroken,
    ConnectionTimedOut,
    PoolTraffic,
)
from workers.adapters.connection_pool import ConnectionPool
from workers.adapters.retry_after import retry_after_seconds
from workers.carrier import AnswerReader, RequestTransport

PROBE_SECONDS_MAX = 3.0
PROBE_BYTES_MAX = 4 * 1024**2

ERROR_SECONDS_MAX = 1.0
"""Longest wait for the body of an error response."""
ERROR_BYTES_MAX = 16 * 1024

TOO_MANY_REQUESTS = 429

BUSY_STATUSES = frozenset({TOO_MANY_REQUESTS, 503, 529})
"""The worker is full or starting, but healthy; another may have room. Some providers send 529."""

PROXY_ERROR_STATUSES = frozenset({502, 504})
"""A proxy between gateway and engine reports that the engine does not answer."""

REFUSAL_STATUSES = frozenset({400, 404, 413, 422})
"""The request itself is wrong, so another worker would answer the same; the response goes to the client."""


class PathNotFound(WorkerFailed):
    """The worker does not have this path (404), because it is an older version or of another kind."""


class HttpWorker:
    """One worker over HTTP: its address, its credentials, and the connections to it."""

    def __init__(self, target: WorkerTarget) -> None:
        self._pool = ConnectionPool(target.url, target.tls)
        self.host = urlsplit(target.url).hostname or "127.0.0.1"
        """Its host name, without the port."""
        self._headers = f"Host: {self._pool.host}\r\nAccept-Encoding: identity\r\n"
        if target.api_key is not None:
            self._headers += f"Authorization: Bearer {target.api_key}\r\n"
        self._headers += "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())

    def stream(
        self, call: WorkerCall, body: Buffers, headers: str = "", content_type: str = "application/json"
    ) -> "HttpCall":
        """Prepare a POST of the body; the request is sent when the result is entered, see WorkerAdapter.stream.

        `headers` are further header lines, each with its line end.
        """
        size = len(body[0]) if len(body) == 1 else total_bytes(body)
        head = (
            f"POST {self._pool.base}/{call.path} HTTP/1.1\r\n{self._headers}"
            f"Content-Type: {content_type}\r\nContent-Length: {size}\r\nx-request-id: {call.id}\r\n{headers}"
        )
        if call.traceparent is not None:
            head += f"traceparent: {call.traceparent}\r\n"
            if call.tracestate:
                head += f"tracestate: {call.tracestate}\r\n"
        start = head.encode("latin-1") + b"\r\n"
        # A short request is sent in one write.
        request = (start + body[0],) if len(body) == 1 else (start, *body)
        transport: RequestTransport = self._pool
        if call.carrier is not None and self._pool.plain_address is not None:
            transport = call.carrier.transport_to(*self._pool.plain_address) or transport
        return HttpCall(transport, request, call)

    async def get_json(self, path: str, kind: Any) -> Any:
        """GET a small JSON document and decode it as `kind`. Raises WorkerFailed for any other answer."""
        text = await self.get(path)
        try:
            return msgspec.json.decode(text, type=kind) if kind is not None else None
        # Text that is not UTF-8, and deep nesting, raise errors of their own.
        except (msgspec.DecodeError, UnicodeError, RecursionError) as err:
            raise WorkerFailed(f"/{path}: not the JSON that was expected: {err}") from err

    async def get(self, path: str) -> bytes:
        """GET a document of at most PROBE_BYTES_MAX. Raises WorkerFailed unless the status is 200."""
        request = (self._head("GET", path) + "\r\n").encode("latin-1")
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                status, text = await self._whole((request,), PROBE_SECONDS_MAX, PROBE_BYTES_MAX)
        except TimeoutError as err:
            raise WorkerFailed(
                f"/{path}: no answer within {PROBE_SECONDS_MAX:g} seconds", timed_out=True
            ) from err
        except ConnectionBroken as err:
            raise WorkerFailed(f"/{path}: {err}", timed_out=isinstance(err, ConnectionTimedOut)) from err
        if status != 200:
            raise (PathNotFound if status == 404 else WorkerFailed)(
                f"status {status} from /{path}", rate_limited=status == TOO_MANY_REQUESTS
            )
        return text

    async def post(self, path: str, body: bytes, seconds_max: float, bytes_max: int) -> tuple[int, bytes]:
        """POST JSON, and return status and body of the answer. Raises WorkerFailed."""
        head = self._head("POST", path)
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            async with asyncio.timeout(seconds_max):
                status, text = await self._whole((head.encode("latin-1") + body,), seconds_max, bytes_max)
        except TimeoutError as err:
            raise WorkerFailed(f"/{path}: no answer within {seconds_max:g} seconds", timed_out=True) from err
        except ConnectionBroken as err:
            raise WorkerFailed(f"/{path}: {err}", timed_out=isinstance(err, ConnectionTimedOut)) from err
        if len(text) > bytes_max:
            raise WorkerFailed(f"/{path}: the answer is too large")
        return status, text

    async def post_command(self, path: str, seconds_max: float) -> None:
        """POST a command without arguments. Raises WorkerFailed unless the status is 200."""
        status, _ = await self.post(path, b"{}", seconds_max, PROBE_BYTES_MAX)
        if status != 200:
            raise WorkerFailed(f"status {status} from /{path}")

    def abandon(self) -> None:
        """Fail all requests that wait for a first byte."""
        self._pool.abandon()

    def break_off(self) -> None:
        """Fail all requests, including those with a started answer."""
        self._pool.break_off()

    @property
    def traffic(self) -> PoolTraffic:
        """The traffic with the worker."""
        return self._pool.traffic

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def _head(self, method: str, path: str) -> str:
        """Return the first lines of every request."""
        return f"{method} {self._pool.base}/{path} HTTP/1.1\r\n{self._headers}"

    async def _whole(self, request: Buffers, seconds_max: float, bytes_max: int) -> tuple[int, bytes]:
        connection, text = await self._pool.send(request, seconds_max)
        try:
            pieces, size = [text], len(text)
            while size < bytes_max and (more := await connection.read()):
                pieces.append(more)
                size += len(more)
            return connection.status, b"".join(pieces)
        finally:
            connection.release()


class HttpCall:
    """One request to a worker as a context manager, which is entered when the first bytes of the answer arrive.

    It raises what WorkerAdapter.stream raises.
    """

    __slots__ = ("_call", "_connection", "_request", "_transport")

    def __init__(self, transport: RequestTransport, request: Buffers, call: WorkerCall) -> None:
        self._transport = transport
        self._request = request
        self._call = call

    async def __aenter__(self) -> WorkerAnswer:
        call = self._call
        try:
            connection, first = await self._transport.send(
                self._request, call.first_byte_seconds_max, call.on_sent, call.on_wait
            )
        except ConnectionTimedOut as err:
            raise WorkerFailed(str(err), timed_out=True) from err
        except ConnectionBroken as err:
            raise WorkerFailed(str(err)) from err
        if (connection.status >= 300 or not first) and connection.status not in REFUSAL_STATUSES:
            text = first
            if connection.status >= 500:
                text = await _rest_of_error(connection, first)
            connection.release()
            raise (
                _failure(connection, text) if connection.status >= 300 else WorkerFailed("an empty answer")
            )
        self._connection = connection
        return HttpAnswer(connection, first, call.idle_seconds_max)

    async def __aexit__(self, *_: object) -> None:
        """Keep the connection if the answer was read to its end; else close it, which stops the worker's work."""
        self._connection.release()


class HttpAnswer(WorkerAnswer):
    """A WorkerAnswer over a connection of which the first piece has been read.

    Silence is measured only while the gateway waits for bytes, since a slow client is not the worker's fault. One
    timer watches a whole stream; it fires when the answer could be overdue, and is then set again.
    """

    def __init__(self, connection: AnswerReader, first: bytes, idle_seconds_max: float) -> None:
        self.status = connection.status
        self.content_type = connection.content_type
        self._connection = connection
        self._first = first
        self._idle_seconds_max = idle_seconds_max
        self._waiting_since: float | None = None
        self.whole = first if connection.complete else None

    @property
    def complete(self) -> bool:
        """Whether all of the body has arrived."""
        return self._connection.complete

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """Offer pieces to `take` when they arrive; see WorkerAnswer."""
        if isinstance(self._connection, Connection):
            self._connection.take = take

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces. Raises StreamBroken, also after `idle_seconds_max` of silence."""
        if self.whole is not None:
            if self.whole:
                yield self.whole
            return
        loop, read = asyncio.get_running_loop(), self._connection.read
        self._timer = loop.call_later(self._idle_seconds_max, self._watch, loop)
        chunk = self._first
        try:
            while chunk:
                yield chunk
                self._waiting_since = loop.time()
                chunk = await read()
                self._waiting_since = None
        except ConnectionBroken as err:
            raise StreamBroken(str(err)) from err
        finally:
            self._timer.cancel()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        since, silent = self._waiting_since, 0.0
        if since is not None:
            silent = loop.time() - max(since, getattr(self._connection, "taken_at", 0.0))
        if silent >= self._idle_seconds_max:
            self._connection.fail(ConnectionTimedOut("silent for too long"))
        else:
            self._timer = loop.call_later(self._idle_seconds_max - silent, self._watch, loop)


async def _rest_of_error(connection: AnswerReader, first: bytes) -> bytes:
    """Return the body of an error response, as far as it is short and arrives soon."""
    pieces, size = [first], len(first)
    try:
        async with asyncio.timeout(ERROR_SECONDS_MAX):
            while size < ERROR_BYTES_MAX and (more := await connection.read()):
                pieces.append(more)
                size += len(more)
    except (TimeoutError, ConnectionBroken):
        pass
    return b"".join(pieces)[:ERROR_BYTES_MAX]


def _failure(connection: AnswerReader, body: bytes) -> WorkerFailed:
    """Return the error for the status of an error response."""
    status = connection.status
    if status in BUSY_STATUSES:
        return WorkerFailed(
            f"status {status}",
            failure=FailureKind.BUSY,
            retry_after_seconds=retry_after_seconds(connection.retry_after, connection.date, time.time()),
            rate_limited=status == TOO_MANY_REQUESTS,
        )
    if status in PROXY_ERROR_STATUSES:
        return WorkerFailed(f"status {status}")
    return WorkerFailed(
        f"status {status}",
        failure=FailureKind.SERVER_ERROR if status >= 500 else FailureKind.REFUSED,
        body=body,
    )
