"""The router: it remembers waits for one more copy of a prefix, and asks the policy for the copy in time."""

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
from policies.registry import routing_policy
from policies.speeds import LearntSpeed
from radix_cache.local_index import LocalIndex
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from tests.fakes.clock import FakeClock
from workers.adapter import WorkerReport
from workers.worker import Health, Speed

SHARED_TOKENS, PROMPT_TOKENS = 64 * 60, 4000
SPACE = Namespace(model="m", block_size=64)


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
    sequence: int
    waits: bool = False
    ctx = Context
    output_tokens = 100
    session = None
    by_shadow = False


@pytest.fixture
def router():
    """A router before four workers, each with two streams; one holds the prefix and has 500 tokens queued."""
    clock = FakeClock()
    clock.advance(10_000)
    workers = [_worker(f"w{at}", clock) for at in range(4)]
    for worker in workers:
        for _ in range(2):
            LoadShare(worker.load, uncached_tokens=0, kv_tokens=100)
    LoadShare(workers[0].load, uncached_tokens=500, kv_tokens=600)
    index = LocalIndex(clock, blocks_max=10_000, predicted_seconds=600, idle_seconds_max=600)
    for writer in ("a request", "another one"):
        index.record(SPACE, _prompt(1).hashes[:60], WorkerId("w0"), writer)
    return Router(
        fleet=Fleet(workers, clock=clock, random=Random(1)),
        index=index,
        feedback=Feedback(index, MatchConfidence(), lambda *_: None),
        policy=routing_policy("cost", {"copy_share": 1e-9}),
        random=Random(1),
        clock=clock,
    )


def _worker(name, clock):
    worker = Worker(
        id=WorkerId(name),
        kind="test",
        adapter=None,
        models=frozenset({"m"}),
        models_fixed=True,
        learnt=LearntSpeed(Speed(ms_per_token=0.1, fixed_ms=20, step_ms=20)),
        health=WorkerHealth(Health.UP),
        report=WorkerReport(kv_tokens_max=1_000_000),
        reported=True,
    )
    worker.load.clock = clock
    worker.began_at = clock() - 5000
    return worker


def _prompt(number):
    """A prompt that has all but its last two blocks in common with the others."""
    return PromptBlocks(
        namespace=SPACE,
        hashes=array("Q", [*range(1, 61), 1000 + 2 * number, 1001 + 2 * number]),
        prompt_tokens=PROMPT_TOKENS,
        exact=True,
    )


def _worker_of(router, number, *, waits=False, all_workers=False):
    decision = router.rank(Request(_prompt(number), number, waits), all_workers=all_workers)
    return decision.routes[0].worker


def test_requests_that_waited_long_enough_for_a_copy_get_one(router):
    chosen = [_worker_of(router, number) for number in range(20)]
    assert chosen[:3] == ["w0"] * 3
    copied = next(at for at, worker in enumerate(chosen) if worker != "w0")
    assert chosen[copied + 1] == "w0", "the next copy has to be waited for anew"


@pytest.mark.parametrize("how", [{"waits": True}, {"all_workers": True}])
def test_a_ranking_of_a_request_that_is_counted_or_only_explained_is_no_wait(router, how):
    assert [_worker_of(router, number, **how) for number in range(20)] == ["w0"] * 20
    assert _worker_of(router, 20) == "w0"
