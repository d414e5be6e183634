"""Tenants of the settings file beside those of a database: which of two with one name holds, after each reload."""

import pytest

from gateway.database.database import Database, DatabaseDown
from gateway.database.row_conversion import StoredKey
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import ApiKeySettings, LimitSettings, PlanSettings, TenantSettings
from gateway.settings.tree import Settings
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.yaml_directory import register_from_settings

PEPPER = pepper(b"secret")
FILES, DATABASES = new_key(PEPPER), new_key(PEPPER)


def key(made):
    return ApiKeySettings(id=made.id, hash=made.hash)


def plan(requests):
    return PlanSettings(name="p", limits=(LimitSettings(requests=requests, per="day"),))


ACME = TenantSettings(id="acme", plan="p", keys=(key(FILES),))
FILE = Settings(plans=(plan(1),), tenants=(ACME,))


def file_of(settings):
    return register_from_settings(settings, PEPPER)


@pytest.fixture
async def store(sqlite_tables_url, tmp_path):
    """It has the plan `p` too, and for `acme` another key."""
    database = Database(sqlite_tables_url, tmp_path)
    store = TenantStore(database)
    async with store.change() as change:
        await change.put_plan(plan(2))
        await change.put_tenant(TenantSettings(id="acme", plan="p"))
        await change.add_keys([StoredKey(tenant="acme", key=key(DATABASES), created=0.0)])
    yield store
    await database.close()


async def followed(store, settings):
    directory = SqlDirectory(file_of(settings), store, known_seconds_max=60.0)
    await directory.refresh()
    return directory


def amount(directory, made):
    """Return the amount of the limit of the account that the key belongs to."""
    (limit,) = directory.by_key(made.text).plan.limits
    return limit.amount


async def test_what_leaves_the_file_is_the_databases_and_what_comes_is_the_files(store):
    directory = await followed(store, FILE)
    assert amount(directory, FILES) == 1
    with pytest.raises(UnknownKey):
        directory.by_key(DATABASES.text)
    directory.reconfigure(file_of(Settings()))
    for unread in (FILES, DATABASES):  # Until the rows are read it is not known.
        with pytest.raises(DirectoryUnavailable):
            directory.by_key(unread.text)
    await directory.refresh()
    assert amount(directory, DATABASES) == 2
    with pytest.raises(UnknownKey):
        directory.by_key(FILES.text)
    directory.reconfigure(file_of(FILE))
    assert amount(directory, FILES) == 1
    with pytest.raises(UnknownKey):
        directory.by_key(DATABASES.text)


async def test_a_plan_that_moves_into_the_database_is_there_all_the_time(store):
    directory = await followed(store, Settings(plans=(plan(1),)))
    assert amount(directory, DATABASES) == 1
    directory.reconfigure(file_of(Settings()))
    assert amount(directory, DATABASES) == 1
    await directory.refresh()
    assert amount(directory, DATABASES) == 2


async def test_a_plan_that_is_nowhere_any_more_allows_nothing(store):
    globex = TenantSettings(id="globex", plan="gold", keys=(key(FILES),))
    directory = await followed(store, Settings(plans=(PlanSettings(name="gold"),), tenants=(globex,)))
    assert directory.by_key(FILES.text).allows("m")
    directory.reconfigure(file_of(Settings(tenants=(globex,))))
    await directory.refresh()
    assert not directory.by_key(FILES.text).allows("m")


async def test_a_key_that_left_the_file_opens_nothing_while_the_database_is_away(store, monkeypatch):
    directory = await followed(store, FILE)

    async def down():
        raise DatabaseDown("gone")

    monkeypatch.setattr(store, "last_change", down)
    other = new_key(PEPPER)
    acme = TenantSettings(id="acme", plan="p", keys=(key(other),))
    directory.reconfigure(file_of(Settings(plans=(plan(3),), tenants=(acme,))))
    with pytest.raises(DatabaseDown):
        await directory.refresh()
    assert amount(directory, other) == 3
    with pytest.raises(DirectoryUnavailable):
        directory.by_key(FILES.text)


async def test_a_file_that_is_read_again_while_rows_are_read_has_the_last_word(store, monkeypatch):
    directory = await followed(store, FILE)
    plans = store.stored_plans

    async def meanwhile(since):
        directory.reconfigure(file_of(FILE))
        directory.reconfigure(file_of(Settings()))
        monkeypatch.setattr(store, "stored_plans", plans)
        return await plans(since)

    directory.reconfigure(file_of(Settings()))
    monkeypatch.setattr(store, "stored_plans", meanwhile)
    await directory.refresh()
    await directory.refresh()
    assert amount(directory, DATABASES) == 2
    with pytest.raises(UnknownKey):
        directory.by_key(FILES.text)
