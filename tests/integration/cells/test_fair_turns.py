"""Two cells with queues in Redis and one worker: what each tenant receives does not depend on its cell."""

from collections import Counter

import pytest

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.queue_store import QueueStore, SharedRoute, SharedTicket
from policies.cell_turns import QueueProgress, turn_bounds
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow

WINDOW, COST, LEASE_MS = 400, 100, 600_000
WORKER = WorkerId("w")


class Cell:
    """The queue of one cell, all of whose tenants ask for more than they get."""

    def __init__(self, scripts, name, weights):
        self.name, self.weights = name, weights
        self.store = QueueStore(scripts, QueueKeys(name), name * 16, FixedWindow(WINDOW))
        self.sent, self.served, self.number = [], Counter(), 0
        self.progress = QueueProgress(0.0, 0.0)
        self.told = {}

    async def ask(self, tenant):
        self.number += 1
        ticket = SharedTicket(
            id=f"{self.store.gateway}:{self.number}",
            queue="m",
            tenant=tenant,
            weight=self.weights[tenant],
            cost=COST,
            kv_tokens=1,
        )
        self.note(tenant, ticket.id, await self.store.admit(ticket, [SharedRoute(WORKER, COST, 0.0)]))

    def note(self, tenant, id, reply):
        self.told[id] = tenant
        if reply.outcome == 1:
            self.begin(id)

    def begin(self, id):
        self.sent.append(id)
        self.served[self.told[id]] += 1

    async def claim(self, scripts):
        """Take the turns that were given."""
        for _, fields in await scripts.ask("XRANGE", self.store.keys.turns, "-", "+"):
            id = fields[1].decode()
            if fields[0] == b"turn" and id not in self.sent:
                self.begin(id)
                await self.store.claim(["m"], id, None, [SharedRoute(WORKER, COST, 0.0)])
        await scripts.ask("DEL", self.store.keys.turns)

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
            await cell.ask(cell.told[id])
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
