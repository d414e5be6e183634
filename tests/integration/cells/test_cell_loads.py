"""The exchange of loads between cells in a real Redis: fair parts, leases, and an outage of that Redis."""

import asyncio
from contextlib import asynccontextmanager
from math import inf
from types import SimpleNamespace

import pytest

from gateway.cells.cell_loads import CellLoads
from gateway.cells.home_workers import HomeWorkers
from gateway.queueing.shared.queue_messages import CellState
from policies.admission.dispatch_window import DispatchWindow
from policies.cell_turns import QueueProgress, turn_bounds
from policies.others_load import LoadTotals
from radix_cache.redis.scripts import ScriptCaller

WINDOW = 300


class StubQueue:
    """A cell's queue, of one gateway: it keeps what other cells have."""

    def __init__(self, gateway, own, progress):
        self.gateway, self.own, self.others, self.exchanges = gateway, own, {}, 0
        self.progress, self.bounds = progress, {}
        self.shards, self.shared = [self], True

    async def exchange_with_cells(self, others, bounds, lease_ms):
        if not self.shared:
            return CellState()
        if others is not None:
            self.others, self.bounds = dict(others), dict(bounds)
            self.exchanges += 1
        return CellState(loads=self.own, progress=self.progress)


class StubFleet(dict):
    """Workers by id; each knows its address."""

    def __iter__(self):
        return iter(self.values())

    def serving(self, model):
        return [worker for worker in self if model in worker.models]


def worker(address="10.0.0.1:8000", provider=None):
    return SimpleNamespace(id="w", address=address, provider=provider, models=frozenset({"m"}), away_tokens=0)


@pytest.fixture
async def cell(own_valkey):
    """Run the exchange of one gateway: `async with cell(...) as queue`."""
    scripts = ScriptCaller(own_valkey.url)
    windows = SimpleNamespace(of=lambda model: DispatchWindow(narrow=WINDOW, wide=2 * WINDOW))

    @asynccontextmanager
    async def run(name, gateway, own, fleet=None, progress=None):
        queue = StubQueue(gateway, own, progress or {})
        fleet = StubFleet(fleet or {"w": worker()})
        homes = HomeWorkers(SimpleNamespace(cell=name, cells={name: ()}))
        loads = CellLoads(
            scripts, prefix="c", cell=name, fleet=fleet, queue=queue, windows=windows, homes=homes
        )
        task = asyncio.create_task(loads.run())
        try:
            yield queue
        finally:
            task.cancel()
            await asyncio.wait([task])

    yield run
    await scripts.close()


async def until(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


async def test_cells_count_at_most_the_others_fair_part_of_a_window(cell):
    async with (
        cell("east", "e1", {"w": LoadTotals(40, 2, 500)}) as east,
        cell("west", "w1", {"w": LoadTotals(900, 3, 700)}) as west,
    ):
        await until(lambda: east.others and west.others)
        await until(lambda: east.others == {"w": LoadTotals(WINDOW // 2, 3, 700)})
        assert west.others == {"w": LoadTotals(40, 2, 500)}
        async with cell("north", "n1", {"w": LoadTotals(500, 1, 10)}):
            await until(lambda: east.others == {"w": LoadTotals(2 * WINDOW // 3, 4, 710)})
        await until(lambda: east.others == {"w": LoadTotals(WINDOW // 2, 3, 700)})


async def test_cells_bound_their_turns_by_how_far_the_queues_of_others_have_come(cell):
    east_m, west_m = QueueProgress(90.0, 2.0), QueueProgress(50.0, 1.0)
    async with (
        cell("east", "e1", {}, progress={"m": east_m, "n": QueueProgress(7.0, 1.0)}) as east,
        cell("west", "w1", {}, progress={"m": west_m, "m#batch": QueueProgress(0.0, 0.0)}) as west,
    ):
        await until(lambda: east.bounds and west.bounds)
        assert east.bounds == {"m": turn_bounds(east_m, [west_m], WINDOW)}
        assert west.bounds == {"m": turn_bounds(west_m, [east_m], WINDOW)}
        assert east.bounds["m"].start_max < inf
    async with cell("east", "e1", {}, progress={"m": east_m}) as east:
        await until(lambda: east.exchanges > 1 and not east.bounds)


async def test_only_the_same_worker_counts(cell):
    load = LoadTotals(40, 2, 500)
    names = ("same", "moved", "elsewhere", "outside")
    theirs = {name: worker() for name in names} | {"outside": worker(provider=object())}
    mine = {"same": worker(), "moved": worker("10.0.0.9:8000"), "outside": worker()}
    async with (
        cell("east", "e1", dict.fromkeys(names, load), theirs),
        cell("west", "w1", {}, mine) as west,
    ):
        await until(lambda: west.others)
        assert west.others == {"same": load}


async def test_one_gateway_of_a_cell_does_it_and_another_takes_over(cell):
    async with cell("west", "w1", {"w": LoadTotals(40, 2, 500)}):
        async with cell("east", "e1", {}) as first:
            await until(lambda: first.others)
            async with cell("east", "e2", {}) as second:
                done = first.exchanges
                await until(lambda: first.exchanges > done + 3)
                assert second.exchanges == 0
        async with cell("east", "e2", {}) as second:
            await until(lambda: second.others)


async def test_a_gateway_without_its_cells_load_lets_another_one_publish_it(cell):
    load = LoadTotals(40, 2, 500)
    async with cell("west", "w1", {"w": load}) as first, cell("east", "e1", {}) as east:
        await until(lambda: east.others == {"w": load})
        async with cell("west", "w2", {"w": LoadTotals(50, 3, 600)}):
            first.shared = False  # It does not reach the Redis of its cell.
            await until(lambda: east.others == {"w": LoadTotals(50, 3, 600)})


async def test_without_redis_the_others_loads_are_forgotten(cell, own_valkey):
    async with cell("west", "w1", {"w": LoadTotals(40, 2, 500)}), cell("east", "e1", {}) as east:
        await until(lambda: east.others)
        own_valkey.kill()
        await until(lambda: not east.others)
        own_valkey.start()
        await until(lambda: east.others)
