"""The connections to one worker: opened when none is idle, and kept open for a while.

    pool.send(request) --> Connection: head, then pieces of the body as they arrive --> back to the pool, or closed

The pool does not limit the connections in use; each request has one. It keeps up to IDLE_CONNECTIONS_MAX idle ones.
Whether a connection may be kept after an answer is decided by `release` of connection.py.

A connection that died in the pool fails no request: if a reused connection breaks before a byte has come back, the
request is sent once more on a new one. (Workers close idle connections after seconds; the pool closes them
earlier.)
"""

import asyncio
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from workers.adapter import TlsFiles
from workers.adapters.body_buffers import Buffers
from workers.adapters.client_tls import ClientTls
from workers.adapters.connection import (
    Connection,
    ConnectionAbandoned,
    ConnectionBroken,
    ConnectionTimedOut,
    PoolTraffic,
    do_nothing,
)
from workers.system_error import reason_of

CONNECT_SECONDS_MAX = 3.0
KEEPALIVE_SECONDS = 4.0
"""How long an idle connection is kept: less than the five seconds after which uvicorn-based engines close it."""

IDLE_CONNECTIONS_MAX = 512


class ConnectionPool:
    """The connections to one worker, opened when none is idle and kept open for a while."""

    def __init__(self, url: str, files: TlsFiles | None = None) -> None:
        """Make a pool for a worker's URL. Raises OSError (including ssl.SSLError) for unusable TLS files."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ClientTls(files or TlsFiles()) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls is not None else 80)
        self.plain_address = (self._host, self._port) if self._tls is None else None
        """Host and port of a worker without TLS, which a carrier may call; None with TLS."""
        self._idle: deque[Connection] = deque()
        self.traffic = PoolTraffic()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self.host = parts.netloc.rpartition("@")[2]
        self.base = parts.path.rstrip("/")

    async def send(
        self,
        request: Buffers,
        first_byte_seconds_max: float,
        on_sent: Callable[[], None] = do_nothing,
        on_wait: Callable[[], None] = do_nothing,
    ) -> tuple[Connection, bytes]:
        """Send a request, read the head of the answer, and return the connection and the first piece of the body.

        `on_sent` is called when there is a connection; `on_wait` when the request was written to it, or while it is
        opened. Raises ConnectionBroken, ConnectionTimedOut. On every error, cancellation included, the connection
        is closed.
        """
        idle = self._take()
        if idle is not None:
            on_sent()
            try:
                return idle, await idle.ask(request, first_byte_seconds_max, on_wait)
            except (ConnectionTimedOut, ConnectionAbandoned):
                raise
            except ConnectionBroken:
                # Only once, on a new connection; a request that kills its worker would otherwise try all idle ones.
                if not idle.nothing_received:
                    raise
        else:
            on_wait()
        connection = await self._open()
        on_sent()
        return connection, await connection.ask(request, first_byte_seconds_max)

    def abandon(self) -> None:
        """Fail every request that waits for a first byte with ConnectionAbandoned."""
        for connection in list(self.traffic.asked):
            if not connection.answered:
                connection.fail(ConnectionAbandoned("the worker is down"))

    def break_off(self) -> None:
        """Fail every request, including those with a started answer."""
        self.abandon()
        for connection in list(self.traffic.asked):
            connection.fail(ConnectionTimedOut("the worker has stalled"))

    def close(self) -> None:
        """Close the idle connections; one in use is closed when its answer ends."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                tls = self._tls.context() if self._tls is not None else None
                _, connection = await loop.create_connection(
                    lambda: Connection(self._keep, self.traffic), self._host, self._port, ssl=tls
                )
        except TimeoutError as err:
            raise ConnectionBroken(f"cannot connect within {CONNECT_SECONDS_MAX:g} seconds") from err
        except OSError as err:
            raise ConnectionBroken(f"cannot connect: {reason_of(err)}") from err
        except UnicodeError as err:
            raise ConnectionBroken(f"cannot connect: {self._host!r} is no name of a host") from err
        return connection

    def _keep(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.close()
            return
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections that were idle for too long, and check again later while any is idle."""
        loop = asyncio.get_running_loop()
        while self._idle and loop.time() - self._idle[0].idle_since >= KEEPALIVE_SECONDS:
            self._idle.popleft().close()
        self._sweep = loop.call_later(KEEPALIVE_SECONDS / 2, self._close_idle) if self._idle else None
