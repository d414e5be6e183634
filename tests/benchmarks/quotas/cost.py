"""Reserving and settling quota with many tenants in Redis: the wait of a caller, and the work of the server.

Every tenant has an organisation of its own and a key; these three scopes have eight limits, like those of a usual
deployment: requests and tokens a minute, budgets of a day and a month, requests at one time.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from statistics import median, quantiles

import redis.asyncio as redis

from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.quota_store import Cost, Lease, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window
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
STRETCH = 100
"""How many rounds one median covers: a few tenths of a second."""

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


@dataclass(slots=True, kw_only=True)
class Subject:
    """A server that so many tenants have used, with the seconds of each call on it."""

    tenants: int
    store: RedisQuotaStore
    client: "redis.Redis"
    bytes_per_tenant: float
    reserving: list[float] = field(default_factory=list)
    settling: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0

    async def once(self, number: int, chance: Random) -> None:
        asked = reservation(chance.randrange(self.tenants), 10**9 + number)
        began = time.perf_counter()
        lease = await self.store.reserve(asked)
        reserved = time.perf_counter()
        assert isinstance(lease, Lease)
        await self.store.settle(lease, USED)
        self.settling.append(time.perf_counter() - reserved)
        self.reserving.append(reserved - began)

    async def figures(self) -> dict[str, float]:
        calls = (await self.client.info("commandstats"))["cmdstat_fcall"]
        found = {
            "server_cpu_us_per_call": self.cpu_seconds * 1e6 / calls["calls"],
            "function_us_per_call": calls["usec"] / calls["calls"],
            "bytes_per_tenant": self.bytes_per_tenant,
        }
        for name, seconds in (("reserve", self.reserving), ("settle", self.settling)):
            tenths = quantiles(seconds, n=10)
            found[f"{name}_us_p50"] = median(seconds) * 1e6
            found[f"{name}_us_p10"], found[f"{name}_us_p90"] = tenths[0] * 1e6, tenths[8] * 1e6
        return found


async def measure(urls: Mapping[int, str], rounds: int) -> dict[int, dict[str, float]]:
    """Return the figures by the number of tenants: of one caller, whose requests are of random tenants.

    The servers take turns, each begins as often as the others, and ratios compare the same short stretches of
    time: so other work of the machine affects all of them alike.
    """
    async with AsyncExitStack() as stack:
        subjects = [await _filled(stack, url, tenants) for tenants, url in urls.items()]
        chance = Random(7)
        for subject in subjects:
            await subject.client.config_resetstat()
            subject.cpu_seconds = -await _cpu_seconds(subject.client)
        for number in range(rounds):
            first = number % len(subjects)
            for subject in (*subjects[first:], *subjects[:first]):
                await subject.once(number, chance)
        for subject in subjects:
            subject.cpu_seconds += await _cpu_seconds(subject.client)
        found = {subject.tenants: await subject.figures() for subject in subjects}
    for subject in subjects:
        found[subject.tenants] |= _ratios(subject, subjects[0])
    return found


def _ratios(subject: Subject, to: Subject) -> dict[str, float]:
    """Return the median of the ratios of the stretches' medians, and the quartiles of these ratios."""
    found = {}
    for name in ("reserving", "settling"):
        ratios = [
            median(one) / median(other)
            for one, other in zip(
                _stretches(getattr(subject, name)), _stretches(getattr(to, name)), strict=True
            )
        ]
        low, middle, high = quantiles(ratios, n=4)
        verb = f"{'reserve' if name == 'reserving' else 'settle'}_us_ratio_to_{to.tenants}_tenants"
        found |= {f"{verb}_p50": middle, f"{verb}_p25": low, f"{verb}_p75": high}
    return found


def _stretches(seconds: list[float]) -> list[list[float]]:
    return [seconds[at : at + STRETCH] for at in range(0, len(seconds) - STRETCH + 1, STRETCH)]


async def _filled(stack: AsyncExitStack, url: str, tenants: int) -> Subject:
    """Return a server on which every tenant has made a request."""
    scripts = ScriptCaller(url)
    stack.push_async_callback(scripts.close)
    client = await stack.enter_async_context(redis.from_url(url))
    store = RedisQuotaStore(scripts, timeout_seconds=30.0)
    await _whole(store, reservation(tenants, tenants))
    before = (await client.info("memory"))["used_memory"]
    for some in _portions(tenants):
        await asyncio.gather(*(_whole(store, reservation(tenant, tenant)) for tenant in some))
    after = (await client.info("memory"))["used_memory"]
    return Subject(tenants=tenants, store=store, client=client, bytes_per_tenant=(after - before) / tenants)


async def _cpu_seconds(client: "redis.Redis") -> float:
    """Return the processor time of the server, with reading requests and writing replies."""
    found = await client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


async def _whole(store: RedisQuotaStore, asked: Reservation) -> None:
    lease = await store.reserve(asked)
    assert isinstance(lease, Lease)
    await store.settle(lease, USED)


def _portions(tenants: int) -> Iterator[range]:
    for first in range(0, tenants, AT_ONCE):
        yield range(first, min(first + AT_ONCE, tenants))
