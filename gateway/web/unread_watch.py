"""The watch over a client that does not read its answer: after a while its connection is aborted."""

import asyncio
from collections.abc import Awaitable

from aiohttp import web


class UnreadWatch:
    """Waits for a client to read, and aborts the connection of one that has read nothing for `seconds_max`.

    One timer watches a whole answer; `close` ends it.
    """

    def __init__(self, http: web.Request, seconds_max: float) -> None:
        self._http = http
        self._seconds_max = seconds_max
        self._loop = asyncio.get_running_loop()
        self._blocked_since: float | None = None
        self._timer = self._loop.call_later(seconds_max, self._check)

    async def wait(self, writing: Awaitable[None]) -> None:
        """Wait until the socket takes what is written: a full socket means a client that does not read."""
        self._blocked_since = self._loop.time()
        try:
            await writing
        finally:
            self._blocked_since = None

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _check(self) -> None:
        """Abort the connection if the client has read nothing for too long; else check again when that could be."""
        blocked = self._loop.time() - self._blocked_since if self._blocked_since is not None else 0.0
        if blocked < self._seconds_max:
            self._timer = self._loop.call_later(self._seconds_max - blocked, self._check)
        elif self._http.transport is not None:
            # As if the client had hung up: the waiting handler is cancelled, and releases worker and quota.
            self._http.transport.abort()
