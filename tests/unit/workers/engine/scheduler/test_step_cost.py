"""The cost of one more row, learnt from steps, and the draft length that follows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.engine.scheduler.test_speculation import Oracle
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockTable
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import StepItem, StepPlan
from workers.engine.scheduler.sequence import Sequence
from workers.engine.scheduler.speculation import SpeculationController
from workers.engine.scheduler.step_cost import SHARE_MAX, SHARE_MIN, StepCost


def learned(fixed: float, each: float, rows: list[int], typical: float = 0.1) -> StepCost:
    cost = StepCost(typical)
    for count in rows:
        cost.observe(count, fixed + each * count)
    return cost


@pytest.mark.parametrize("speed", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize(("fixed", "each"), [(9.0, 1.0), (1.0, 0.0), (1.0, 1.0)])
def test_the_line_is_found_whatever_the_machines_speed(fixed: float, each: float, speed: float) -> None:
    cost = learned(fixed * speed, each * speed, [1, 5, 20, 33] * 30)
    assert each / (fixed + each) == pytest.approx(cost.share, abs=0.06)
    assert (fixed + 10 * each) * speed == pytest.approx(cost.expected(10), rel=0.05)


def test_before_the_first_step_the_typical_share_is_believed_and_no_time_is_known() -> None:
    cost = StepCost(0.25)
    assert (cost.share, cost.expected(7)) == (0.25, 0.0)


def test_steps_of_equal_size_do_not_determine_the_share() -> None:
    assert learned(1.0, 3.0, [4] * 500, typical=0.1).share == pytest.approx(0.1, abs=0.01)


def test_what_changes_is_followed() -> None:
    cost = learned(1.0, 1.0, [1, 5, 9] * 50)
    for count in [1, 5, 9] * 100:
        cost.observe(count, 10.0 + 0.1 * count)
    assert cost.share < 0.05


def test_one_step_that_was_held_up_changes_little() -> None:
    cost = learned(9.0, 1.0, [1, 5, 9] * 50)
    before = cost.share
    cost.observe(9, 9_000.0)
    assert cost.share == pytest.approx(before, abs=0.1)


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1e6)), max_size=40), st.floats(0, 0.99))
def test_whatever_is_observed_the_share_is_one(steps: list[tuple[int, float]], typical: float) -> None:
    cost = StepCost(typical)
    for rows, seconds in steps:
        cost.observe(rows, seconds)
    assert min(SHARE_MIN, typical) <= cost.share <= max(SHARE_MAX, typical)
    assert math.isfinite(cost.expected(64))
    assert cost.expected(64) >= 0


def sequence(name: str) -> Sequence:
    tree = PrefixTree(BlockPool(64, 16))
    params = SamplingParams(max_tokens=500)
    made = Sequence(
        id=name, order=1, tokens=[1, 2, 3], num_prompt=3, params=params, seed=0, salt="", stop_ids=frozenset()
    )
    made.table = BlockTable(tree, made.tokens, "")
    return made


def speculation(**settings: object) -> SpeculationController:
    return SpeculationController(SpecConfig(method="ngram", num_tokens=4, **settings), Oracle(99))  # type: ignore[arg-type]


def observe(speculating: SpeculationController, fixed: float, each: float) -> None:
    for batch in [1, 4, 16] * 40:
        items = tuple(
            StepItem(sequence=sequence(str(place)), start=9, count=1, samples=True) for place in range(batch)
        )
        speculating.observe_step(StepPlan(items=items), fixed + each * batch)


def test_where_rows_cost_nothing_it_guesses_far_and_where_they_cost_a_step_not_at_all() -> None:
    counts = {}
    for name, fixed, each in (("reads weights", 1.0, 0.001), ("computes", 0.1, 1.0)):
        speculating = speculation()
        observe(speculating, fixed, each)
        counts[name] = [
            speculating.draft_count(sequence("a"), batch=batch, budget=99, spare=99) for batch in (1, 16)
        ]
    assert counts == {"reads weights": [4, 4], "computes": [0, 0]}


def test_the_same_machine_guesses_less_far_the_more_sequences_there_are() -> None:
    speculating = speculation()
    observe(speculating, 0.9, 0.1)
    counts = [
        speculating.draft_count(sequence("a"), batch=batch, budget=99, spare=99)
        for batch in (1, 4, 8, 16, 64)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 2
    assert counts[-1] == 0


def test_a_cost_that_was_given_is_not_learned_over() -> None:
    speculating = speculation(verify_cost=0.5)
    observe(speculating, 1.0, 0.0)
    assert speculating.verify_cost == 0.5


def test_steps_with_prefills_are_not_learned_from() -> None:
    speculating = speculation()
    before = speculating.verify_cost
    for count in (100, 200, 300) * 20:
        item = StepItem(sequence=sequence("a"), start=0, count=count, samples=True)
        speculating.observe_step(StepPlan(items=(item,)), 1.0)
    assert speculating.verify_cost == before
