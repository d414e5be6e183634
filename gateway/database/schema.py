"""The version of the tables, and their upgrade with Alembic, one process at a time."""

import asyncio
import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from gateway.database.database import Database, DatabaseDown
from gateway.database.tables import REVISION
from gateway.process.file_locks import lock_file

LOCK_SECONDS_MAX = 60.0
LOCK_NUMBER = 7_264_197_001
"""The number of the advisory lock in PostgreSQL, which no other program uses."""

VERSIONS = "alembic_version"


async def current_revision(database: Database) -> str | None:
    """Return the version of the tables; None if there are none. Raises DatabaseDown."""
    if not database.exists:
        return None
    async with database.begin() as connection:
        return await connection.run_sync(_revision)


async def upgrade(database: Database) -> None:
    """Upgrade the tables to the newest version, if they are older. Raises DatabaseDown."""
    if database.file is not None:
        database.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        database.file.touch(mode=0o600)  # SQLite gives its other files the same mode.
    async with _upgrade_lock(database), database.begin(writes=True) as connection:
        if database.file is None:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": LOCK_NUMBER})
        await connection.run_sync(_upgrade)


async def has_tables(database: Database) -> bool:
    """Return whether there are tables; a SQLite file has none before something is stored. Raises DatabaseDown."""
    if not database.has_tables:
        database.has_tables = await current_revision(database) is not None
    return database.has_tables


async def ensure_tables(database: Database) -> None:
    """Make the SQLite file with its tables if it does not exist. Raises DatabaseDown."""
    if not await has_tables(database) and database.file is not None:
        # Importing Alembic takes long enough to delay the streams of other requests.
        await asyncio.to_thread(importlib.import_module, "alembic.command")
        # A request that is cancelled meanwhile must not leave half-made tables to other requests.
        await asyncio.shield(upgrade(database))


async def ensure_current(database: Database, *, upgrades: bool) -> None:
    """Check that the tables are of this version, and upgrade them if `upgrades` allows it. Raises DatabaseDown."""
    found = await current_revision(database)
    if found != REVISION and upgrades:
        await upgrade(database)
    elif found != REVISION:
        raise DatabaseDown(
            f"its tables are of version {found or 'none'}, not {REVISION}: run `radixgate database upgrade`"
        )


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSIONS):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSIONS}")).scalar()  # nosec B608


def _upgrade(connection: Connection) -> None:
    found = _revision(connection)
    if found == REVISION:
        return
    # Imported only where there is something to upgrade: that takes longer than everything else here.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        if found is not None:
            ScriptDirectory.from_config(config).get_revision(found)
        command.upgrade(config, "head")
    except CommandError as err:
        raise DatabaseDown(f"its tables are of another version of radixgate ({found}): {err}") from err


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
