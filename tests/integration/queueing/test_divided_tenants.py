"""One model's tenants in several shards of the queue, and one worker: shares are those of one queue."""

from collections import Counter

import pytest

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.queue_messages import CellState, SharedRoute
from gateway.queueing.shared.queue_store import QueueStore
from gateway.queueing.shared.shards_in_step import ShardsInStep
from radix_cache.match import WorkerId
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow
from tests.fakes.greedy_tenants import GreedyTenants

WINDOW, COST, LEASE_MS = 800, 100, 600_000
WORKER = WorkerId("w")
WEIGHTS = [{"alone": 1.0}, {"b1": 1.0, "b2": 1.0, "heavy": 3.0}, {"c1": 2.0, "c2": 1.0}]
TURNS, BETWEEN_VISITS = 1300, 2


class Shard(GreedyTenants):
    """One shard of the queue."""

    def __init__(self, scripts, number, weights, known):
        keys = QueueKeys("rg", f"queue:{number}")
        store = QueueStore(scripts, keys, f"{number}" * 16, FixedWindow(WINDOW), None, lambda queue: True)
        super().__init__(store, weights, COST)
        self._known = known

    def routes(self):
        return [SharedRoute(WORKER, COST, 0.0, queued_tokens=self._known())]

    async def ask(self, tenant):
        ticket = self.ticket(tenant)
        if (await self.store.admit(ticket, self.routes())).outcome == 1:
            self.begin(ticket.id)

    async def claim(self, scripts):
        """Take the turns that were given."""
        for id in await self.take_turns(scripts):
            if (await self.store.claim(["m"], id, None, self.routes())).outcome == 1:
                self.begin(id)
            else:
                await self.ask(self.tenant_of[id])  # It came too late.

    async def exchange_with_cells(self, others, bounds, lease_ms) -> CellState:
        return (await self.store.cells(["m"], others, bounds, LEASE_MS))[1]


class Queue:
    def __init__(self, shards):
        self.shards = shards


@pytest.fixture
async def scripts(own_valkey):
    caller = ScriptCaller(own_valkey.url)
    yield caller
    await caller.close()


async def test_tenants_receive_their_weights_share_whichever_shard_decides_and_the_window_holds(scripts):
    shards = []

    def known():
        return COST * sum(len(shard.sent) for shard in shards)

    shards += [Shard(scripts, number, weights, known) for number, weights in enumerate(WEIGHTS)]
    in_step = ShardsInStep(Queue(shards), lambda queue: WINDOW)
    for shard in shards:
        await shard.store.join(["m"], LEASE_MS, "first")
    for shard in shards:
        for tenant in shard.weights:
            for _ in range(8):
                await shard.ask(tenant)
    assert known() == WINDOW
    most = 0
    for turn in range(TURNS):
        # The worker answers one after the other, whatever came first.
        busy = [shard for shard in shards if shard.sent]
        if busy:
            shard = busy[turn % len(busy)]
            id = shard.sent.pop(0)
            await shard.store.end(["m"], id, 0.0)
            await shard.ask(shard.tenant_of[id])
        if turn % BETWEEN_VISITS == 0:
            await in_step.visit({}, ())
        for each in shards:
            await each.claim(scripts)
        most = max(most, known())
    served = sum((shard.served for shard in shards), Counter())
    total = sum(served.values())
    assert total >= TURNS * 0.95
    weights = {tenant: weight for each in WEIGHTS for tenant, weight in each.items()}
    for tenant, weight in weights.items():
        assert served[tenant] / total == pytest.approx(weight / sum(weights.values()), rel=0.05, abs=0.005)
    assert most <= WINDOW + COST
