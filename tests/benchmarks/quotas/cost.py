"""Reserving and settling with so many tenants in Redis: what a caller waits, and what the server works.

Every tenant is of an organisation of its own and asks with a key; the three have eight limits between them, as a
deployment would: requests and tokens a minute, budgets of a day and a month, requests at one time.
"""

import asyncio
import time
from collections.abc import Iterator
from random import Random
from statistics import median, quantiles

import redis.asyncio as redis

from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.quota import Cost, Lease, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from policies.windows import Window
from radix_cache.redis.scripts import ScriptCaller

MINUTE, DAY, MONTH = Window.of("minute"), Window.of("day", "calendar"), Window.of("month", "calendar")
ORGANISATION = (Limit(unit="spend", amount=10**12, window=MONTH),)
TENANT = (
    Limit(unit="requests", amount=10**6, window=MINUTE),
    Limit(unit="total_tokens", amount=10**9, window=MINUTE),
    Limit(unit="output_tokens", amount=10**9, window=DAY),
    Limit(unit="spend", amount=10**12, window=DAY),
    concurrency(1000),
)
KEY = (Limit(unit="requests", amount=10**6, window=MINUTE), Limit(unit="spend", amount=10**12, window=DAY))
AT_ONCE = 100

RESERVED = Cost(prompt_tokens=1000, cached_tokens=None, output_tokens=500, spend=900)
USED = Cost(prompt_tokens=1000, cached_tokens=800, output_tokens=120, spend=300)


def reservation(tenant: int, number: int) -> Reservation:
    return Reservation(
        id=f"req-{number:032x}",
        organisation=f"organisation-{tenant}",
        scopes=(
            Scope(name=f"organisation:organisation-{tenant}", limits=ORGANISATION),
            Scope(name=f"tenant:tenant-{tenant}", limits=TENANT),
            Scope(name=f"key:key-{tenant}", limits=KEY),
        ),
        cost=RESERVED,
    )


async def measure(url: str, tenants: int, rounds: int) -> dict[str, float]:
    """Of one caller, one request after another, each of a tenant by chance; microseconds, and bytes of a tenant."""
    scripts = ScriptCaller(url)
    store = RedisQuotaStore(scripts, timeout_seconds=30.0)
    async with redis.from_url(url) as client:
        await client.flushall()
        before = (await client.info("memory"))["used_memory"]
        for some in _portions(tenants):
            await asyncio.gather(*(_whole(store, reservation(tenant, tenant)) for tenant in some))
        filled = (await client.info("memory"))["used_memory"]
        chance, reserving, settling = Random(7), [], []
        await client.config_resetstat()
        worked = await _cpu_seconds(client)
        for number in range(rounds):
            asked = reservation(chance.randrange(tenants), 10**9 + number)
            began = time.perf_counter()
            lease = await store.reserve(asked)
            reserved = time.perf_counter()
            assert isinstance(lease, Lease)
            await store.settle(lease, USED)
            reserving.append(reserved - began)
            settling.append(time.perf_counter() - reserved)
        worked = await _cpu_seconds(client) - worked
        calls = (await client.info("commandstats"))["cmdstat_fcall"]
    await scripts.close()
    return {
        "reserve_us_p50": median(reserving) * 1e6,
        "settle_us_p50": median(settling) * 1e6,
        "reserve_us_p99": quantiles(reserving, n=100)[98] * 1e6,
        "server_cpu_us_per_call": worked * 1e6 / calls["calls"],
        "function_us_per_call": calls["usec"] / calls["calls"],
        "bytes_per_tenant": (filled - before) / tenants,
    }


async def _cpu_seconds(client: "redis.Redis") -> float:
    """Of the server, with what it takes to read and to answer."""
    found = await client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


async def _whole(store: RedisQuotaStore, asked: Reservation) -> None:
    lease = await store.reserve(asked)
    assert isinstance(lease, Lease)
    await store.settle(lease, USED)


def _portions(tenants: int) -> Iterator[range]:
    for first in range(0, tenants, AT_ONCE):
        yield range(first, min(first + AT_ONCE, tenants))
