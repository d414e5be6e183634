"""Fairness across cells: two cells with queues in Redis and one worker give each tenant its share."""

import pytest

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.queue_messages import SharedRoute
from gateway.queueing.shared.queue_store import QueueStore
from policies.cell_turns import QueueProgress, turn_bounds
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow
from tests.fakes.greedy_tenants import GreedyTenants

WINDOW, COST, LEASE_MS = 400, 100, 600_000
WORKER = WorkerId("w")


class Cell(GreedyTenants):
    """The queue of one cell."""

    def __init__(self, scripts, name, weights):
        super().__init__(QueueStore(scripts, QueueKeys(name), name * 16, FixedWindow(WINDOW)), weights, COST)
        self.progress = QueueProgress(0.0, 0.0)

    async def ask(self, tenant):
        ticket = self.ticket(tenant)
        if (await self.store.admit(ticket, [SharedRoute(WORKER, COST, 0.0)])).outcome == 1:
            self.begin(ticket.id)

    async def claim(self, scripts):
        """Take the turns that were given."""
        for id in await self.take_turns(scripts):
            self.begin(id)
            await self.store.claim(["m"], id, None, [SharedRoute(WORKER, COST, 0.0)])

    async def exchange(self, other):
        bounds = turn_bounds(self.progress, [other.progress], WINDOW)
        load = LoadTotals(min(WINDOW // 2, COST * len(other.sent)), len(other.sent), len(other.sent))
        _, own = await self.store.cells(["m"], {WORKER: load} if other.sent else {}, {"m": bounds}, LEASE_MS)
        self.progress = own.progress["m"]


@pytest.fixture
async def scripts(own_valkey):
    caller = ScriptCaller(own_valkey.url)
    yield caller
    await caller.close()


async def test_tenants_receive_their_weights_share_of_a_worker_whichever_cell_they_belong_to(scripts):
    cells = [Cell(scripts, "a", {"alone": 1.0}), Cell(scripts, "b", {"b1": 1.0, "b2": 1.0, "heavy": 3.0})]
    for cell in cells:
        await cell.store.join(["m"], LEASE_MS, "first")
        for tenant in cell.weights:
            for _ in range(3):
                await cell.ask(tenant)
    for turn in range(360):
        # The worker answers whatever came first; cells hear of each other after every fourth answer.
        cell = cells[turn % 2] if cells[turn % 2].sent else cells[1 - turn % 2]
        if cell.sent:
            id = cell.sent.pop(0)
            await cell.store.end(["m"], id, 0.0)
            await cell.ask(cell.tenant_of[id])
        if turn % 4 == 0:
            for at, each in enumerate(cells):
                await each.exchange(cells[1 - at])
        for each in cells:
            await each.claim(scripts)
    shares = cells[0].served + cells[1].served
    total = sum(shares.values())
    assert total >= 300
    for tenant, weight in {"alone": 1, "b1": 1, "b2": 1, "heavy": 3}.items():
        assert shares[tenant] / total == pytest.approx(weight / 6, abs=0.02)
