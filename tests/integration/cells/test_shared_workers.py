"""Workers shared by two cells: each cell knows the other's load, and has its part of every window."""

import asyncio
from collections import Counter

import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.cells import cell_fleet

WINDOW = {"queueing": {"release_window_tokens": 400}}
SHORT, LONG = 25 * "word ", 1000 * "word "


@pytest.fixture
async def fleet(tmp_path, request):
    """Two cells of one gateway each, before two workers that both use; `param` are settings in place of WINDOW."""
    more = getattr(request, "param", WINDOW)
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as two,
        cell_fleet(tmp_path, [one.url, two.url], cells={"east": 1, "west": 1}, **more) as fleet,
    ):
        yield fleet, (one, two)


async def knows(fleet, cell, count):
    """Wait until a gateway of the cell knows of so many requests under way on all workers."""
    url = f"{fleet.gateways[cell][0].admin}/admin/v1/workers"
    async with asyncio.timeout(60):
        while True:
            async with fleet.http.get(url) as answer:
                found = await answer.json()
            if sum(worker["streams"] for worker in found["data"]) == count:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("fleet", [{}], indirect=True, ids=["default window"])
async def test_a_cell_counts_the_load_of_another_and_drops_it_when_that_is_gone(fleet):
    fleet, workers = fleet
    east, west = fleet.gateways["east"][0], fleet.gateways["west"][0]
    gate = asyncio.Event()
    for worker in workers:
        worker.then(until=gate)
    # More than AWAY_TOKENS, so that it counts more than where the workers are at home.
    running = asyncio.ensure_future(asked(fleet, east, fleet.tenants_of("east")[0], 9 * LONG))
    await knows(fleet, "west", 1)
    busy = next(at for at, worker in enumerate(workers) if worker.seen)
    # A request of the other cell goes to the idle worker.
    other = asyncio.ensure_future(asked(fleet, west, fleet.tenants_of("west")[0]))
    await knows(fleet, "east", 2)
    assert len(workers[busy].seen) == len(workers[1 - busy].seen) == 1
    gate.set()
    assert await running == await other == 200
    for cell in ("east", "west"):
        await knows(fleet, cell, 0)


async def asked(fleet, gateway, tenant, text="hello"):
    async with fleet.chat(gateway, tenant, text) as answer:
        await answer.read()
        return answer.status


async def test_a_dead_cell_has_no_load(fleet):
    fleet, workers = fleet
    east, west = fleet.gateways["east"][0], fleet.gateways["west"][0]
    for worker in workers:
        worker.then(silent=True)
    running = asyncio.ensure_future(asked(fleet, east, fleet.tenants_of("east")[0]))
    await knows(fleet, "west", 1)
    east.signal(9)
    await knows(fleet, "west", 0)
    with pytest.raises(Exception, match=r"disconnected|reset"):
        await running
    for worker in workers:
        worker.then(silent=False)
    assert await asked(fleet, west, fleet.tenants_of("west")[0]) == 200


async def test_no_cell_keeps_a_worker_to_itself(tmp_path):
    """One cell has filled the worker and has more waiting; then another cell asks, also for a long prompt."""
    async with (
        ScriptedWorker() as worker,
        cell_fleet(tmp_path, [worker.url], cells={"east": 1, "west": 1}, **WINDOW) as fleet,
    ):
        worker.then(first_after=0.2)
        tenants = {cell: fleet.tenants_of(cell)[0] for cell in fleet.gateways}

        async def keep_asking(cell, text):
            while await asked(fleet, fleet.gateways[cell][0], tenants[cell], f"{cell} {text}") == 200:
                pass

        async def served(count):
            first = len(worker.seen)
            async with asyncio.timeout(60):
                while len(worker.seen) < first + count:
                    await asyncio.sleep(0.01)
            texts = [seen.body["messages"][0]["content"] for seen in worker.seen[first : first + count]]
            return Counter(text.split()[0] for text in texts)

        async with asyncio.TaskGroup() as group:
            askers = [group.create_task(keep_asking("east", SHORT)) for _ in range(20)]
            assert (await served(20))["east"] == 20
            longer_than_the_window = asked(fleet, fleet.gateways["west"][0], tenants["west"], LONG)
            async with asyncio.timeout(60):
                assert await longer_than_the_window == 200
            askers += [group.create_task(keep_asking("west", SHORT)) for _ in range(20)]
            await served(40)
            shares = await served(200)
            assert min(shares.values()) > 0.3 * shares.total(), shares
            for asker in askers:
                asker.cancel()
