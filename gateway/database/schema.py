"""The version of the tables, and their upgrade and downgrade with Alembic, one process at a time.

A gateway also serves on tables of a later version, so that a release can be rolled out and back while gateways of
the previous release continue. Migrations only add (expand). A migration that removes something (contract) names in
`NEEDS` the oldest version with code that does not need it. The table `compatibility` has the highest of these: the
oldest version with code that serves on the current tables.
"""

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, insert, inspect, select, text

from gateway.database.database import Database, DatabaseDown
from gateway.database.tables import REVISION, compatibility
from gateway.process.file_locks import lock_file

Result = TypeVar("Result")

LOCK_SECONDS_MAX = 60.0
RETRY_SECONDS = 1.0
LOCK_NUMBER = 7_264_197_001
"""The number of the advisory lock in PostgreSQL, which no other program uses."""

VERSIONS = "alembic_version"
FIRST_REVISION = "0001"
COMPATIBILITY_REVISION = "0012"
"""The first version that has the table `compatibility`: no code of an earlier one serves on later tables."""


@dataclass(frozen=True, slots=True)
class TablesVersion:
    """The version of the tables in a database."""

    revision: str | None  # None: there are no tables
    oldest_code: str | None  # the oldest version whose code serves on them; None: only that of `revision`

    @property
    def serves(self) -> bool:
        """Whether this radixgate serves on these tables."""
        if self.revision == REVISION:
            return True
        newer = self.revision is not None and self.revision > REVISION
        return newer and self.oldest_code is not None and self.oldest_code <= REVISION

    def problem(self) -> str:
        """Return why this radixgate does not serve on these tables, and what to do."""
        if self.revision is not None and self.revision > REVISION:
            return (
                f"its tables are of version {self.revision}, not {REVISION}, by another version of radixgate: with "
                f"that one run `radixgate database downgrade --to {REVISION}`"
            )
        return (
            f"its tables are of version {self.revision or 'none'}, not {REVISION}: "
            "run `radixgate database upgrade`"
        )


async def wait_until_reachable(database: Database, seconds_max: float) -> None:
    """Wait until the database answers. Raises DatabaseDown if it does not within this time."""
    until = time.monotonic() + seconds_max
    while True:
        try:
            await tables_version(database)
            return
        except DatabaseDown:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def tables_version(database: Database) -> TablesVersion:
    """Return the version of the tables. Raises DatabaseDown."""
    if not database.exists:
        return TablesVersion(None, None)
    async with database.begin() as connection:
        return await connection.run_sync(version_in)


async def current_revision(database: Database) -> str | None:
    """Return the version of the tables; None if there are none. Raises DatabaseDown."""
    return (await tables_version(database)).revision


async def upgrade(database: Database, to: str = REVISION) -> None:
    """Upgrade the tables to a version, by default the newest, if they are older. Raises DatabaseDown.

    Later tables are left alone if this radixgate serves on them.
    """
    await change_tables(database, lambda connection: _upgrade(connection, to))


async def downgrade(database: Database, to: str) -> str:
    """Downgrade the tables to an earlier version, and return the version they had. Raises DatabaseDown."""
    found = await current_revision(database)
    if found is None or found < to:
        raise DatabaseDown(f"its tables are of version {found or 'none'}, which is not later than {to}")
    await change_tables(database, lambda connection: migrate(connection, to))
    return found


async def has_tables(database: Database) -> bool:
    """Return whether there are tables; a SQLite file has none before something is stored. Raises DatabaseDown."""
    if not database.has_tables:
        database.has_tables = await current_revision(database) is not None
    return database.has_tables


async def ensure_tables(database: Database) -> None:
    """Make the SQLite file with its tables if it does not exist. Raises DatabaseDown."""
    if not await has_tables(database) and database.file is not None:
        await _import_alembic()
        # A request that is cancelled meanwhile must not leave half-made tables to other requests.
        await asyncio.shield(upgrade(database))


async def ensure_current(database: Database, *, upgrades: bool) -> None:
    """Check that this radixgate serves on the tables, and upgrade them if `upgrades` allows it.

    Raises DatabaseDown.
    """
    found = await tables_version(database)
    if found.serves:
        return
    if not upgrades:
        raise DatabaseDown(found.problem())
    await _import_alembic()
    await upgrade(database)


async def _import_alembic() -> None:
    """Import Alembic in a thread: that takes long enough to delay the streams of other requests."""
    await asyncio.to_thread(importlib.import_module, "alembic.command")


def version_in(connection: Connection) -> TablesVersion:
    """Return the version of the tables as a transaction reads it."""
    tables = inspect(connection).get_table_names()
    if VERSIONS not in tables:
        return TablesVersion(None, None)
    revision = connection.execute(text(f"SELECT version_num FROM {VERSIONS}")).scalar()  # nosec B608
    oldest = None
    if compatibility.name in tables:
        oldest = connection.execute(select(compatibility.c.oldest_code)).scalar()
    return TablesVersion(revision, oldest)


async def change_tables(database: Database, change: Callable[[Connection], Result]) -> Result:
    """Run `change` in one transaction, while no other process changes the tables, and return its result.

    A SQLite file is created if it is missing. Raises DatabaseDown.
    """
    if database.file is not None:
        database.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        database.file.touch(mode=0o600)  # SQLite gives its other files the same mode.
    async with _upgrade_lock(database), database.begin(writes=True) as connection:
        if database.file is None:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": LOCK_NUMBER})
        return await connection.run_sync(change)


def migrate(connection: Connection, to: str) -> None:
    """Upgrade or downgrade the tables inside a transaction, and store which code serves on the result.

    Raises DatabaseDown.
    """
    found = version_in(connection).revision
    if found == to:
        return
    # Imported only where there is something to change: that takes longer than everything else here.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        scripts = ScriptDirectory.from_config(config)
        for revision in (to, found) if found is not None else (to,):
            scripts.get_revision(revision)
        step = command.upgrade if found is None or found < to else command.downgrade
        step(config, to)
    except CommandError as err:
        raise DatabaseDown(f"its tables are of another version of radixgate ({found}): {err}") from err
    _store_compatibility(connection, scripts, to)


def _upgrade(connection: Connection, to: str) -> None:
    found = version_in(connection)
    if to == REVISION and found.serves:
        return
    if found.revision is not None and found.revision > to:
        raise DatabaseDown(found.problem())
    migrate(connection, to)


def _store_compatibility(connection: Connection, scripts: Any, revision: str) -> None:
    if revision < COMPATIBILITY_REVISION:
        return
    needs = [
        getattr(script.module, "NEEDS", FIRST_REVISION)
        for script in scripts.walk_revisions()
        if script.revision <= revision
    ]
    connection.execute(delete(compatibility))
    connection.execute(insert(compatibility).values(id=1, oldest_code=max(needs)))


@asynccontextmanager
async def _upgrade_lock(database: Database) -> AsyncIterator[None]:
    """Keep other processes of this machine out while a SQLite file is upgraded.

    PostgreSQL has a lock of its own.
    """
    if database.file is None:
        yield
        return
    lock, until = database.file.with_name(f"{database.file.name}.lock"), time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            held = lock_file(lock)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise DatabaseDown(
                    f"another process has been upgrading it for {LOCK_SECONDS_MAX:g} seconds"
                ) from None
            await asyncio.sleep(0.05)
        except OSError as err:
            raise DatabaseDown(f"{lock} cannot be made: {err.strerror}") from err
    try:
        yield
    finally:
        held.close()
