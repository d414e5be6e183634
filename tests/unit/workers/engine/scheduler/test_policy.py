"""The order of requests, the start of a batch, the size of a step: plans under every policy, on a fake clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.model_free_scheduler import ModelFreeScheduler, text_of
from workers.engine.scheduler.policy import SchedulingPolicy
from workers.engine.scheduler.sequence import FinishReason, Sequence

STATIC = SchedulingPolicy(batching="static", chunked_prefill=False, prefix_caching=False)
WHOLE = SchedulingPolicy(chunked_prefill=False)


def order_of_first_tokens(runs: ModelFreeScheduler) -> list[str]:
    first: list[str] = []
    while runs.scheduler.has_work:
        runs.step()
        first += [
            item.sequence.id
            for item in runs.plans[-1].items
            if item.samples and item.sequence.id not in first
        ]
    return first


def test_a_static_batch_is_let_in_when_the_last_of_the_one_before_has_finished() -> None:
    runs = ModelFreeScheduler(policy=STATIC, running_max=2, budget=100)
    runs.submit("a", [1] * 3, max_tokens=3)
    runs.submit("b", [2] * 3, max_tokens=1)
    runs.submit("c", [3] * 3, max_tokens=1)
    assert runs.steps(4) == ["a 0+3! | b 0+3!", "a 3+1! | #1", "a 4+1! | #1", "c 0+3!"]


def test_the_same_requests_in_a_continuous_batch_take_each_others_places_at_once() -> None:
    runs = ModelFreeScheduler(running_max=2, budget=100)
    runs.submit("a", [1] * 3, max_tokens=3)
    runs.submit("b", [2] * 3, max_tokens=1)
    runs.submit("c", [3] * 3, max_tokens=1)
    assert runs.steps(3) == ["a 0+3! | b 0+3!", "a 3+1! | c 0+3!", "a 4+1!"]


def test_a_static_batch_pads_every_prompt_to_the_longest() -> None:
    runs = ModelFreeScheduler(policy=STATIC, budget=4)
    runs.submit("a", [1] * 9, max_tokens=1)
    runs.submit("b", [2] * 2, max_tokens=1)
    runs.submit("c", [3] * 5, max_tokens=1)
    assert runs.step() == "a 0+9! | b 0+2! | c 0+5! | #7 | #4"


def test_a_sequence_that_leaves_a_static_batch_leaves_an_empty_row() -> None:
    runs = ModelFreeScheduler(policy=STATIC, budget=100)
    runs.submit("a", [1] * 3, max_tokens=3)
    gone = runs.submit("b", [2] * 3, max_tokens=9)
    runs.step()
    runs.scheduler.finish(gone, FinishReason.ABORT)
    assert runs.step() == "a 3+1! | #1"


def test_a_static_batch_with_chunks_comes_in_at_once_and_is_computed_in_pieces() -> None:
    runs = ModelFreeScheduler(policy=SchedulingPolicy(batching="static", prefix_caching=False), budget=4)
    runs.submit("a", [1] * 6, max_tokens=1)
    runs.submit("b", [2] * 4, max_tokens=1)
    assert runs.steps(3) == ["a 0+4", "a 4+2! | b 0+2", "b 2+2! | #2"]


def test_without_chunks_a_prompt_waits_for_a_step_that_it_fits_in() -> None:
    runs = ModelFreeScheduler(policy=WHOLE, budget=8)
    runs.submit("a", [1] * 5, max_tokens=2)
    runs.submit("b", [2] * 5, max_tokens=1)
    runs.submit("c", [3] * 2, max_tokens=1)
    assert runs.steps(2) == ["a 0+5!", "a 5+1! | b 0+5! | c 0+2!"]


def test_without_chunks_a_prompt_longer_than_the_budget_makes_a_long_step() -> None:
    runs = ModelFreeScheduler(policy=WHOLE, budget=4)
    runs.submit("a", [1] * 2, max_tokens=3)
    runs.step()
    runs.submit("b", [2] * 9, max_tokens=1)
    assert runs.steps(2) == ["a 2+1! | b 0+9!", "a 3+1!"]


def test_without_prefix_caching_nothing_is_found_and_nothing_is_kept() -> None:
    runs = ModelFreeScheduler(policy=SchedulingPolicy(prefix_caching=False))
    runs.submit("a", list(range(9)), max_tokens=2)
    runs.finish_all()
    again = runs.submit("b", list(range(9)), max_tokens=1)
    assert runs.step() == "b 0+9!"
    assert (again.cached_tokens, runs.tree.cached_blocks, runs.tree.pool.free_blocks) == (
        0,
        0,
        runs.blocks,
    )


def test_simultaneous_equal_prompts_do_not_wait_for_each_other_without_prefix_caching() -> None:
    runs = ModelFreeScheduler(policy=SchedulingPolicy(prefix_caching=False), budget=100)
    runs.submit("a", list(range(9)), max_tokens=1)
    runs.submit("b", list(range(9)), max_tokens=1)
    assert runs.step() == "a 0+9! | b 0+9!"


@pytest.mark.parametrize(("first", "expected"), [("lower", "bac"), ("higher", "cab")])
def test_priority_goes_before_arrival_in_the_direction_of_the_setting(first: str, expected: str) -> None:
    runs = ModelFreeScheduler(policy=SchedulingPolicy(priority_first=first), running_max=1)
    for name, priority in (("a", 0), ("b", -1), ("c", 1)):
        runs.submit(name, [ord(name)], max_tokens=1, priority=priority)
    assert order_of_first_tokens(runs) == list(expected)


def test_equals_are_served_by_slack_and_those_without_a_deadline_last() -> None:
    runs = ModelFreeScheduler(running_max=1)
    runs.submit("never", [1], max_tokens=1)
    runs.submit("late", [2], max_tokens=1, deadline=9.0)
    runs.submit("soon", [3], max_tokens=1, deadline=5.0)
    runs.submit("behind", [4], max_tokens=1, deadline=1.0, priority=1)
    assert order_of_first_tokens(runs) == ["soon", "late", "never", "behind"]


def test_slack_counts_the_prefill_that_the_cache_does_not_save() -> None:
    runs = ModelFreeScheduler(running_max=1, budget=100)
    runs.submit("warm", [1] * 33, max_tokens=1)
    runs.finish_all()
    runs.scheduler.seconds_per_token = 0.1
    # 1 token x 0.1 s against 33 x 0.1 s: the cold one must begin earlier to be in time.
    runs.submit("cached", [1] * 33, max_tokens=1, deadline=5.0)
    runs.submit("cold", [2] * 33, max_tokens=1, deadline=6.0)
    assert order_of_first_tokens(runs) == ["cold", "cached"]


def test_a_request_whose_deadline_passed_while_it_waited_ends_with_that_reason() -> None:
    runs = ModelFreeScheduler(running_max=1)
    runs.submit("a", [1] * 4, max_tokens=3)
    runs.step()
    late = runs.submit("b", [2] * 4, deadline=2.0)
    runs.now = 1.9
    assert runs.step() == "a 4+1!"
    runs.now = 2.0
    assert runs.step() == "a 5+1! | xb"
    assert (late.finish, late.num_generated, runs.scheduler.waiting) == (FinishReason.DEADLINE, 0, [])


def test_a_plan_may_hold_nothing_but_the_late() -> None:
    runs = ModelFreeScheduler()
    runs.submit("a", [1] * 4, deadline=1.0)
    runs.now = 3.0
    assert (runs.step(), runs.scheduler.has_work) == ("xa", False)


def test_a_request_that_has_begun_to_answer_is_not_ended_by_its_deadline() -> None:
    runs = ModelFreeScheduler(blocks=6, budget=100)
    runs.submit("a", [1] * 4, max_tokens=14)
    second = runs.submit("b", [2] * 4, max_tokens=14, deadline=1.0, priority=1)
    runs.step()
    runs.now = 2.0
    runs.finish_all()
    assert any(plan.preempted for plan in runs.plans)
    assert (second.finish, text_of([2] * 4, 14)) == (FinishReason.LENGTH, second.tokens[4:])


def test_the_lowest_priority_is_preempted_although_it_came_first() -> None:
    runs = ModelFreeScheduler(blocks=6, budget=100)
    runs.submit("low", [1] * 4, max_tokens=14, priority=1)
    runs.submit("high", [2] * 4, max_tokens=14)
    runs.finish_all()
    assert {"low"} == {sequence.id for plan in runs.plans for sequence in plan.preempted}


def test_of_equals_the_one_with_the_most_slack_is_preempted() -> None:
    runs = ModelFreeScheduler(blocks=6, budget=100)
    runs.submit("slack", [1] * 4, max_tokens=14, deadline=50.0)
    runs.submit("tight", [2] * 4, max_tokens=14, deadline=20.0)
    runs.finish_all()
    assert {"slack"} == {sequence.id for plan in runs.plans for sequence in plan.preempted}


def test_tokens_that_a_preemption_lost_are_marked_as_computed_again() -> None:
    runs = ModelFreeScheduler(policy=SchedulingPolicy(prefix_caching=False), blocks=6, budget=100)
    runs.submit("a", [1] * 4, max_tokens=14)
    runs.submit("b", [2] * 4, max_tokens=14)
    runs.finish_all()
    known = {"a": 0, "b": 0}
    for plan in runs.plans:
        for item in plan.items:
            end = item.start + item.count
            assert item.recomputed == max(0, min(end, known[item.sequence.id]) - item.start)
            known[item.sequence.id] = max(known[item.sequence.id], end)
    assert sum(item.recomputed for plan in runs.plans for item in plan.items) > 0


@pytest.mark.parametrize("ageing", [10.0, 60.0])
def test_no_request_starves_under_an_endless_stream_of_better_ones(ageing: float) -> None:
    runs = ModelFreeScheduler(running_max=1, policy=SchedulingPolicy(ageing_seconds=ageing))
    patient = runs.submit("patient", [7] * 3, max_tokens=1, priority=3)
    while patient.finish is None:
        runs.submit(f"urgent {runs.now}", [1], max_tokens=1, deadline=runs.now + 100)
        runs.step()
        runs.now += 1.0
        assert runs.now < 4 * ageing + 2, "it waited longer than three classes and one epoch"
    assert runs.now > 3 * ageing


def test_ageing_keeps_the_order_within_a_class() -> None:
    runs = ModelFreeScheduler(running_max=1, policy=SchedulingPolicy(ageing_seconds=1.0))
    for number in range(20):
        runs.now = number * 0.3
        runs.submit(str(number), [number], max_tokens=1, priority=5)
    assert order_of_first_tokens(runs) == [str(number) for number in range(20)]


Arrival = st.tuples(
    st.integers(0, 6),
    st.lists(st.integers(0, 2), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(-2, 2),
    st.none() | st.integers(1, 30),
)


@given(
    arrivals=st.lists(Arrival, min_size=1, max_size=10),
    blocks=st.integers(3, 12),
    budget=st.sampled_from([1, 3, 8, 100]),
    running_max=st.integers(1, 5),
    batching=st.sampled_from(["continuous", "static"]),
    chunked=st.booleans(),
    caching=st.booleans(),
    first=st.sampled_from(["lower", "higher"]),
)
def test_under_every_policy_all_finish_none_is_lost_and_the_budget_holds(
    arrivals: list[tuple[int, list[int], int, int, int | None]],
    blocks: int,
    budget: int,
    running_max: int,
    batching: str,
    chunked: bool,
    caching: bool,
    first: str,
) -> None:
    policy = SchedulingPolicy(
        batching=batching, chunked_prefill=chunked, prefix_caching=caching, priority_first=first
    )
    runs = ModelFreeScheduler(blocks=blocks, budget=budget, running_max=running_max, policy=policy)
    coming = [a for a in sorted(arrivals, key=lambda a: a[0]) if len(a[1]) + a[2] <= blocks * 4]
    sequences: list[Sequence] = []
    while len(sequences) < len(coming) or runs.scheduler.has_work:
        while len(sequences) < len(coming) and coming[len(sequences)][0] <= runs.now:
            _, prompt, max_tokens, priority, deadline = coming[len(sequences)]
            sequences.append(
                runs.submit(str(len(sequences)), prompt, max_tokens, priority=priority, deadline=deadline)
            )
        if runs.scheduler.has_work:
            runs.step()
            plan = runs.plans[-1]
            assert plan.items or plan.expired, "a step without work although there is some"
            if chunked:
                assert plan.num_tokens <= budget
            assert len(runs.scheduler.running) <= running_max
            ranks = [sequence.rank for sequence in runs.scheduler.running]
            assert sorted(ranks) == ranks
        runs.now += 1
        assert runs.now < 2000
    for sequence, (_, prompt, max_tokens, _, deadline) in zip(sequences, coming, strict=True):
        if sequence.finish is FinishReason.DEADLINE:
            assert deadline is not None
            assert sequence.num_generated == 0
        else:
            assert sequence.finish is FinishReason.LENGTH
            assert text_of(prompt, max_tokens) == sequence.tokens[len(prompt) :]
    assert blocks == runs.tree.available_blocks == runs.tree.pool.free_blocks + runs.tree.cached_blocks


@given(
    arrivals=st.lists(st.integers(0, 6), min_size=2, max_size=9).map(sorted),
    prompt=st.integers(1, 14),
    output=st.integers(1, 12),
    room=st.integers(0, 5),
    budget=st.sampled_from([1, 3, 8, 100]),
    running_max=st.integers(1, 6),
)
def test_of_equal_requests_none_is_overtaken_however_little_memory_there_is(
    arrivals: list[int], prompt: int, output: int, room: int, budget: int, running_max: int
) -> None:
    # One of them fits alone, and a few blocks more: so they push one another out again and again.
    blocks = -(-(prompt + output) // 4) + room
    runs = ModelFreeScheduler(blocks=blocks, budget=budget, running_max=running_max)
    sequences: list[Sequence] = []
    while len(sequences) < len(arrivals) or runs.scheduler.has_work:
        while len(sequences) < len(arrivals) and arrivals[len(sequences)] <= runs.now:
            name = str(len(sequences))
            sequences.append(runs.submit(name, [len(sequences)] * prompt, output, salt=name))
        if runs.scheduler.has_work:
            runs.step()
        generated = [sequence.num_generated for sequence in sequences]
        assert sorted(generated, reverse=True) == generated
        runs.now += 1
        assert runs.now < 3000
    for number, sequence in enumerate(sequences):
        assert sequence.tokens[prompt:] == text_of([number] * prompt, output)


def test_more_load_than_memory_makes_them_push_one_another_out_and_the_first_one_never() -> None:
    runs = ModelFreeScheduler(blocks=8, budget=100)
    names = "abcdef"
    sequences = [runs.submit(name, [ord(name)] * 6, 14, salt=name) for name in names]
    finished: list[str] = []
    while runs.scheduler.has_work:
        runs.step()
        finished += [one.id for one in sequences if one.finish and one.id not in finished]
    preempted = {sequence.id for plan in runs.plans for sequence in plan.preempted}
    assert preempted
    assert "a" not in preempted
    assert finished == list(names)
    assert all(one.tokens[6:] == text_of([ord(one.id)] * 6, 14) for one in sequences)
