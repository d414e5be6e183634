"""Plans as they should be, and what holds for any traffic. No model: the next token is a function of the others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.model_free_scheduler import ModelFreeScheduler, text_of
from workers.engine.errors import QueueFull
from workers.engine.scheduler.sequence import FinishReason, Sequence


def test_a_prompt_is_computed_in_chunks_and_then_decodes() -> None:
    runs = ModelFreeScheduler(budget=4)
    runs.submit("a", list(range(10)), max_tokens=3)
    assert runs.steps(5) == ["a 0+4", "a 4+4", "a 8+2!", "a 10+1!", "a 11+1!"]
    assert not runs.scheduler.has_work


def test_decodes_come_before_prefills_in_the_same_step() -> None:
    runs = ModelFreeScheduler(budget=8)
    runs.submit("a", [1] * 3, max_tokens=9)
    runs.step()
    runs.submit("b", list(range(20)), max_tokens=2)
    runs.submit("c", [5] * 3, max_tokens=2)
    assert runs.steps(4) == [
        "a 3+1! | b 0+7",
        "a 4+1! | b 7+7",
        "a 5+1! | b 14+6! | c 0+1",
        "a 6+1! | b 20+1! | c 1+2!",
    ]


def test_a_second_request_starts_behind_the_cached_prefix() -> None:
    runs = ModelFreeScheduler()
    runs.submit("a", list(range(9)), max_tokens=1)
    runs.step()
    second = runs.submit("b", list(range(9)), max_tokens=1)
    assert runs.step() == "b 8+1!"
    assert second.cached_tokens == 8


def test_generated_tokens_are_cached_too() -> None:
    runs = ModelFreeScheduler()
    first = runs.submit("a", [1, 2, 3], max_tokens=6)
    runs.steps(6)
    # Nine tokens are known, and eight of them were computed: the last one sampled never was.
    longer = [*first.tokens, 50, 51]
    assert runs.submit("b", longer, max_tokens=1).expected_cached == 8
    assert runs.step() == "b 8+3!"


def test_of_simultaneous_equal_prompts_one_is_computed() -> None:
    runs = ModelFreeScheduler(budget=100)
    for name in "abc":
        runs.submit(name, list(range(10)), max_tokens=2)
    assert runs.steps(3) == ["a 0+10!", "a 10+1! | b 8+2! | c 8+2!", "b 10+1! | c 10+1!"]


def test_a_request_waits_for_the_common_part_only() -> None:
    runs = ModelFreeScheduler(budget=8)
    common = list(range(12))
    runs.submit("a", [*common, 90, 91, 92, 93, 94, 95], max_tokens=1)
    runs.submit("b", [*common, 80, 81, 82, 83, 84], max_tokens=1)
    # After the second step everything common is cached: b goes on by itself.
    assert runs.steps(3) == ["a 0+8", "a 8+8", "a 16+2! | b 12+5!"]


def test_another_salt_is_not_worth_waiting_for() -> None:
    runs = ModelFreeScheduler(budget=100)
    runs.submit("a", list(range(10)), max_tokens=1, salt="x")
    runs.submit("b", list(range(10)), max_tokens=1, salt="y")
    assert runs.step() == "a 0+10! | b 0+10!"


def test_others_go_ahead_of_a_request_that_waits_for_a_prefix() -> None:
    runs = ModelFreeScheduler(budget=14)
    runs.submit("a", list(range(10)), max_tokens=1)
    runs.submit("b", list(range(10)), max_tokens=1)
    runs.submit("c", [70, 71, 72], max_tokens=1)
    assert runs.steps(2) == ["a 0+10! | c 0+3!", "b 8+2!"]


def test_a_prompt_without_room_waits_and_no_other_overtakes_it() -> None:
    runs = ModelFreeScheduler(blocks=6, block_size=4, budget=100)
    runs.submit("a", [1] * 8, max_tokens=8)
    runs.submit("b", [2] * 14, max_tokens=2)
    runs.submit("c", [3] * 2, max_tokens=1)
    assert runs.step() == "a 0+8!"
    assert [sequence.id for sequence in runs.scheduler.waiting] == ["b", "c"]


def test_the_last_to_come_is_preempted_and_resumes_with_the_same_tokens() -> None:
    runs = ModelFreeScheduler(blocks=6, block_size=4, budget=100)
    first, second = runs.submit("a", [1] * 4, max_tokens=14), runs.submit("b", [2] * 4, max_tokens=14)
    while runs.scheduler.has_work:
        runs.step()
    preempted = [sequence.id for plan in runs.plans for sequence in plan.preempted]
    assert {"b"} == set(preempted)
    assert text_of([1] * 4, 14) == first.tokens[4:]
    assert text_of([2] * 4, 14) == second.tokens[4:]
    assert second.cached_tokens == 0


def test_a_preempted_sequence_finds_its_full_blocks_again() -> None:
    runs = ModelFreeScheduler(blocks=5, block_size=4, budget=100)
    runs.submit("a", [1] * 4, max_tokens=9)
    second = runs.submit("b", [2] * 4, max_tokens=9)
    seen = []
    while runs.scheduler.has_work:
        runs.step()
        if runs.plans[-1].preempted:
            seen.append(second.expected_cached)
    assert seen == [8]


def test_the_running_set_has_a_bound() -> None:
    runs = ModelFreeScheduler(running_max=2, budget=100)
    for name in "abc":
        runs.submit(name, [ord(name)], max_tokens=2)
    assert runs.steps(3) == ["a 0+1! | b 0+1!", "a 1+1! | b 1+1!", "c 0+1!"]


def test_the_waiting_queue_has_a_bound() -> None:
    runs = ModelFreeScheduler(waiting_max=2)
    runs.submit("a", [1])
    runs.submit("b", [1])
    with pytest.raises(QueueFull):
        runs.submit("c", [1])


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_sequence_that_is_ended_gives_everything_back(steps: int) -> None:
    runs = ModelFreeScheduler(budget=4)
    sequence = runs.submit("a", list(range(10)), max_tokens=5)
    runs.steps(steps)
    runs.scheduler.finish(sequence, FinishReason.ABORT)
    assert not runs.scheduler.has_work
    assert runs.blocks == runs.tree.available_blocks
    runs.scheduler.finish(sequence, FinishReason.STOP)
    assert sequence.finish == FinishReason.ABORT


Prompt = st.lists(st.integers(0, 2), min_size=1, max_size=12)
Arrival = st.tuples(st.integers(0, 6), Prompt, st.integers(1, 8), st.sampled_from(["", "s"]))


@given(
    arrivals=st.lists(Arrival, min_size=1, max_size=10),
    blocks=st.integers(1, 12),
    block_size=st.sampled_from([1, 2, 4]),
    budget=st.sampled_from([1, 3, 8, 100]),
    running_max=st.integers(1, 5),
    aborts=st.sets(st.integers(0, 9), max_size=3),
)
def test_whatever_comes_everything_admitted_finishes_within_the_budget(
    arrivals: list[tuple[int, list[int], int, str]],
    blocks: int,
    block_size: int,
    budget: int,
    running_max: int,
    aborts: set[int],
) -> None:
    runs = ModelFreeScheduler(blocks=blocks, block_size=block_size, budget=budget, running_max=running_max)
    fitting = [a for a in sorted(arrivals, key=lambda a: a[0]) if len(a[1]) + a[2] <= blocks * block_size]
    sequences: list[Sequence] = []
    step = 0
    while len(sequences) < len(fitting) or runs.scheduler.has_work:
        while len(sequences) < len(fitting) and fitting[len(sequences)][0] <= step:
            _, prompt, max_tokens, salt = fitting[len(sequences)]
            sequences.append(runs.submit(str(len(sequences)), prompt, max_tokens, salt))
        if runs.scheduler.has_work:
            runs.step()
            plan = runs.plans[-1]
            assert plan.items, "a step without work although there is some"
            assert plan.num_tokens <= budget
            assert len(runs.scheduler.running) <= running_max
            # In order of arrival, so that the last of them is the one to preempt.
            orders = [sequence.order for sequence in runs.scheduler.running]
            assert sorted(orders) == orders
        for number in aborts:
            if number < len(sequences) and step == 4 + number:
                runs.scheduler.finish(sequences[number], FinishReason.ABORT)
        step += 1
        assert step < 2000
    for sequence, (_, prompt, max_tokens, _salt) in zip(sequences, fitting, strict=True):
        if sequence.finish is FinishReason.LENGTH:
            assert text_of(prompt, max_tokens) == sequence.tokens[len(prompt) :]
        else:
            assert sequence.finish == FinishReason.ABORT
    assert blocks == runs.tree.available_blocks == runs.tree.pool.free_blocks + runs.tree.cached_blocks


@settings(max_examples=60, deadline=None)
@given(prompts=st.lists(Prompt, min_size=2, max_size=8), budget=st.sampled_from([1, 5, 100]))
def test_first_tokens_come_in_the_order_of_arrival_when_nothing_is_shared(
    prompts: list[list[int]], budget: int
) -> None:
    runs = ModelFreeScheduler(blocks=200, budget=budget, running_max=3)
    sequences = [
        runs.submit(str(number), prompt, max_tokens=3, salt=str(number))
        for number, prompt in enumerate(prompts)
    ]
    first: list[str] = []
    while runs.scheduler.has_work:
        runs.step()
        for item in runs.plans[-1].items:
            if item.samples and item.sequence.id not in first:
                first.append(item.sequence.id)
    by_step = {sequence.id: sequence.order for sequence in sequences}
    assert sorted(by_step.values()) == [by_step[name] for name in first]
