"""Gateway processes share one queue: tenants keep their shares, also after one process is killed."""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from gateway.tenants.keys import new_key, pepper
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.forks import ForkedChild
from tests.stage.processes import GatewayProcess

SECRET = "a secret of the tests"
WEIGHTS = {"acme": 1.0, "globex": 3.0}
TURNS = 120
LOST_SECONDS_MAX = 60.0


@asynccontextmanager
async def deployed(count, worker, redis_url, directory):
    """So many gateways before one worker, that know of each other."""
    keys = {tenant: new_key(pepper(SECRET.encode())) for tenant in WEIGHTS}
    tree = {
        "redis": {"url": redis_url, "timeout_ms": 2000, "prefix": directory.name.replace("_", "-")},
        "database": {"url": "none"},
        "deployment_secret": SECRET,
        "workers": [{"id": "w", "kind": "sglang", "url": worker.url, "models": ["m"]}],
        "queueing": {"release_window_tokens": 1, "within": "fcfs", "waiting_seconds_max": 120},
        "plans": [{"name": tenant, "weight": weight} for tenant, weight in WEIGHTS.items()],
        "tenants": [
            {"id": tenant, "plan": tenant, "keys": [{"id": key.id, "hash": key.hash}]}
            for tenant, key in keys.items()
        ],
        "drain": {"notice_seconds": 0, "seconds": 1},
    }
    async with AsyncExitStack() as stack:
        gateways = [
            GatewayProcess(f"gateway-{at}", directory, tree, child=ForkedChild) for at in range(count)
        ]
        for process in gateways:
            stack.push_async_callback(process.stop)
        await asyncio.gather(*(process.start() for process in gateways))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for process in gateways:
            await process.all_up(http)
        async with asyncio.timeout(60):
            for process in gateways:
                while (await process.metrics(http))["queue_gateways"] != count:
                    await asyncio.sleep(0.05)
        yield gateways, {tenant: key.text for tenant, key in keys.items()}, http


async def ask(http, url, key, tenant):
    body = {"model": "m", "messages": [{"role": "user", "content": tenant}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            return answer.status
    except aiohttp.ClientError:
        return 0


async def keep_asking(http, gateways, keys, tenant, at):
    """A tenant with requests waiting all the time; a gateway that does not answer is not used again."""
    url = gateways[at % len(gateways)].url
    while await ask(http, url, keys[tenant], tenant):
        pass


async def turns(worker, count):
    """Of the next so many requests that the worker sees, how many are each tenant's."""
    first = len(worker.seen)
    async with asyncio.timeout(60):
        while len(worker.seen) < first + count:
            await asyncio.sleep(0.01)
    return Counter(seen.body["messages"][0]["content"] for seen in worker.seen[first : first + count])


def share(counted):
    return counted["globex"] / counted.total()


@pytest.mark.parametrize("count", [1, 3])
async def test_shares_hold_within_five_percent_through_processes_and_after_one_is_killed(
    count, valkey, tmp_path
):
    async with (
        ScriptedWorker() as worker,
        deployed(count, worker, valkey.url, tmp_path) as (gateways, keys, http),
    ):
        worker.then(first_after=0.005)
        callers = [
            asyncio.create_task(keep_asking(http, gateways, keys, tenant, at))
            for tenant in WEIGHTS
            for at in range(12)
        ]
        try:
            await turns(worker, 40)  # All tenants have waiting requests by now.
            assert share(await turns(worker, TURNS)) == pytest.approx(0.75, abs=0.05)
            if count > 1:
                gateways[-1].signal(signal.SIGKILL)
                # What the killed gateway held stalls the others no longer than its lease.
                async with asyncio.timeout(LOST_SECONDS_MAX):
                    await turns(worker, 40)
                    while (await gateways[0].metrics(http))["queue_gateways"] != count - 1:
                        await asyncio.sleep(0.05)
                assert share(await turns(worker, TURNS)) == pytest.approx(0.75, abs=0.05)
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.wait(callers)
