"""How long gateways accept a key after its revocation: two gateways as processes, one database, many keys.

The database is SQLite: both gateways poll it as they would poll PostgreSQL, four times a second.
"""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles

import aiohttp

from gateway.database import schema
from gateway.database.database import Database
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import TenantSettings
from gateway.tenants.key_lifecycle import KeyLifecycle
from gateway.tenants.keys import NewKey, pepper
from tests.stage.processes import GatewayProcess

GATEWAYS = 2
SECRET = "a secret of the benchmark"
LOOK_SECONDS = 0.005
SECONDS_MAX = 30.0


async def measure(redis_url: str, revocations: int) -> dict[str, float]:
    """Return the milliseconds from a revocation until a gateway refuses the key, of each gateway and key."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radixgate-bench-")))
        url = f"sqlite:///{directory}/tenants.db"
        database = Database(url, Path())
        stack.push_async_callback(database.close)
        await schema.upgrade(database)
        store = TenantStore(database)
        async with store.change() as change:
            await change.put_tenant(TenantSettings(id="acme"))
        life = KeyLifecycle(store, pepper(SECRET.encode()))
        keys = [await life.create("acme") for _ in range(revocations)]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        gateways = [await _gateway(stack, number, directory, url, redis_url) for number in range(GATEWAYS)]
        waited: list[float] = []
        for key in keys:
            for gateway in gateways:
                assert await _opens(gateway, key, http)
            await life.revoke([key.id])
            waited += await asyncio.gather(*(_refused(gateway, key, http) for gateway in gateways))
    tenths = quantiles(waited, n=10)
    return {
        "revocations": float(revocations),
        "refused_ms_p50": tenths[4] * 1000,
        "refused_ms_p90": tenths[8] * 1000,
        "refused_ms_max": max(waited) * 1000,
    }


async def _gateway(
    stack: AsyncExitStack, number: int, directory: Path, url: str, redis_url: str
) -> GatewayProcess:
    settings = {
        "deployment_secret": SECRET,
        "redis": {"url": redis_url},
        "database": {"url": url},
        "workers": [{"id": "w", "kind": "openai", "url": "http://127.0.0.1:9"}],
        "drain": {"notice_seconds": 0},
        "authentication": {"failures_per_minute_max": 1_000_000},
    }
    gateway = GatewayProcess(f"gateway-{number}", directory, settings)
    await gateway.start()
    stack.push_async_callback(gateway.stop)
    return gateway


async def _refused(gateway: GatewayProcess, key: NewKey, http: aiohttp.ClientSession) -> float:
    """Return the seconds until the gateway refuses the key. Raises TimeoutError."""
    began = time.perf_counter()
    async with asyncio.timeout(SECONDS_MAX):
        while await _opens(gateway, key, http):
            await asyncio.sleep(LOOK_SECONDS)
    return time.perf_counter() - began


async def _opens(gateway: GatewayProcess, key: NewKey, http: aiohttp.ClientSession) -> bool:
    url = f"http://{gateway.host}:{gateway.port}/v1/models"
    async with http.get(url, headers={"Authorization": f"Bearer {key.text}"}) as answer:
        return answer.status == 200
