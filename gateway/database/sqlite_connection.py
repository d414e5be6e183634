"""SqliteConnection: a connection to SQLite with an idempotent `stop`.

When a task is cancelled, its connection is closed; if it is cancelled again meanwhile, the connection is stopped at
once. The first closing would then send a stop to an ended thread, and aiosqlite 0.22 would wait for its answer for
ever.
"""

import asyncio
import sqlite3
from typing import Any

import aiosqlite

CHUNK_ROWS = 64


class SqliteConnection(aiosqlite.Connection):
    """An aiosqlite connection with a daemon thread, which may be stopped more than once."""

    def __init__(self, file: str, **options: Any) -> None:
        super().__init__(lambda: sqlite3.connect(file, **options), CHUNK_ROWS)
        # The process may exit while the thread is still working.
        self._thread.daemon = True
        self._stop_requested = False
        self._stopped: asyncio.Future[Any] | None = None

    @property
    def works(self) -> bool:
        """Whether the connection may still be opened or used, since its thread has not ended."""
        return self._thread.ident is None or self._thread.is_alive()

    async def closed(self, seconds: float) -> None:
        """Close the connection if it is open still, and wait until its thread has ended, for so long at most."""
        if self._thread.is_alive():
            self.stop()
            await asyncio.to_thread(self._thread.join, seconds)

    def stop(self) -> "asyncio.Future[Any] | None":
        """Stop the connection at the first call, and return the same future at every call."""
        if not self._stop_requested:
            self._stop_requested = True
            self._stopped = super().stop()
        return self._stopped
