"""Backups of the tables, restored into a database of either kind."""

import gzip
import io
import json
import secrets
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import MetaData, select, text

from gateway.database import backup, schema
from gateway.database.audit_log import AuditLog, chain_key
from gateway.database.backup import BackupInvalid, restore_backup, write_backup
from gateway.database.database import Database, DatabaseDown
from gateway.database.tables import REVISION
from gateway.database.tenant_store import TenantStore
from gateway.database.usage_store import UsageStore
from gateway.settings.tenants import ModelAccessSettings, PlanSettings, TenantSettings
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.tenant_register import TenantRegister
from tests.integration.tenants.test_tenant_database import stored
from tests.unit.gateway.database.test_usage_store import ROW

PEPPER = pepper(b"secret")
CHAIN = chain_key(b"secret")


@pytest.fixture
async def database(tables_url):
    opened = Database(tables_url, Path())
    yield opened
    await opened.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def empty(request, tmp_path):
    """A database without tables, of each kind."""
    url = f"sqlite:///{tmp_path}/restored.db"
    if request.param == "postgres":
        server, name = request.getfixturevalue("postgres"), f"restored_{secrets.token_hex(8)}"
        connection = await asyncpg.connect(server.url())
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()
        url = server.url(name)
    opened = Database(url, Path())
    yield opened
    await opened.close()


async def fill(database):
    key = new_key(PEPPER)
    store = TenantStore(database, CHAIN, "a test")
    async with store.change() as change:
        await change.put_plan(
            PlanSettings(name="gold", weight=2.5, models=ModelAccessSettings(deny=("x-*",)))
        )
        await change.put_tenant(TenantSettings(id="acme", plan="gold"))
        await change.put_key(stored(key))
    rows = [
        {**ROW, "request_id": f"r{n}", "attempt": 1, "at_ms": 10**12, "tags": {"team": "ä"} if n else None}
        for n in range(3)
    ]
    await UsageStore(database).write(rows, journal="j", position=0, end=30, now_ms=1)
    return key


async def all_rows(database):
    def read(connection):
        found = MetaData()
        found.reflect(connection)
        return {
            name: sorted(str(tuple(row)) for row in connection.execute(select(table)))
            for name, table in found.tables.items()
        }

    async with database.begin() as connection:
        return await connection.run_sync(read)


async def packed(database, **options):
    file = io.BytesIO()
    counts = await write_backup(database, file, **options)
    file.seek(0)
    return file, counts


async def test_a_restored_database_is_the_one_that_was_backed_up(database, empty):
    key = await fill(database)
    file, counts = await packed(database)
    assert counts["tenants"] == counts["keys"] == 1
    assert counts["usage"] == 3
    assert await restore_backup(empty, file) == counts
    assert await all_rows(empty) == await all_rows(database)
    directory = SqlDirectory(TenantRegister(PEPPER), TenantStore(empty), known_seconds_max=60.0)
    await directory.refresh()
    assert directory.by_key(key.text).plan.weight == 2.5
    assert (await AuditLog(empty, CHAIN).verify()).broken is None
    # Usage that a journal ships again is there already.
    assert await UsageStore(empty).position("j") == 30


async def test_a_restored_database_takes_changes(database, empty):
    await fill(database)
    file, _ = await packed(database)
    await restore_backup(empty, file)
    store = TenantStore(empty, CHAIN, "a test")
    async with store.change() as change:
        await change.put_tenant(TenantSettings(id="other"))
    assert await store.last_change() == 2
    assert (await AuditLog(empty, CHAIN).verify()).broken is None


async def test_a_backup_of_older_tables_is_restored_and_upgraded(database_url, empty):
    old = Database(database_url, Path())
    await schema.upgrade(old, "0007")
    async with old.begin(writes=True) as connection:
        await connection.execute(text("INSERT INTO plans (name, changed) VALUES ('free', 1)"))
    file, _ = await packed(old)
    await old.close()
    await schema.upgrade(empty)
    await restore_backup(empty, file)
    assert await schema.current_revision(empty) == REVISION
    assert [plan.name for plan in await TenantStore(empty).stored_plans()] == ["free"]


async def test_what_clients_have_stored_is_left_out_unless_an_option_includes_it(database, empty):
    async with database.begin(writes=True) as connection:
        await connection.execute(
            text("INSERT INTO response_events (response, number, count, text) VALUES ('r', 1, 1, 'a prompt')")
        )
    plain, counts = await packed(database)
    assert b"a prompt" not in gzip.decompress(plain.read())
    assert "response_events" not in counts
    file, counts = await packed(database, stored=True)
    assert counts["response_events"] == 1
    assert await restore_backup(empty, file) == counts


async def test_a_database_with_data_is_not_overwritten(database):
    await fill(database)
    file, _ = await packed(database)
    before = await all_rows(database)
    with pytest.raises(BackupInvalid, match=r"not empty \(plans: 1 rows\)"):
        await restore_backup(database, file)
    assert await all_rows(database) == before


def lines(file):
    return gzip.decompress(file.getvalue()).splitlines(keepends=True)


def of(*parts):
    return io.BytesIO(gzip.compress(b"".join(parts)))


async def test_a_file_that_is_no_whole_backup_is_refused_and_changes_nothing(database, empty):
    await fill(database)
    file, _ = await packed(database)
    whole = lines(file)
    await schema.upgrade(empty)
    before = await all_rows(empty)
    later = json.dumps({"radixgate_backup": backup.FORMAT, "revision": "9999"}).encode()
    unknown = b'{"table":"meadows","columns":["id"]}\n'
    for spoilt, why in (
        (of(*whole[:-1]), "its end is missing"),
        (of(*(line for line in whole if b'"r1"' not in line)), "another number of rows"),
        (of(whole[0], b"[1]\n", whole[-1]), "belongs to no table"),
        (of(whole[0], unknown, whole[-1]), "'meadows' is not that of its version"),
        (of(b"{}\n"), "not a backup"),
        (of(b"nonsense\n"), "damaged"),
        (of(later), "of version 9999 of the tables"),
        (io.BytesIO(file.getvalue()[:-40]), "damaged"),
        (io.BytesIO(b"nonsense"), "damaged"),
        (io.BytesIO(b""), "not a backup"),
    ):
        with pytest.raises(BackupInvalid, match=why):
            await restore_backup(empty, spoilt)
        assert await all_rows(empty) == before


async def test_without_tables_there_is_nothing_to_back_up(empty):
    with pytest.raises(DatabaseDown, match="no tables"):
        await write_backup(empty, io.BytesIO())
