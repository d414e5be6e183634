"""Database: connections to SQLite through aiosqlite, or to PostgreSQL through asyncpg.

A SQLite file that does not exist counts as empty; it is created by the first command that stores something.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Table, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import QueuePool

from gateway.database.sqlite_connection import SqliteConnection
from gateway.settings.database_address import sqlite_file

CONNECT_SECONDS_MAX = 3.0
STATEMENT_SECONDS_MAX = 10.0
MAINTENANCE_SECONDS_MAX = 4 * 3600.0
"""The longest time of one statement of commands that change or copy whole tables, with millions of rows."""

CONNECTIONS_MAX = 4

CLOSE_SECONDS_MAX = 3.0
CHECKED_IN_SECONDS = 0.005
"""How often closing checks whether the connections in use have been returned."""

_WRITES = "radixgate_writes"

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}


class DatabaseDown(Exception):
    """The database cannot be reached, or cannot carry out a statement."""


class DatabaseConflict(Exception):
    """The change violates a constraint: its object exists already, or it refers to one that does not exist."""


class Database:
    """A database with a pool of connections, which are opened when they are first used.

    `url` is as in the settings, other than `none`; a relative SQLite path begins at `base`. `statement_seconds_max`
    bounds a statement of PostgreSQL. The constructor raises DatabaseDown where the driver is not installed.
    """

    def __init__(self, url: str, base: Path, statement_seconds_max: float = STATEMENT_SECONDS_MAX) -> None:
        self.has_tables = False  # set by schema.has_tables
        self._statement_seconds_max = statement_seconds_max
        parts = make_url(url)
        self.file = sqlite_file(url, base)
        self._closed = False
        self._sqlite_connections: list[SqliteConnection] = []
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
        """Whether there is a database; False: a SQLite file that was not made yet, without tables."""
        return self.file is None or self.file.exists()

    @asynccontextmanager
    async def begin(self, *, writes: bool = False) -> AsyncIterator[AsyncConnection]:
        """Open a transaction; `writes`: it reads before it writes. Raises DatabaseDown, DatabaseConflict."""
        self._check_open()
        try:
            async with (self._writing if writes else self._engine).begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as err:
            raise translate_error(err) from err

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction in which all tables stay as they are now. Raises DatabaseDown."""
        self._check_open()
        engine = self._engine
        if self.file is None:
            engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        try:
            async with engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as err:
            raise translate_error(err) from err

    async def close(self) -> None:
        """Close all connections, including those of cancelled tasks, and open no more.

        The connection of a cancelled task is returned to the pool, or closed, some time later. If the pool were
        closed by then, the connection would stay open until the garbage collector runs. Later tasks get
        DatabaseDown, because the engine would open a new pool for them.
        """
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                # The pool does not report connections that are closed instead of being returned.
                while self._checked_out():  # noqa: ASYNC110
                    await asyncio.sleep(CHECKED_IN_SECONDS)
        await self._engine.dispose()
        await asyncio.gather(*(each.closed(CLOSE_SECONDS_MAX) for each in self._sqlite_connections))

    def _check_open(self) -> None:
        """Raise DatabaseDown if the database was closed: a task that ends late would open a new connection."""
        if self._closed:
            raise DatabaseDown("the gateway shuts down")

    def _checked_out(self) -> int:
        """Return the number of connections in use."""
        pool = self._engine.pool
        return pool.checkedout() if isinstance(pool, QueuePool) else 0

    def _new_sqlite_connection(self, file: str, **options: Any) -> SqliteConnection:
        if self._closed:
            raise OSError("the database is closed")
        connection = SqliteConnection(file, **options)
        # Kept until its thread has ended; dropping the connection would leave a thread that is never joined.
        self._sqlite_connections = [each for each in self._sqlite_connections if each.works]
        self._sqlite_connections.append(connection)
        return connection

    def _options(self, parts: URL) -> dict[str, Any]:
        options: dict[str, Any] = {"pool_size": CONNECTIONS_MAX, "max_overflow": 0}
        options["pool_timeout"] = CONNECT_SECONDS_MAX
        # Each connection caches megabytes of pages and statements, so the most recently used one is used first.
        options["pool_use_lifo"] = True
        if self.file is not None:
            options["connect_args"] = {
                "timeout": CONNECT_SECONDS_MAX,
                "async_creator_fn": self._new_sqlite_connection,
            }
        else:
            options["connect_args"] = {
                "timeout": CONNECT_SECONDS_MAX,
                "command_timeout": self._statement_seconds_max,
            }
            # Notices a connection that a restart of the server has cut, before it is used.
            options["pool_pre_ping"] = True
        return options


def translate_error(err: Exception) -> Exception:
    """Return the error as DatabaseConflict or DatabaseDown with one line of text.

    The statement and its values are left out, since they do not belong in a log.
    """
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
    """Roll back in the connection's own thread, before the connection is closed there.

    A task that is cancelled in the middle of a statement has its connection closed as it is. SQLite closes a
    connection for good when no cursor of it is open any more, and cursors may be held by the frames of the
    cancelled task, perhaps in a reference cycle: until then no other connection could write.
    """
    driver = connection.driver_connection
    if driver._connection is None:
        return

    def rolled_back(sqlite: sqlite3.Connection = driver._connection) -> None:
        with suppress(sqlite3.Error):
            sqlite.rollback()

    with suppress(RuntimeError):  # Without a loop the garbage collector closes it, at the end of the process.
        # No task waits for this future.
        driver._tx.put_nowait((asyncio.get_running_loop().create_future(), rolled_back))


def _begin_sqlite(connection: Any) -> None:
    # SQLite refuses a write at once, as locked, in a transaction that has read what another one changed meanwhile,
    # however long it would have waited. So a transaction that will write takes the lock before it reads.
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def dialect_insert(dialect: str, table: Table) -> Any:
    """Return an INSERT with support for ON CONFLICT, which each database has in a dialect of its own.

    Only the dialect in use is imported: PostgreSQL's takes a part of every gateway's start.
    """
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)
