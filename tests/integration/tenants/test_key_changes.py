"""Changes of keys with two gateways and one database: they take effect in both, and outlive an outage."""

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest

from gateway.database import schema
from gateway.database.database import Database
from gateway.database.row_conversion import StoredKey
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import ApiKeySettings, TenantSettings
from gateway.settings.types import Moment, Network
from gateway.tenants.key_lifecycle import KeyLifecycle
from gateway.tenants.keys import new_key, pepper
from tests.conftest import SECRET
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.forks import ForkedChild
from tests.stage.postgres import PostgresServer
from tests.stage.processes import GatewayProcess

PATIENCE_SECONDS = 60.0
KNOWN_SECONDS = 4.0
"""Until a key of a test expires."""


class Pair:
    """Two gateways, and the store that both follow."""

    def __init__(self, gateways, store, http):
        self.gateways, self.store, self.http = gateways, store, http

    async def put(self, key, tenant="acme", **more):
        async with self.store.change() as change:
            await change.put_tenant(TenantSettings(id=tenant))
            made = ApiKeySettings(id=key.id, hash=key.hash)
            await change.put_key(StoredKey(tenant=tenant, key=made, created=1.0, **more))

    async def statuses(self, key):
        return [await self._status(gateway, key) for gateway in self.gateways]

    async def until(self, key, status):
        """Until all gateways answer so; the seconds that took."""
        started = time.monotonic()
        while set(found := await self.statuses(key)) != {status}:
            assert time.monotonic() - started < PATIENCE_SECONDS, found
            await asyncio.sleep(0.02)
        return time.monotonic() - started

    async def _status(self, gateway, key):
        url = f"http://{gateway.host}:{gateway.port}/v1/models"
        async with self.http.get(url, headers={"Authorization": f"Bearer {key.text}"}) as response:
            return response.status


async def paired(url, valkey, tmp_path, count=2):
    """Yields a Pair that serves."""
    database = Database(url, Path())
    await schema.upgrade(database)
    async with TenantStore(database).change() as change:
        # Without any tenant a gateway on loopback is open to all.
        await change.put_tenant(TenantSettings(id="first"))
    async with ScriptedWorker() as worker, aiohttp.ClientSession() as http:
        settings = {
            "deployment_secret": SECRET,
            "redis": {"url": valkey.url, "prefix": tmp_path.name[-40:].replace("_", "-")},
            "database": {"url": url, "known_keys_seconds_max": 600},
            "workers": [{"id": "w", "kind": "openai", "url": worker.url}],
            "drain": {"notice_seconds": 0},
            "authentication": {"failures_per_minute_max": 100000},
        }
        gateways = [
            GatewayProcess(f"gateway-{n}", tmp_path, settings, child=ForkedChild) for n in range(count)
        ]
        try:
            await asyncio.gather(*(gateway.start() for gateway in gateways))
            yield Pair(gateways, TenantStore(database), http)
        finally:
            await asyncio.gather(*(gateway.stop() for gateway in gateways))
            await database.close()


@pytest.fixture
async def pair(tables_url, valkey, tmp_path):
    async for made in paired(tables_url, valkey, tmp_path):
        yield made


async def test_new_changed_and_revoked_keys_take_effect_in_every_gateway(pair):
    key = new_key(pepper(SECRET.encode()))
    await pair.put(key)
    await pair.until(key, 200)
    await pair.put(key, revoked=2.0)
    await pair.until(key, 401)
    assert await pair.statuses(key) == [401, 401]


async def test_a_change_at_one_gateway_takes_effect_at_the_other(pair):
    life = KeyLifecycle(pair.store, pepper(SECRET.encode()))
    old = await life.create("first")
    await pair.until(old, 200)
    new = await life.rotate(old.id)
    await pair.until(old, 401)
    await pair.until(new, 200)
    for change, status in (
        ({"addresses": (Network("10.0.0.0/8"),)}, 403),
        ({}, 200),
        ({"disabled": True}, 403),
        ({}, 200),
    ):
        async with pair.store.change() as changing:
            await changing.put_tenant(TenantSettings(id="first", **change))
        await pair.until(new, status)
    await life.expire(new.id, Moment.at(time.time()))
    await pair.until(new, 401)


async def test_a_key_expires_in_both_gateways_at_its_time_also_where_it_is_known_and_the_database_is_away(
    valkey, tmp_path, own_postgres: PostgresServer
):
    async for pair in paired(own_postgres.url(), valkey, tmp_path):
        key, lasting, last = (new_key(pepper(SECRET.encode())) for _ in range(3))
        for each in (key, lasting, last):
            await pair.put(each)
            await pair.until(each, 200)
        ends = time.time() + KNOWN_SECONDS
        await KeyLifecycle(pair.store, pepper(SECRET.encode())).expire(key.id, Moment.at(ends))
        # Changes are followed in their order: where the next one is known, this one is.
        await pair.put(last, revoked=2.0)
        await pair.until(last, 401)
        own_postgres.stop()
        await pair.until(key, 401)
        assert time.time() >= ends - 1
        await pair.until(lasting, 200)


async def test_an_outage_of_the_database_is_no_end_of_known_keys(
    valkey, tmp_path, own_postgres: PostgresServer
):
    async for pair in paired(own_postgres.url(), valkey, tmp_path, count=1):
        known, unknown = (new_key(pepper(SECRET.encode())) for _ in range(2))
        await pair.put(known)
        await pair.until(known, 200)
        assert await pair.statuses(unknown) == [401]
        own_postgres.stop()
        await pair.until(unknown, 503)
        assert await pair.statuses(known) == [200]
        (gateway,) = pair.gateways
        assert (await gateway.readiness(pair.http))["database"] == "away"
        own_postgres.start()
        await pair.until(unknown, 401)
        await pair.put(known, revoked=2.0)
        await pair.until(known, 401)
        assert (await gateway.readiness(pair.http))["database"] == "following"
