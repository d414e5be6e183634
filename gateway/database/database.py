"""Database: where it is, and connections to it. SQLite through aiosqlite, PostgreSQL through asyncpg.

A SQLite file that is not there holds nothing: it is made by the first command that has something to keep.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from gateway.database.sqlite_connection import SqliteConnection
from gateway.settings.database_address import sqlite_file

CONNECT_SECONDS_MAX = 3.0
STATEMENT_SECONDS_MAX = 10.0
CONNECTIONS_MAX = 4

_WRITES = "radixgate_writes"

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}


class DatabaseDown(Exception):
    """It cannot be reached, or does not do what it is asked."""


class DatabaseConflict(Exception):
    """What is there already, or refers to what is not there, keeps the change from being made."""


class Database:
    """`url`: as in the settings, other than `none`. `base`: where a relative SQLite path begins.

    Nothing is connected yet. `has_tables`: see schema.there. Raises DatabaseDown where the driver is not installed.
    """

    def __init__(self, url: str, base: Path) -> None:
        self.has_tables = False
        parts = make_url(url)
        self.file = sqlite_file(url, base)
        if self.file is not None:
            parts = parts.set(database=str(self.file))
        try:
            self._engine = create_async_engine(
                parts.set(drivername=_DRIVERS[parts.drivername]), **self._options(parts)
            )
        except ModuleNotFoundError as err:
            raise DatabaseDown(f"{err.name} is not installed; pip install 'radixgate[postgres]'") from err
        self._writing = self._engine.execution_options(**{_WRITES: True})
        if self.file is not None:
            event.listen(self._engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(self._engine.sync_engine, "begin", _begin_sqlite)
            for closing in ("close", "close_detached"):
                event.listen(self._engine.sync_engine, closing, _roll_back_sqlite)

    @property
    def exists(self) -> bool:
        """False: there is nothing in it, not even tables."""
        return self.file is None or self.file.exists()

    @asynccontextmanager
    async def begin(self, *, writes: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction. `writes`: it reads first and writes then. Raises DatabaseDown, DatabaseConflict."""
        try:
            async with (self._writing if writes else self._engine).begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as err:
            raise translate_error(err) from err

    async def close(self) -> None:
        await self._engine.dispose()

    def _options(self, parts: URL) -> dict[str, Any]:
        options: dict[str, Any] = {"pool_size": CONNECTIONS_MAX, "max_overflow": 0}
        options["pool_timeout"] = CONNECT_SECONDS_MAX
        # Each keeps megabytes of pages and statements: what one connection can do fills one.
        options["pool_use_lifo"] = True
        if self.file is not None:
            options["connect_args"] = {"timeout": CONNECT_SECONDS_MAX, "async_creator_fn": SqliteConnection}
        else:
            options["connect_args"] = {
                "timeout": CONNECT_SECONDS_MAX,
                "command_timeout": STATEMENT_SECONDS_MAX,
            }
            # A connection that a restart of the server has cut is noticed before it is used.
            options["pool_pre_ping"] = True
        return options


def translate_error(err: Exception) -> Exception:
    """In one line, without the statement and its values: those are nobody's business in a log."""
    cause = err.orig if isinstance(err, DBAPIError) else err
    text = " ".join(str(cause).split()) or type(err).__name__
    kind = type(err).__name__
    return DatabaseConflict(text) if kind == "IntegrityError" else DatabaseDown(text)


def _prepare_sqlite(connection: Any, _: object) -> None:
    # The driver's own way of beginning transactions leaves changes of tables out of them.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "foreign_keys = ON", "busy_timeout = 3000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _roll_back_sqlite(connection: Any, *_: object) -> None:
    """Ends its transaction in its own thread, before the connection is closed there.

    Who is cancelled in the middle of a statement has its connection closed as it is. SQLite closes it for good when
    nobody has an open cursor of it any more, and those are held by what has seen the cancellation, perhaps in a
    circle: until then nobody else could write.
    """
    driver = connection.driver_connection
    if driver._connection is None:
        return

    def rolled_back(sqlite: sqlite3.Connection = driver._connection) -> None:
        with suppress(sqlite3.Error):
            sqlite.rollback()

    with suppress(RuntimeError):  # Without a loop it is the collector's, at the end of the process.
        # Nobody waits for it.
        driver._tx.put_nowait((asyncio.get_running_loop().create_future(), rolled_back))


def _begin_sqlite(connection: Any) -> None:
    # Who has read what somebody else changed meanwhile may not write any more, and is told at once that the file is
    # locked, however long it would have waited.
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
