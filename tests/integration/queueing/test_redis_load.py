"""Calls that requests cost Redis: those of many requests, of quotas, index and queue, leave as one."""

import asyncio
from contextlib import AsyncExitStack

import pytest
import redis.asyncio as redis

from tests.fakes.scripted_worker import ScriptedWorker

REQUESTS = 400
CONNECTIONS = 32
LIMITS = [
    {"requests": 100_000_000, "per": "minute"},
    {"total_tokens": 10_000_000_000, "per": "minute"},
]


async def answered(gateways, count, word):
    """Send prompts that are not in the index, over so many connections to each gateway."""
    numbers = iter(range(count))

    async def caller(running):
        for number in numbers:
            async with running.chat(f"{word} {number} " + "hello " * 200, max_tokens=16) as response:
                await response.read()
                assert response.status == 200

    await asyncio.gather(*(caller(running) for running in gateways for _ in range(CONNECTIONS)))
    for running in gateways:
        await running.settled()


async def scripts_called(client):
    """Return how many scripts and functions the server has run since its counters were reset."""
    stats = await client.info("commandstats")
    import os
    if os.environ.get("SHOW"):
        print(len(stats))
        for name, row in sorted(stats.items(), key=lambda e: -e[1]["calls"])[:30]:
            print(f"  {name:28} {row['calls'] / REQUESTS:6.2f} calls {row['usec'] / REQUESTS:7.1f} us")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("fcall", "evalsha"))


@pytest.mark.parametrize(("count", "scripts_max"), [(1, 1.2), (4, 1.5)])
async def test_a_request_costs_redis_hardly_more_than_one_script(gateway, own_valkey, count, scripts_max):
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(2)]
        gateways = [
            await stack.enter_async_context(
                gateway(*workers, limits=LIMITS, concurrency=100_000, **{"redis.url": own_valkey.url})
            )
            for _ in range(count)
        ]
        for running in gateways:
            queue = running.here.gateway.services.dispatch.queue
            await running.until(lambda at=queue: at.gateways == count and at.shared == (count > 1))
        await answered(gateways, 4 * CONNECTIONS, "warm")
        async with redis.from_url(own_valkey.url) as client:
            await client.config_resetstat()
            await answered(gateways, REQUESTS, "new")
            assert await scripts_called(client) / REQUESTS <= scripts_max
