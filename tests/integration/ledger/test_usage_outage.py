"""The usage ledger in outages: nothing is lost or counted twice while the database is away or a gateway dies."""

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from gateway.database.database import Database, DatabaseConflict, DatabaseDown
from gateway.database.usage_query import UsageQuery, UsageReader
from gateway.tenants.keys import new_key, pepper
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.forks import ForkedChild
from tests.stage.processes import GatewayProcess

SECRET = "a secret of this test"


async def ask(http, gateway, key):
    """The id of an answered request."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    url = f"http://{gateway.host}:{gateway.port}/v1/chat/completions"
    async with http.post(url, json=body, headers={"Authorization": f"Bearer {key.text}"}) as response:
        assert response.status == 200
        await response.read()
        return response.headers["x-request-id"]


async def workers_up(http, gateway):
    """It would serve; whether it is ready depends on the database too."""
    async with asyncio.timeout(60):
        while set((await gateway.readiness(http))["workers"].values()) != {"up"}:
            await asyncio.sleep(0.05)


async def answered(http, gateway, key):
    """Five more requests; what their client has heard to the end, the gateway has finished a moment later."""
    before = await finished(http, gateway)
    asked = [await ask(http, gateway, key) for _ in range(5)]
    async with asyncio.timeout(60):
        while await finished(http, gateway) < before + 5:
            await asyncio.sleep(0.02)
    return asked


async def finished(http, gateway):
    """Requests that its observers have heard of; the ledger is the first of them."""
    return (await gateway.metrics(http)).get("requests_total", 0.0)


async def shipped(url, count):
    """(ids of all rows, requests in the days' sums), once there are so many."""
    database = Database(url, Path())
    reader = UsageReader(database)
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    rows = [row["request_id"] async for page in reader.rows(UsageQuery()) for row in page]
                    (sums,) = await reader.sums(UsageQuery())
                    if len(rows) >= count:
                        return sorted(rows), sums["requests"]
                except (DatabaseDown, DatabaseConflict):
                    pass
                await asyncio.sleep(0.2)
    finally:
        await database.close()


@pytest.mark.timeout(240)
async def test_a_database_that_is_away_and_a_gateway_that_is_killed_lose_nothing_and_count_nothing_twice(
    own_postgres, valkey, tmp_path
):
    key, url = new_key(pepper(SECRET.encode())), own_postgres.url()
    async with ScriptedWorker() as worker, aiohttp.ClientSession() as http:
        settings = {
            "redis": {"url": valkey.url, "prefix": "usage-outage"},
            "database": {"url": url, "upgrade": "always"},
            "drain": {"notice_seconds": 0},
            "deployment_secret": SECRET,
            "workers": [{"id": "w0", "kind": "sglang", "url": worker.url}],
            "tenants": [{"id": "acme", "keys": [{"id": key.id, "hash": key.hash}]}],
        }
        gateway = GatewayProcess("gateway", tmp_path, settings, child=ForkedChild)
        await gateway.start()
        try:
            await workers_up(http, gateway)
            asked = await answered(http, gateway, key)
            # Perhaps in the middle of shipping.
            gateway.signal(signal.SIGKILL)
            await gateway.ended()
            await gateway.start()
            await workers_up(http, gateway)
            asked += await answered(http, gateway, key)
            await shipped(url, 10)
            await asyncio.to_thread(own_postgres.stop)
            asked += await answered(http, gateway, key)
            gateway.signal(signal.SIGKILL)
            await gateway.ended()
            await gateway.start()
            await workers_up(http, gateway)
            asked += await answered(http, gateway, key)
            await asyncio.to_thread(own_postgres.start)
            rows, counted = await shipped(url, 20)
        finally:
            await gateway.stop()
    assert rows == sorted(asked)
    assert counted == 20
