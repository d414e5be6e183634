"""Plans with drafts: how many each sequence gets, what they cost other sequences, and that none is left over."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.model_free_scheduler import ModelFreeScheduler, text_of
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.drafter import ComputedStep
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import FinishReason, Sequence
from workers.engine.scheduler.speculation import SpeculationController


class Oracle:
    """Knows what the model will say, and says so for the first `right` of its drafts."""

    cost = 0.0
    tree = None

    def __init__(self, right: int = 99) -> None:
        self.right = right

    def draft_count(self, sequence: Sequence, limit: int) -> int:
        sequence.drafts = [
            token if place < self.right else (token + 1) % 97
            for place, token in enumerate(text_of(sequence.tokens, limit))
        ]
        return limit

    def propose(self, items: list[StepItem]) -> dict[Sequence, Any]:
        return {}

    def after_step(self, step: ComputedStep) -> None:
        pass


def runs(right: int = 99, *, num_tokens: int = 3, batch: int = 16, **settings: Any) -> ModelFreeScheduler:
    config = SpecConfig(method="ngram", num_tokens=num_tokens, adaptive=False, batch_size_max=batch)
    return ModelFreeScheduler(speculation=SpeculationController(config, Oracle(right)), **settings)


def test_a_decoding_sequence_verifies_its_drafts_and_keeps_what_is_right() -> None:
    for right, plans in (
        (3, ["a 0+5!", "a 5+4~3!", "a 9+4~3!", "a 13+1!"]),
        (1, ["a 0+5!", "a 5+4~3!", "a 7+4~3!", "a 9+4~3!", "a 11+3~2!", "a 13+1!"]),
        (
            0,
            [
                "a 0+5!",
                *(f"a {start}+{min(4, 14 - start)}~{min(3, 13 - start)}!" for start in range(5, 13)),
                "a 13+1!",
            ],
        ),
    ):
        rig = runs(right)
        sequence = rig.submit("a", list(range(5)), max_tokens=10)
        assert rig.finish_all() == plans
        assert text_of(list(range(5)), 10) == sequence.tokens[5:]


def test_each_sequence_has_its_own_token_before_any_has_drafts() -> None:
    rig = runs(budget=6)
    for name in "abc":
        rig.submit(name, [ord(name)], max_tokens=9)
    assert rig.steps(2) == ["a 0+1! | b 0+1! | c 0+1!", "a 1+4~3! | b 1+1! | c 1+1!"]


def test_drafts_count_in_the_budget_and_come_before_prefills() -> None:
    rig = runs(budget=8)
    rig.submit("a", [1] * 3, max_tokens=20)
    rig.step()
    rig.submit("b", list(range(9)), max_tokens=2)
    assert rig.steps(3) == ["a 3+4~3! | b 0+4", "a 7+4~3! | b 4+4", "a 11+4~3! | b 8+1!"]


def test_above_the_largest_batch_there_are_no_drafts() -> None:
    rig = runs(batch=1)
    rig.submit("a", [1], max_tokens=9)
    rig.submit("b", [2], max_tokens=3)
    assert rig.steps(4) == ["a 0+1! | b 0+1!", "a 1+1! | b 1+1!", "a 2+1! | b 2+1!", "a 3+4~3!"]


def test_drafts_take_no_block_that_a_running_sequence_needs() -> None:
    rig = runs(blocks=8, block_size=1, budget=3)
    rig.submit("a", [1] * 2, max_tokens=5)
    rig.submit("b", [2] * 5, max_tokens=1)
    # After the first step three blocks are used; a's next token takes one, and the last four were promised to b.
    assert rig.steps(2) == ["a 0+2! | b 0+1", "a 2+1! | b 1+2"]


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_blocks_of_rejected_drafts_are_free_after_the_step(right: int) -> None:
    rig = runs(right, block_size=1)
    sequence = rig.submit("a", [1, 2], max_tokens=20)
    rig.steps(2)
    assert len(sequence.blocks.ids) == sequence.num_computed == 2 + 1 + right
    assert rig.tree.available_blocks == rig.blocks - sequence.num_computed


def test_a_stop_token_among_the_accepted_drafts_is_the_last_one_kept() -> None:
    rig = runs()
    wanted = text_of([1, 2, 3], 9)
    sequence = rig.submit("a", [1, 2, 3], max_tokens=9)
    sequence.stop_ids = frozenset({wanted[2]})
    rig.finish_all()
    assert (wanted[:3], FinishReason.STOP) == (sequence.tokens[3:], sequence.finish)
    # As without drafts: the token that ended it was never needed in the cache.
    assert rig.tree.cached_blocks * 4 == (len(sequence.tokens) - 1) // 4 * 4


def test_counters_have_drafts_accepted_and_rejected_by_place() -> None:
    rig = runs(right=1)
    rig.submit("a", [1], max_tokens=9)
    rig.finish_all()
    assert rig.speculation is not None
    counters = rig.speculation.counters
    # 1 token from the prompt, then 2 + 2 + 2 + 2 from drafts of 3, 3, 3 and 1.
    assert (counters.num_drafts, counters.num_draft_tokens, counters.num_accepted_tokens) == (4, 10, 4)
    assert counters.num_accepted_tokens_per_pos == [4, 0, 0]
    assert (counters.num_rejected_tokens, counters.acceptance_rate, counters.accepted_length) == (6, 0.4, 2.0)


def test_counters_before_the_first_draft_are_zero() -> None:
    counters = SpecCounters()
    assert (counters.acceptance_rate, counters.accepted_length, counters.num_rejected_tokens) == (0.0, 0.0, 0)


def test_a_copy_of_the_counters_stays_as_it_is() -> None:
    counters = SpecCounters()
    counters.record(2, 1, 2)
    before = counters.copy()
    counters.record(2, 2, 2)
    assert (before.num_drafts, before.num_accepted_tokens_per_pos) == (1, [1, 0])


Prompt = st.lists(st.integers(0, 2), min_size=1, max_size=12)
Arrival = st.tuples(st.integers(0, 6), Prompt, st.integers(1, 9))


@given(
    arrivals=st.lists(Arrival, min_size=1, max_size=8),
    blocks=st.integers(2, 12),
    block_size=st.sampled_from([1, 2, 4]),
    budget=st.sampled_from([1, 3, 8, 100]),
    right=st.integers(0, 5),
    num_tokens=st.integers(1, 5),
    aborts=st.sets(st.integers(0, 7), max_size=2),
)
def test_with_drafts_everything_still_finishes_within_the_budget_with_the_same_text(
    arrivals: list[tuple[int, list[int], int]],
    blocks: int,
    block_size: int,
    budget: int,
    right: int,
    num_tokens: int,
    aborts: set[int],
) -> None:
    rig = runs(
        right, num_tokens=num_tokens, blocks=blocks, block_size=block_size, budget=budget, running_max=4
    )
    fitting = [a for a in sorted(arrivals, key=lambda a: a[0]) if len(a[1]) + a[2] <= blocks * block_size]
    sequences: list[Sequence] = []
    step = 0
    while len(sequences) < len(fitting) or rig.scheduler.has_work:
        while len(sequences) < len(fitting) and fitting[len(sequences)][0] <= step:
            _, prompt, max_tokens = fitting[len(sequences)]
            sequences.append(rig.submit(str(len(sequences)), prompt, max_tokens))
        if rig.scheduler.has_work:
            rig.step()
            plan = rig.plans[-1]
            assert plan.items
            assert plan.num_tokens <= budget
            for sequence in rig.scheduler.running + rig.scheduler.waiting:
                assert not sequence.drafts
            for sequence in rig.scheduler.running:
                assert len(sequence.blocks.ids) == -(-sequence.num_computed // block_size)
        for number in aborts:
            if number < len(sequences) and step == 4 + number:
                rig.scheduler.finish(sequences[number], FinishReason.ABORT)
        step += 1
        assert step < 2000
    for sequence, (_, prompt, max_tokens) in zip(sequences, fitting, strict=True):
        if sequence.finish is FinishReason.LENGTH:
            assert text_of(prompt, max_tokens) == sequence.tokens[len(prompt) :]
    assert blocks == rig.tree.available_blocks == rig.tree.pool.free_blocks + rig.tree.cached_blocks
    # Every cached block is part of a prompt or an answer: no draft got in.
    texts = [tuple(sequence.tokens) for sequence in sequences]
    for node in rig.tree.nodes():
        path = tuple(token for above in [*node.path_to_root()][::-1] for token in above.tokens)
        assert any(text[: len(path)] == path for text in texts)
