"""Versions of the tables: each migration adds only, can be undone, and leaves older code serving."""

from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Boolean, Float, Integer, MetaData, insert, inspect, select, text

from gateway.database import schema
from gateway.database.database import Database, DatabaseDown
from gateway.database.schema import FIRST_REVISION
from gateway.database.tables import REVISION
from gateway.database.tenant_store import TenantStore
from gateway.database.usage_store import UsageStore
from gateway.settings.tenants import TenantSettings
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.tenant_register import TenantRegister
from tests.integration.tenants.test_tenant_database import stored
from tests.unit.gateway.database.test_usage_store import ROW

MIGRATIONS = Path(schema.__file__).parent / "migrations"


def revisions():
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return sorted(script.revision for script in ScriptDirectory.from_config(config).walk_revisions())


STEPS = list(zip(revisions(), revisions()[1:], strict=False))
USED = {**ROW, "request_id": "r1", "attempt": 1, "at_ms": 10**12}
EVERY_STEP = pytest.mark.parametrize(("before", "after"), STEPS, ids=[after for _, after in STEPS])


@pytest.fixture
async def database(database_url):
    opened = Database(database_url, Path())
    yield opened
    await opened.close()


async def reflected(database):
    """Every table as the database has it, but those that the migrations keep for themselves."""

    def read(connection):
        found = MetaData()
        found.reflect(connection)
        for name in (schema.VERSIONS, "compatibility"):
            if name in found.tables:
                found.remove(found.tables[name])
        return found

    async with database.begin() as connection:
        return await connection.run_sync(read)


async def outline(database):
    """Tables, columns, indexes and constraints, in a form that can be compared."""

    def read(connection):
        eye = inspect(connection)
        return {
            name: (
                {c["name"]: (str(c["type"]), c["nullable"]) for c in eye.get_columns(name)},
                sorted(str(i["column_names"]) + str(bool(i["unique"])) for i in eye.get_indexes(name)),
                sorted(str(f["constrained_columns"]) for f in eye.get_foreign_keys(name)),
                sorted(str(u["column_names"]) for u in eye.get_unique_constraints(name)),
            )
            for name in sorted(eye.get_table_names())
        }

    async with database.begin() as connection:
        return await connection.run_sync(read)


def example(column, number):
    """A value of the column's type."""
    if column.foreign_keys:
        return None
    if isinstance(column.type, Boolean):
        return False
    if isinstance(column.type, Float):
        return 1.5
    if isinstance(column.type, Integer):
        return number
    if isinstance(column.type, JSON):
        return {"a": 1}
    return f"{column.name}-{number}"[: column.type.length or 100]


async def write_rows(database, tables, number):
    """Write one row into each table as code with these tables does: with all columns that it knows."""
    async with database.begin(writes=True) as connection:
        for table in tables.sorted_tables:
            values = {column.name: example(column, number) for column in table.columns}
            if table.name == "keys":
                # The key of the tenant's row that was written before.
                values["tenant"] = f"id-{number}"
            await connection.execute(insert(table).values(values))


async def read_rows(database, tables):
    """Every row of every table, by the columns that these tables have."""
    async with database.begin() as connection:
        return {
            table.name: sorted(map(str, (await connection.execute(select(table))).all()))
            for table in tables.sorted_tables
        }


@EVERY_STEP
async def test_code_of_the_version_before_serves_on_the_next_tables(database, before, after):
    await schema.upgrade(database, before)
    older = await reflected(database)
    await write_rows(database, older, 7)
    rows = await read_rows(database, older)
    await schema.upgrade(database, after)
    assert await read_rows(database, older) == rows
    await write_rows(database, older, 8)
    assert {name: len(found) for name, found in (await read_rows(database, older)).items()} == {
        name: len(found) + 1 for name, found in rows.items()
    }


@EVERY_STEP
async def test_a_downgrade_gives_the_tables_and_rows_of_the_version_before(database, before, after):
    await schema.upgrade(database, before)
    older, tables = await reflected(database), await outline(database)
    await write_rows(database, older, 7)
    rows = await read_rows(database, older)
    await schema.upgrade(database, after)
    assert await schema.downgrade(database, before) == after
    assert await outline(database) == tables
    assert await read_rows(database, older) == rows
    assert await schema.current_revision(database) == before
    await schema.upgrade(database)
    assert await schema.current_revision(database) == REVISION


async def test_all_tables_can_be_downgraded_to_the_first_and_upgraded_again(database):
    await schema.upgrade(database)
    newest = await outline(database)
    await schema.downgrade(database, FIRST_REVISION)
    await schema.upgrade(database)
    assert await outline(database) == newest


async def of_a_later_version(database, oldest_code=REVISION):
    """Change the tables as the next release would: one column, one table and one index more."""
    await schema.upgrade(database)
    async with database.begin(writes=True) as connection:
        for statement in (
            "ALTER TABLE tenants ADD COLUMN colour VARCHAR(16)",
            'ALTER TABLE "usage" ADD COLUMN energy BIGINT DEFAULT 0 NOT NULL',
            "CREATE TABLE meadows (id INTEGER PRIMARY KEY)",
            "CREATE INDEX ix_keys_name ON keys (name)",
            "UPDATE alembic_version SET version_num = '9999'",
            f"UPDATE compatibility SET oldest_code = '{oldest_code}'",
        ):
            await connection.execute(text(statement))


@pytest.mark.parametrize("upgrades", [True, False])
async def test_a_gateway_serves_on_tables_of_the_next_release(database, upgrades):
    await of_a_later_version(database)
    store, key = TenantStore(database), new_key(pepper(b"secret"))
    await schema.ensure_current(database, upgrades=upgrades)
    async with store.change() as change:
        await change.put_tenant(TenantSettings(id="acme"))
        await change.put_key(stored(key))
    directory = SqlDirectory(
        TenantRegister(pepper(b"secret")), store, known_seconds_max=60.0, upgrades=upgrades
    )
    await directory.refresh()
    assert directory.by_key(key.text).id == "acme"
    assert await UsageStore(database).write([USED], journal="j", position=0, end=10, now_ms=1) == 1
    assert await schema.current_revision(database) == "9999"


@pytest.mark.parametrize("upgrades", [True, False])
async def test_a_gateway_refuses_later_tables_that_took_away_what_it_needs(database, upgrades):
    await of_a_later_version(database, oldest_code="9998")
    with pytest.raises(DatabaseDown, match=f"database downgrade --to {REVISION}"):
        await schema.ensure_current(database, upgrades=upgrades)


async def test_a_downgrade_to_a_version_that_is_unknown_or_later_changes_nothing(database):
    with pytest.raises(DatabaseDown, match="of version none"):
        await schema.downgrade(database, FIRST_REVISION)
    await schema.upgrade(database)
    for to in ("9999", "0000", "abc"):
        with pytest.raises(DatabaseDown):
            await schema.downgrade(database, to)
    assert await schema.current_revision(database) == REVISION


async def test_waiting_for_a_database_ends(tmp_path):
    away = Database("postgresql://nobody@127.0.0.1:1/none", tmp_path)
    with pytest.raises(DatabaseDown):
        await schema.wait_until_reachable(away, 0.0)
    await away.close()
