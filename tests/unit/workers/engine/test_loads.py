"""The rate of generation, on a clock that the test moves."""

from types import SimpleNamespace

import pytest

from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.loads import WINDOW_SECONDS, LoadMeter
from workers.engine.scheduler.plan import StepItem, StepPlan
from workers.engine.scheduler.scheduler import Scheduler


class Rig:
    """A meter, its clock, and a scheduler that has work or not."""

    def __init__(self) -> None:
        self.now = 100.0
        self.meter = LoadMeter(lambda: self.now)
        self.tree = PrefixTree(BlockPool(4, 4))
        self.scheduler = Scheduler(self.tree, token_budget=8, running_max=1, waiting_max=1)
        self.scheduler.running.append(SimpleNamespace())

    def step(self, sampled: int, seconds: float = 0.5) -> None:
        self.now += seconds
        sequence = SimpleNamespace(num_generated=2, num_prompt=1, cached_tokens=0)
        items = (StepItem(sequence=sequence, start=0, count=1, samples=True),) * sampled
        self.meter.record(StepPlan(items=items), sampled)

    @property
    def rate(self) -> float:
        return self.meter.read(self.scheduler, self.tree).generated_per_second


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_one_step_makes_no_rate(rig: Rig) -> None:
    assert rig.rate == 0
    rig.step(5)
    assert rig.rate == 0


def test_the_rate_is_tokens_over_the_time_between_steps(rig: Rig) -> None:
    for sampled in (7, 3, 5):
        rig.step(sampled)
    assert rig.rate == pytest.approx((3 + 5) / 1.0)


def test_what_is_older_than_the_window_is_forgotten(rig: Rig) -> None:
    for _ in range(40):
        rig.step(100)
    rig.step(1, seconds=WINDOW_SECONDS + 1)
    for _ in range(4):
        rig.step(2)
    assert rig.rate == pytest.approx(2 / 0.5)


def test_an_idle_engine_generates_nothing(rig: Rig) -> None:
    rig.step(5)
    rig.step(5)
    rig.scheduler.running.clear()
    assert rig.rate == 0


def test_the_hit_rate_counts_each_request_once(rig: Rig) -> None:
    rig.scheduler.running.clear()
    for generated in (1, 2, 3):
        sequence = SimpleNamespace(num_generated=generated, num_prompt=10, cached_tokens=8)
        rig.meter.record(StepPlan(items=(StepItem(sequence=sequence, start=0, count=1, samples=True),)), 1)
    assert rig.meter.read(rig.scheduler, rig.tree).cache_hit_rate == pytest.approx(0.8)
