"""A gateway that starts while the database is away serves the tenants that were last known, for a bounded time."""

import asyncio

import pytest

from gateway.database.database import Database, DatabaseDown
from gateway.database.row_conversion import StoredKey
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import ApiKeySettings, LimitSettings, PlanSettings, TenantSettings
from gateway.settings.types import Moment, Network
from gateway.tenants import sql_directory
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.sealed_tenants import SealedTenantStore
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.tenant_register import TenantRegister
from tests.fakes.scripted_worker import ScriptedWorker

SECRET = b"a deployment secret"
PEPPER = pepper(SECRET)


class Outage(TenantStore):
    """A store whose database may be away."""

    away = False

    async def last_change(self):
        if self.away:
            raise DatabaseDown("gone")
        return await super().last_change()


@pytest.fixture
async def store(sqlite_tables_url, tmp_path):
    opened = Database(sqlite_tables_url, tmp_path)
    yield Outage(opened)
    await opened.close()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tenants.sealed"


async def key_of(store, tenant, **more):
    key = new_key(PEPPER)
    async with store.change() as change:
        await change.put_plan(PlanSettings(name="gold", weight=2.5))
        await change.put_tenant(TenantSettings(id=tenant, plan="gold"))
        rules = ApiKeySettings(id=key.id, hash=key.hash, **more)
        await change.put_key(StoredKey(tenant=tenant, key=rules, created=1000.0))
    return key


class Started:
    """A gateway's directory that runs until it is stopped."""

    def __init__(self, store, file, *, secret=SECRET, wall=None, known_seconds_max=60.0):
        clocks = {} if wall is None else {"wall": wall}
        self.directory = SqlDirectory(
            TenantRegister(PEPPER),
            store,
            known_seconds_max=known_seconds_max,
            sealed=SealedTenantStore(file, secret),
            **clocks,
        )

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.directory.run())
        await self.directory.wait_until_loaded()
        return self.directory

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])


async def following(directory):
    async with asyncio.timeout(60):
        while directory.state != "following":
            await asyncio.sleep(0.01)


async def test_a_start_without_the_database_goes_on_from_what_was_known(store, file):
    networks, expires = (Network("10.0.0.0/8"),), Moment("2999-01-01")
    limits = (LimitSettings(requests=5, per="minute"),)
    key = await key_of(store, "acme", addresses=networks, expires=expires, limits=limits)
    async with Started(store, file) as directory:
        before = directory.by_key(key.text)
    store.away = True
    async with Started(store, file) as directory:
        assert directory.by_key(key.text) == before
        assert directory.by_key_id("acme", key.id) == before
        assert before.plan.weight == 2.5
        assert (directory.state, directory.usable) == ("stale", True)
        with pytest.raises(DirectoryUnavailable):
            directory.by_key(new_key(PEPPER).text)


async def test_what_is_gone_when_the_database_answers_is_dropped(store, file):
    kept, gone = await key_of(store, "acme"), await key_of(store, "globex")
    async with Started(store, file):
        pass
    async with store.database.begin(writes=True) as connection:
        for table, column in (("keys", "tenant"), ("tenants", "id")):
            await connection.exec_driver_sql(f"DELETE FROM {table} WHERE {column} = 'globex'")
    store.away = True
    async with Started(store, file) as directory:
        assert directory.by_key(gone.text).id == "globex"
        store.away = False
        await following(directory)
        assert directory.by_key(kept.text).id == "acme"
        with pytest.raises(UnknownKey):
            directory.by_key(gone.text)


@pytest.mark.parametrize("wrong", ["an old copy", "another secret", "a changed copy", "no copy"])
async def test_no_other_copy_is_taken(store, file, wrong):
    key = await key_of(store, "acme")
    async with Started(store, file):
        pass
    sealed = file.read_bytes()
    assert b"acme" not in sealed
    assert key.hash.encode() not in sealed
    assert file.stat().st_mode & 0o077 == 0
    store.away, more = True, {}
    if wrong == "an old copy":
        more = {"known_seconds_max": 0.0}
        await asyncio.sleep(0.01)
    elif wrong == "another secret":
        more = {"secret": b"another secret"}
    elif wrong == "a changed copy":
        file.write_bytes(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    else:
        file.unlink()
    async with Started(store, file, **more) as directory:
        assert (directory.state, directory.usable) == ("not loaded", False)
        with pytest.raises(DirectoryUnavailable):
            directory.by_key(key.text)


async def test_a_gateway_that_starts_without_its_database_serves_and_reports_stale(
    gateway, own_postgres, monkeypatch, tmp_path
):
    monkeypatch.setattr(sql_directory, "SEAL_SECONDS", 0.0)
    where = {"database.url": own_postgres.url(), "database.upgrade": "always"}
    async with ScriptedWorker() as worker:
        async with gateway(worker, tenants={}, **where) as running:
            store, secret = running.here.gateway.records.directory._store, b"a secret of the tests"
            key = new_key(pepper(secret))
            async with store.change() as change:
                await change.put_tenant(TenantSettings(id="acme"))
                rules = ApiKeySettings(id=key.id, hash=key.hash)
                await change.put_key(StoredKey(tenant="acme", key=rules, created=1000.0))
            known = running.here.gateway.records.directory
            await running.until(lambda: known.keys == 1)
            written = (tmp_path / "tenants.sealed").stat().st_mtime_ns
            await running.until(lambda: (tmp_path / "tenants.sealed").stat().st_mtime_ns > written)
        own_postgres.stop()
        async with gateway(worker, tenants={}, **where) as running:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            headers, url = {"Authorization": f"Bearer {key.text}"}, f"{running.url}/v1/chat/completions"
            async with running.http.post(url, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
            async with running.http.get(f"{running.admin}/health/ready") as response:
                state = await response.json()
            assert (response.status, state["ready"], state["database"]) == (200, True, "stale")
