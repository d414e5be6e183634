"""What a shortlist of a large fleet costs against ranking all of its workers."""

from array import array
from dataclasses import dataclass
from random import Random

import pytest

from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import LoadShare
from gateway.fleet.worker import Worker
from gateway.fleet.worker_health import WorkerHealth
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.match_confidence import MatchConfidence
from gateway.routing.router import Router
from policies.load_order.holders import HOLDERS_MAX
from policies.load_order.least_loaded import RANKED_MAX
from policies.others_load import LoadTotals
from policies.registry import routing_policy
from policies.speeds import LearntSpeed
from radix_cache.in_flight_tree import SharedPart
from radix_cache.match import KnownMatch, WorkerId
from radix_cache.namespace import Namespace
from tests.fakes.clock import FakeClock
from workers.adapter import WorkerReport
from workers.worker import Health, Speed

BLOCK = 64
COST_ABOVE, MS_ABOVE = 0.05, 1.0
"""The bound: a first route of a shortlist costs at most so much more than the best of all workers."""


class Index:
    """An index that knows the given match of every prompt."""

    def __init__(self):
        self.known = KnownMatch()

    def repeated_blocks(self, workers):
        return {}

    def match(self, namespace, hashes):
        return self.known

    def waiting(self, model):
        return 0


class Context:
    """A request for the only model, of which nothing but the number of answers is asked."""

    class model:
        name = "m"

    class request:
        fields = frozenset()
        answers = 1

    carrier = None


@dataclass
class Request:
    """A request to rank."""

    prompt: PromptBlocks
    output_tokens: int
    session: int | None
    ctx = Context
    sequence = 0
    waits = by_shadow = False


class Scene:
    """A random fleet of one kind: how fast, how busy and how alike its workers are."""

    def __init__(self, seed: int, count: int) -> None:
        self.random = random = Random(seed)
        self.clock = FakeClock()
        self.clock.advance(10_000)
        speeds = random.choice([(0.1,), (0.1,), (0.05, 0.1, 0.2), (0.02, 0.5)])
        noise = random.choice([0.0, 0.02, 0.1])
        self.busy = random.choice([0.0, 0.3, 1.0, 3.0])
        kv_max = random.choice([None, 200_000, 1_000_000])
        self.workers = [self._worker(at, random.choice(speeds), noise, kv_max) for at in range(count)]
        # Of some fleets a part gets few requests, as if it had joined lately.
        self.used = self.workers[: int(count * random.choice([0.5, 0.9, 1, 1]))]
        self.fleet = Fleet(self.workers, clock=self.clock, random=random)
        self.shares = []
        self.index = Index()
        self.router = Router(
            fleet=self.fleet,
            index=self.index,
            feedback=Feedback(self.index, MatchConfidence(), lambda *_: None),
            policy=routing_policy("cost", {}),
            random=random,
            clock=self.clock,
        )

    def _worker(self, at, ms_per_token, noise, kv_max):
        random = self.random
        speed = Speed(
            ms_per_token=ms_per_token * random.uniform(1 - noise, 1 + noise),
            fixed_ms=20 * random.uniform(1 - noise, 1 + noise),
            step_ms=20 * random.uniform(1 - noise, 1 + noise),
        )
        worker = Worker(
            id=WorkerId(f"w{at}"),
            kind="test",
            adapter=None,
            models=frozenset({"m"}),
            models_fixed=True,
            learnt=LearntSpeed(speed),
            health=WorkerHealth(Health.UP),
            report=WorkerReport(kv_tokens_max=kv_max),
            reported=True,
        )
        worker.load.clock = self.clock
        worker.began_at = self.clock() - (random.uniform(0, 30) if random.random() < 0.05 else 5000)
        return worker

    def pass_time(self):
        """Requests come and go at all workers for a while."""
        random = self.random
        for _ in range(int(len(self.workers) * self.busy) + 1):
            worker = random.choice(self.used if random.random() < 0.9 else self.workers)
            tokens = int(random.lognormvariate(7, 1.2))
            self.shares.append(LoadShare(worker.load, uncached_tokens=tokens, kv_tokens=tokens + 300))
            self.clock.advance(random.expovariate(len(self.workers)))
        random.shuffle(self.shares)
        for share in self.shares[: len(self.shares) // 2]:
            share.note_first_token()
        for _ in range(len(self.shares) // 3):
            self.shares.pop().end()
        for worker in random.sample(self.workers, 5):
            worker.load.update_others(LoadTotals(random.choice([0, 0, 4000]), random.randrange(4), 5000))
        self.clock.advance(random.expovariate(5))

    def ask(self, session=None):
        """Rank on the shortlist and on all workers, and return both decisions; the moment is the same."""
        random = self.random
        prompt_tokens = int(random.lognormvariate(7.5, 1.5)) + 1
        blocks = prompt_tokens // BLOCK
        holders = random.choice([0, 0, 1, 3, HOLDERS_MAX, 20, 300, len(self.workers)])
        known = {
            worker.id: random.randint(1, blocks)
            for worker in random.sample(self.workers, min(holders, len(self.workers)))
            if blocks
        }
        if random.random() < 0.3:  # A beginning that all of them have in common, as of a system prompt.
            known = dict.fromkeys(known, max(1, blocks // 4))
        shared = ()
        if blocks and random.random() < 0.3:
            shared = [SharedPart(random.randint(1, blocks), random.choice([1, 5, 100]))]
        self.index.known = KnownMatch(confirmed=known, shared=shared)
        prompt = PromptBlocks(
            namespace=Namespace(model="m", block_size=BLOCK),
            hashes=array("Q", range(blocks)),
            prompt_tokens=prompt_tokens,
            exact=True,
        )
        request = Request(prompt, random.choice([16, 256, 2000]), session)
        # First all workers, since a request that is ranked to be sent leaves what it waited to the next one.
        whole = self.router.rank(request, all_workers=True)
        return self.router.rank(request), whole, known


@pytest.mark.parametrize("seed", range(60))
def test_the_first_route_of_a_shortlist_costs_hardly_more_than_the_best_of_all(seed):
    scene = Scene(seed, count=[40, 100, 400][seed % 3])
    for _ in range(15):
        scene.pass_time()
        short, whole, known = scene.ask(session=seed if seed % 2 else None)
        assert len(short.routes) < len(whole.routes) or len(scene.workers) <= RANKED_MAX
        costs = {route.worker: route.cost_ms for route in whole.routes}
        best = min(costs.values())
        chosen = short.routes[0]
        assert costs[chosen.worker] <= best * (1 + COST_ABOVE) + MS_ABOVE
        best_workers = {worker for worker, cost in costs.items() if cost == best}
        if best_workers & known.keys() and len(known) <= HOLDERS_MAX:
            assert chosen.worker in best_workers
        assert chosen.cost_ms == pytest.approx(costs[chosen.worker], rel=0.01, abs=0.01)


def test_of_idle_workers_gateways_do_not_choose_the_same():
    """Each gateway orders workers without load by its own random numbers."""
    chosen = set()
    for _ in range(20):
        scene = Scene(0, count=200)
        scene.random.seed()
        scene.index.known = KnownMatch()
        chosen.add(scene.ask()[0].routes[0].worker)
    assert len(chosen) > 5
