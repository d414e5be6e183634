"""Connections to SQLite that stop once, however often they are told to.

Whoever is cancelled has its connection closed, and who is cancelled again meanwhile has it stopped at once. The
closing then tells a thread to stop that has ended, and aiosqlite 0.22 would wait for its answer for ever.
"""

import asyncio
import sqlite3
from typing import Any

import aiosqlite

CHUNK_ROWS = 64


class SqliteConnection(aiosqlite.Connection):
    def __init__(self, file: str, **options: Any) -> None:
        super().__init__(lambda: sqlite3.connect(file, **options), CHUNK_ROWS)
        # What a thread still does is no reason for the process to stay.
        self._thread.daemon = True
        self._told_to_stop = False
        self._stopped: asyncio.Future[Any] | None = None

    def stop(self) -> "asyncio.Future[Any] | None":
        if not self._told_to_stop:
            self._told_to_stop = True
            self._stopped = super().stop()
        return self._stopped
