"""Tenants in a database: tables, changes, and a directory that follows them. SQLite and PostgreSQL."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from gateway.database import schema
from gateway.database.database import Database, DatabaseConflict, DatabaseDown
from gateway.database.row_conversion import StoredKey
from gateway.database.tables import REVISION, metadata
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import ApiKeySettings, ModelAccessSettings, PlanSettings, TenantSettings
from gateway.settings.types import Moment
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.sql_directory import OUTAGE_SECONDS, SqlDirectory
from gateway.tenants.tenant_register import TenantRegister

PEPPER = pepper(b"secret")


@pytest.fixture
async def database(tables_url):
    opened = Database(tables_url, Path())
    yield opened
    await opened.close()


@pytest.fixture
async def store(database):
    return TenantStore(database)


def stored(key, tenant="acme", revoked=None, **more):
    return StoredKey(
        tenant=tenant, key=ApiKeySettings(id=key.id, hash=key.hash, **more), created=1000.0, revoked=revoked
    )


async def with_key(store, key, **more):
    async with store.change() as change:
        await change.put_tenant(TenantSettings(id="acme"))
        await change.put_key(stored(key, **more))


def following(store, register=None, **more):
    # One without keys is empty, and so is as good as none to `or`.
    register = register if register is not None else TenantRegister(PEPPER)
    return SqlDirectory(register, store, **{"known_seconds_max": 60.0, **more})


async def test_migrations_make_the_tables_of_the_code(database):
    def differences(connection):
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with database.begin() as connection:
        assert await connection.run_sync(differences) == []
    assert await schema.current_revision(database) == REVISION


async def test_a_plan_has_its_share_of_the_queue_also_one_that_is_older_than_that(store, database):
    key = new_key(PEPPER)
    async with store.change() as change:
        await change.put_plan(PlanSettings(name="gold", weight=2.5))
        await change.put_tenant(TenantSettings(id="acme", plan="gold"))
        await change.put_key(stored(key))
    directory = following(store)
    await directory.refresh()
    assert directory.by_key(key.text).plan.weight == 2.5
    async with database.begin() as connection:
        await connection.execute(text("UPDATE plans SET weight = NULL"))
    assert [plan.weight for plan in await store.stored_plans()] == [1.0]


async def test_plans_and_keys_have_service_classes(store):
    key = new_key(PEPPER)
    async with store.change() as change:
        await change.put_plan(PlanSettings(name="gold", classes=("code", "batch")))
        await change.put_tenant(TenantSettings(id="acme", plan="gold"))
        await change.put_key(stored(key, service_class="batch"))
    directory = following(store)
    await directory.refresh()
    tenant = directory.by_key(key.text)
    assert (tenant.plan.classes, tenant.service_class) == (("code", "batch"), "batch")


async def test_a_tenant_may_be_on_a_plan_of_the_file_and_on_none_where_the_file_has_it_not(store):
    key = new_key(PEPPER)
    async with store.change() as change:
        assert not await change.has_plan("gold", ())
        assert await change.has_plan("gold", ("gold",))
        await change.put_tenant(TenantSettings(id="acme", plan="gold"))
        await change.put_key(stored(key))
    assert await store.stored_plans() == []
    register = TenantRegister(PEPPER)
    register.put_plan(PlanSettings(name="gold", weight=3.0))
    with_the_file, without_it = following(store, register), following(store)
    await with_the_file.refresh()
    await without_it.refresh()
    found = with_the_file.by_key(key.text)
    assert (found.plan.weight, found.allows("m")) == (3.0, True)
    assert not without_it.by_key(key.text).allows("m")
    async with store.change() as change:
        await change.put_plan(PlanSettings(name="gold", weight=2.0))
    await without_it.refresh()
    assert without_it.by_key(key.text).plan.weight == 2.0


async def test_upgrades_at_the_same_time_are_one_upgrade(database_url):
    several = [Database(database_url, Path()) for _ in range(4)]
    await asyncio.gather(*map(schema.upgrade, several))
    assert [await TenantStore(each).last_change() for each in several] == [0] * 4
    await asyncio.gather(*(each.close() for each in several))


async def test_tables_of_a_later_version_are_left_alone(database):
    async with database.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        await connection.execute(text("UPDATE compatibility SET oldest_code = '9999'"))
    with pytest.raises(DatabaseDown, match="by another version of radixgate"):
        await schema.upgrade(database)
    with pytest.raises(DatabaseDown, match="of version 9999, not"):
        await following(TenantStore(database), upgrades=False).refresh()


async def test_a_change_raises_the_number_by_one(store):
    for number in (1, 2):
        async with store.change() as change:
            assert change.number == number
            await change.put_plan(PlanSettings(name=f"p{number}"))
    assert await store.last_change() == 2
    assert [plan.name for plan in await store.stored_plans(changed_after=1)] == ["p2"]


async def test_changes_at_the_same_time_come_one_after_the_other(store):
    async def change_one(number):
        async with store.change() as change:
            await change.put_plan(PlanSettings(name=f"p{number}"))
            return change.number

    assert sorted(await asyncio.gather(*(change_one(n) for n in range(12)))) == list(range(1, 13))


async def test_a_change_that_fails_has_changed_nothing(store):
    with pytest.raises(DatabaseConflict):
        async with store.change() as change:
            await change.put_plan(PlanSettings(name="p"))
            await change.put_tenant(TenantSettings(id="acme", plan="no such plan"))
    assert (await store.last_change(), await store.stored_plans()) == (0, [])


async def test_one_hash_is_one_key(store):
    key = new_key(PEPPER)
    await with_key(store, key)
    with pytest.raises(DatabaseConflict):
        async with store.change() as change:
            await change.add_keys(
                [StoredKey(tenant="acme", key=ApiKeySettings(id="x", hash=key.hash), created=1.0)]
            )


async def test_more_rows_than_a_page_are_all_read(store):
    keys = [
        StoredKey(tenant="acme", key=ApiKeySettings(id=f"k{n}", hash=f"sha256:{n:064x}"), created=1.0)
        for n in range(2500)
    ]
    async with store.change() as change:
        await change.put_tenant(TenantSettings(id="acme"))
        await change.add_keys(keys)
    found = [stored async for stored in store.stored_keys()]
    assert sorted(each.key.id for each in found) == sorted(each.key.id for each in keys)
    directory = following(store)
    await directory.refresh()
    assert directory.keys == 2500


async def test_a_directory_follows_what_changes(store):
    key, directory = new_key(PEPPER), following(store)
    await directory.refresh()
    with pytest.raises(UnknownKey):
        directory.by_key(key.text)
    await with_key(store, key)
    await directory.refresh()
    assert directory.by_key(key.text).id == "acme"
    async with store.change() as change:
        await change.put_plan(PlanSettings(name="p", models=ModelAccessSettings(deny=("m",))))
        await change.put_tenant(TenantSettings(id="acme", plan="p"))
    await directory.refresh()
    assert not directory.by_key(key.text).allows("m")
    async with store.change() as change:
        await change.put_key(stored(key, revoked=2000.0))
    await directory.refresh()
    with pytest.raises(UnknownKey):
        directory.by_key(key.text)


async def test_keys_that_have_ended_are_not_kept_in_memory(store):
    await with_key(store, new_key(PEPPER), expires=Moment.at(1000.0))
    await with_key(store, new_key(PEPPER), revoked=1000.0)
    directory = following(store)
    await directory.refresh()
    assert directory.keys == 0


async def test_what_the_file_names_is_the_files(store):
    of_file, key = TenantRegister(PEPPER), new_key(PEPPER)
    of_file.put_tenant(TenantSettings(id="acme", disabled=True))
    of_file.put_key("acme", ApiKeySettings(id="mine", hash=f"sha256:{1:064x}"))
    await with_key(store, key)
    directory = following(store, of_file)
    await directory.refresh()
    assert directory.keys == 1
    with pytest.raises(UnknownKey):
        directory.by_key(key.text)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("keys", "scopes", "nonsense"),
        ("keys", "hash", "md5:1"),
        ("keys", "expires_ms", 10**18),
        ("tenants", "isolation", '{"mode": "open"}'),
        ("organisations", "limits", '[{"requests": 0}]'),
        ("plans", "models", "[]"),
    ],
)
async def test_a_row_that_cannot_be_read_opens_nothing_and_keeps_no_other_tenant_out(
    store, table, column, value
):
    bad, good = new_key(PEPPER), new_key(PEPPER)
    async with store.change() as change:
        await change.put_plan(PlanSettings(name="p"))
        await change.put_tenant(TenantSettings(id="acme", organisation="org", plan="p"))
        await change.put_tenant(TenantSettings(id="globex"))
        await change.add_keys([stored(bad), stored(good, tenant="globex")])
        first = "acme" if table == "tenants" else bad.id if table == "keys" else "org"
        where = "name = 'p'" if table == "plans" else f"id = '{first}'"
        statement = text(f"UPDATE {table} SET {column} = :value WHERE {where}")
        await change._connection.execute(statement, {"value": value})
    directory = following(store)
    await directory.refresh()
    assert directory.by_key(good.text).id == "globex"
    try:
        found = directory.by_key(bad.text)
    except UnknownKey:
        return
    assert found.disabled or not found.allows("m")


class Breakable(TenantStore):
    """A store whose database goes away."""

    down = False
    asked = 0

    async def last_change(self):
        self.asked += 1
        if self.down:
            raise DatabaseDown("gone")
        return await super().last_change()


async def test_without_the_database_known_keys_go_on_for_a_time_and_unknown_ones_are_not_judged(database):
    store, key, now = Breakable(database), new_key(PEPPER), [0.0]
    await with_key(store, key)
    directory = following(store, known_seconds_max=60.0, clock=lambda: now[0])
    assert directory.state == "not loaded"
    with pytest.raises(DirectoryUnavailable):
        directory.by_key(key.text)
    running = asyncio.create_task(directory.run())
    await directory.loaded.wait()
    assert directory.state == "following"
    store.down, now[0] = True, OUTAGE_SECONDS + 0.1
    async with asyncio.timeout(60):
        while directory.state != "away":
            await asyncio.sleep(0.01)
    assert directory.by_key(key.text).id == "acme"
    with pytest.raises(DirectoryUnavailable):
        directory.by_key(new_key(PEPPER).text)
    now[0] = 60.1
    assert directory.state == "stale"
    with pytest.raises(DirectoryUnavailable):
        directory.by_key(key.text)
    store.down = False
    directory.poll_now()
    async with asyncio.timeout(60):
        while directory.state != "following":
            await asyncio.sleep(0.01)
    assert directory.by_key(key.text).id == "acme"
    with pytest.raises(UnknownKey):
        directory.by_key(new_key(PEPPER).text)
    running.cancel()


async def test_a_poll_that_was_missed_is_no_outage(database):
    store, now = Breakable(database), [0.0]
    await with_key(store, new_key(PEPPER))
    directory = following(store, clock=lambda: now[0])
    running = asyncio.create_task(directory.run())
    await directory.loaded.wait()
    store.down, now[0] = True, OUTAGE_SECONDS
    asked = store.asked
    async with asyncio.timeout(60):
        while store.asked < asked + 3:
            await asyncio.sleep(0.01)
    assert directory.state == "following"
    with pytest.raises(UnknownKey):
        directory.by_key(new_key(PEPPER).text)
    running.cancel()


async def test_another_database_in_place_of_the_first_is_read_again(tmp_path):
    key, other = new_key(PEPPER), new_key(PEPPER)
    store = TenantStore(Database("sqlite:///t.db", tmp_path))
    await schema.upgrade(store.database)
    await with_key(store, key)
    await with_key(store, key)
    directory = following(store)
    await directory.refresh()
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("DELETE FROM keys")
        connection.execute("UPDATE changes SET number = 0")
    await with_key(store, other)
    await directory.refresh()
    assert directory.by_key(other.text).id == "acme"
    with pytest.raises(UnknownKey):
        directory.by_key(key.text)
    await store.database.close()


async def test_a_file_that_is_not_there_holds_nothing_and_is_not_made(tmp_path):
    store = TenantStore(Database("sqlite:///t.db", tmp_path))
    directory = following(store)
    await directory.refresh()
    assert (directory.state, directory.has_tenants) == ("following", False)
    assert list(tmp_path.iterdir()) == []
    await schema.upgrade(store.database)
    await with_key(store, key := new_key(PEPPER))
    await directory.refresh()
    assert directory.by_key(key.text).id == "acme"
    await store.database.close()
