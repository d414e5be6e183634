"""The takeover of a dead cell: its tenants are served by the other one, and nothing is oversold."""

import asyncio
import signal
import time
from collections import Counter

import aiohttp

from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.cells import cell_fleet

LIMIT = 200
LEASE_SECONDS = 2.0
SLACK_SECONDS = 15.0
"""For a machine that is busy with other tests."""


async def test_what_a_dead_cell_has_sold_stays_sold(tmp_path):
    """All gateways of one cell are killed under load, and come back; the other serves its tenants meanwhile."""
    limits = [{"requests": LIMIT, "per": "day"}, {"requests": LIMIT, "per": "hour"}]
    async with (
        ScriptedWorker() as worker,
        cell_fleet(
            tmp_path,
            [worker.url],
            cells={"east": 1, "west": 2},
            lease_seconds=LEASE_SECONDS,
            plans=[{"name": "plan", "limits": limits}],
        ) as fleet,
    ):
        east, west = fleet.gateways["east"], fleet.gateways["west"]
        theirs, others = fleet.tenants_of("west")[:2], fleet.tenants_of("east")[:1]
        statuses = {tenant: Counter() for tenant in (*theirs, *others)}
        stop = asyncio.Event()

        async def keep_asking(tenant, gateways, at):
            while not stop.is_set():
                statuses[tenant][await status(fleet, gateways[at % len(gateways)], tenant)] += 1
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            # Clients of a load balancer that knows no cells: they ask the gateways of both.
            for tenant in statuses:
                for at in range(3):
                    group.create_task(keep_asking(tenant, [*east, *west], at))
            await asyncio.sleep(1.0)
            for process in west:
                process.signal(signal.SIGKILL)
            dead_at = time.monotonic()
            for tenant in theirs:
                await served(fleet, east[0], tenant, statuses[tenant])
            assert time.monotonic() - dead_at < LEASE_SECONDS + SLACK_SECONDS
            async with asyncio.timeout(60):
                while (await east[0].metrics(fleet.http))["cells_alive"] != 1:
                    await asyncio.sleep(0.1)
            for process in west:
                await process.stop()
                await process.start()
            async with asyncio.timeout(60):
                while (await east[0].metrics(fleet.http))["cells_alive"] != 2:
                    await asyncio.sleep(0.1)
            async with asyncio.timeout(60):
                while not all(counts[429] >= 20 for counts in statuses.values()):
                    await asyncio.sleep(0.1)
            stop.set()
        sold = Counter(seen.body["messages"][0]["content"] for seen in worker.seen)
        for tenant, counts in statuses.items():
            assert counts[200] <= LIMIT, (tenant, counts)
            assert sold[tenant] <= LIMIT, (tenant, counts)
            # Requests under way at the death are charged, and nothing else is lost.
            assert counts[200] > LIMIT - 40, (tenant, counts)
            assert set(counts) <= {0, 200, 429, 503}, (tenant, counts)


async def status(fleet, gateway, tenant):
    """The status of an answer; 0 without one."""
    try:
        async with fleet.chat(gateway, tenant, tenant) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


async def served(fleet, gateway, tenant, counts):
    """Wait until the gateway serves the tenant, or says that its quota is used up."""
    async with asyncio.timeout(60):
        while (found := await status(fleet, gateway, tenant)) not in (200, 429):
            counts[found] += 1
            await asyncio.sleep(0.05)
        counts[found] += 1


async def test_tenants_are_served_while_the_redis_of_all_cells_is_away(tmp_path):
    """Gateways grant from what was left, the list of cells holds, and what was sold counts afterwards."""
    limits = [{"requests": LIMIT, "per": "day"}]
    async with (
        ScriptedWorker() as worker,
        cell_fleet(
            tmp_path, [worker.url], cells={"east": 1, "west": 1}, plans=[{"name": "plan", "limits": limits}]
        ) as fleet,
    ):
        east, tenant = fleet.gateways["east"][0], fleet.tenants_of("west")[0]
        first = [await status(fleet, east, tenant) for _ in range(10)]
        assert first == [200] * 10
        fleet.shared.signal(signal.SIGSTOP)
        async with asyncio.timeout(60):
            while await status(fleet, east, tenant) != 429:
                pass
        assert 10 < len(worker.seen) <= LIMIT
        fleet.shared.signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            while await left(fleet, east, tenant) != LIMIT - len(worker.seen):
                await asyncio.sleep(0.1)


async def left(fleet, gateway, tenant):
    """What is left of the tenant's limit."""
    async with fleet.http.get(f"{gateway.url}/v1/limits", headers=fleet.headers(tenant)) as answer:
        found = await answer.json()
        return found["data"][0]["remaining"] if answer.status == 200 else None
