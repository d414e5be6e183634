"""The calls of requests to Redis: quotas, index and queue send theirs together, for many requests."""

import asyncio
from contextlib import AsyncExitStack

import pytest
import redis.asyncio as redis

from tests.fakes.scripted_worker import ScriptedWorker

REQUESTS = 400
ROUNDS_MAX = 10
SCRIPT_CALLS = ("fcall", "evalsha")
CONNECTIONS = 32
"""To each gateway."""
LIMITS = [{"requests": 100_000_000, "per": "minute"}, {"total_tokens": 10_000_000_000, "per": "minute"}]


async def answered(gateways, word, count):
    """Send so many prompts that are not in the index, and wait until all that they cost is settled."""
    numbers = iter(range(count))

    async def send_prompts(running):
        for number in numbers:
            async with running.chat(f"{word} {number} " + "hello " * 200, max_tokens=16) as response:
                await response.read()
                assert response.status == 200

    await asyncio.gather(*(send_prompts(running) for running in gateways for _ in range(CONNECTIONS)))
    for running in gateways:
        await running.settled()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "scripts_max"), [(1, 1.2), (4, 1.5)])
async def test_many_requests_together_cost_hardly_more_than_one_script_each(
    gateway, own_valkey, count, scripts_max
):
    settings = {"limits": LIMITS, "concurrency": 100_000, "redis.url": own_valkey.url}
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(2)]
        gateways = [await stack.enter_async_context(gateway(*workers, **settings)) for _ in range(count)]
        for running in gateways:
            queue = running.here.gateway.services.dispatch.queue
            await running.until(lambda at=queue: at.gateways == count and at.shared == (count > 1))
        await answered(gateways, "warm", 4 * CONNECTIONS)
        scripts = []
        async with redis.from_url(own_valkey.url) as client:
            # A machine that stops this process for seconds makes turns expire, which are then asked for again.
            while len(scripts) < ROUNDS_MAX and not any(count <= scripts_max * REQUESTS for count in scripts):
                await client.config_resetstat()
                await answered(gateways, f"new {len(scripts)}", REQUESTS)
                stats = await client.info("commandstats")
                scripts.append(
                    sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SCRIPT_CALLS)
                )
    assert 0 < min(scripts) <= scripts_max * REQUESTS
