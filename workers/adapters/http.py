"""What all HTTP adapters share: connect, send, wait for the first byte, stream, hang up.

A worker stops generating when its connection closes; hanging up is therefore how a request is aborted, and every
early exit hangs up. Connections that were read to the end go back to the pool.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from workers.adapter import StreamBroken, WorkerAnswer, WorkerCall, WorkerTarget, WorkerUnreachable

CONNECT_SECONDS_MAX = 3.0
PROBE_SECONDS_MAX = 3.0
PROBE_BYTES_MAX = 4 * 1024**2

KEEPALIVE_SECONDS = 4.0
"""Shorter than the five seconds after which uvicorn-based engines close an idle connection."""

BUSY = frozenset({429, 503})
"""Full or starting: another worker may have room, and this one is not ill."""

ANSWERS = frozenset({400, 413, 422})
"""Refusals that are the client's doing: another worker would say the same."""

_LEFT_OVER = (aiohttp.ClientError, OSError)


def new_session() -> aiohttp.ClientSession:
    """A session for any number of workers: unbounded pool (admission is ours), bytes as they come."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ttl_dns_cache=10),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
        headers={"Accept-Encoding": "identity"},
    )


class HttpAnswer:
    """WorkerAnswer over a response of which the first chunk has been read.

    Silence is measured from the moment at which more is waited for: a client that reads slowly is not the worker's
    fault. One timer watches a whole stream; it looks again when the answer could be overdue.
    """

    def __init__(self, response: aiohttp.ClientResponse, first: bytes, idle_seconds_max: float) -> None:
        self.status = response.status
        self.content_type = response.content_type
        self._response = response
        self._first = first
        self._idle_seconds_max = idle_seconds_max
        self._waiting_since: float | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        loop, content = asyncio.get_running_loop(), self._response.content
        timer = loop.call_later(self._idle_seconds_max, self._watch, loop)
        self._timer = timer
        chunk = self._first
        try:
            while chunk:
                yield chunk
                self._waiting_since = loop.time()
                chunk = await content.readany()
                self._waiting_since = None
        except _LEFT_OVER as err:
            raise StreamBroken(f"{type(err).__name__}: {err}") from err
        finally:
            self._timer.cancel()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        since = self._waiting_since
        silent = loop.time() - since if since is not None else 0.0
        if silent >= self._idle_seconds_max:
            self._response.content.set_exception(aiohttp.SocketTimeoutError("silent for too long"))
        else:
            self._timer = loop.call_later(self._idle_seconds_max - silent, self._watch, loop)


@asynccontextmanager
async def open_stream(
    session: aiohttp.ClientSession, target: WorkerTarget, call: WorkerCall, body: bytes
) -> AsyncIterator[WorkerAnswer]:
    """POSTs the body and yields the answer once its first bytes are there."""
    headers = {"Content-Type": "application/json", "x-request-id": call.id, **credentials(target)}
    if call.traceparent is not None:
        headers["traceparent"] = call.traceparent
    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS_MAX, sock_read=call.first_byte_seconds_max)
    response: aiohttp.ClientResponse | None = None
    try:
        try:
            response = await session.post(
                f"{target.url}/{call.path}",
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            )
            if response.status >= 300 and response.status not in ANSWERS:
                raise WorkerUnreachable(f"status {response.status}", blame=_is_ill(response.status))
            first = await response.content.readany()
        except aiohttp.SocketTimeoutError as err:
            raise WorkerUnreachable("no first byte in time", timed_out=True) from err
        except (*_LEFT_OVER, TimeoutError) as err:
            raise WorkerUnreachable(f"{type(err).__name__}: {err}") from err
        if not first:
            raise WorkerUnreachable("an empty answer")
        _end_of_first_wait(response)
        yield HttpAnswer(response, first, call.idle_seconds_max)
    finally:
        # Read to its end, the connection has gone back to the pool already; else this hangs up.
        if response is not None:
            response.close()


async def get_json(session: aiohttp.ClientSession, target: WorkerTarget, path: str, kind: Any) -> Any:
    """One small GET for probes, decoded as `kind`. Raises WorkerUnreachable for anything but a 200 that fits."""
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            async with session.get(f"{target.url}/{path}", headers=credentials(target)) as response:
                if response.status != 200:
                    raise WorkerUnreachable(f"status {response.status} from /{path}")
                text = await response.content.read(PROBE_BYTES_MAX)
                return msgspec.json.decode(text, type=kind) if kind is not None else None
    except (*_LEFT_OVER, TimeoutError, msgspec.DecodeError) as err:
        raise WorkerUnreachable(f"/{path}: {type(err).__name__}: {err}") from err


def credentials(target: WorkerTarget) -> dict[str, str]:
    """Headers that let us in."""
    return {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}


def _is_ill(status: int) -> bool:
    return status >= 500 and status not in BUSY


def _end_of_first_wait(response: aiohttp.ClientResponse) -> None:
    """The bound on the first byte does not go on for the others: it would set a timer at every read."""
    connection = response.connection
    if connection is not None and connection.protocol is not None:
        connection.protocol.read_timeout = None
        connection.protocol.start_timeout()
