"""The real scheduler under any history: requests, forks, aborts, flushes and a pool that is too small for all.

As in kv/test_ownership.py a ghost remembers what was computed into every slot. Here the plans say what is
computed: what an item reads must have been computed for that very prefix, and all get the tokens of a run alone.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.fakes.model_free_scheduler import text_of, verified
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.prefix_tree import EVICTED, PrefixTree
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import StepPlan
from workers.engine.scheduler.scheduler import Scheduler
from workers.engine.scheduler.sequence import FinishReason, Sequence

BLOCKS, SIZE, BUDGET = 8, 2, 5
Prefix = tuple[str, tuple[int, ...]]


class History(RuleBasedStateMachine):
    """Submit, step, abort, flush."""

    scheduler_class: type[Scheduler] = Scheduler
    window: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(BlockPool(BLOCKS, SIZE), window=self.window)
        self.scheduler = self.scheduler_class(self.tree, token_budget=BUDGET, running_max=4, waiting_max=8)
        self.ghost: dict[tuple[int, int], Prefix] = {}
        self.sequences: list[Sequence] = []
        self.asked: list[tuple[list[int], int]] = []

    @precondition(lambda self: len(self.scheduler.waiting) < 6)
    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        max_tokens=st.integers(1, 6),
        salt=st.sampled_from(["", "s"]),
        choices=st.integers(1, 3),
    )
    def submit(self, prompt: list[int], max_tokens: int, salt: str, choices: int) -> None:
        leader: Sequence | None = None
        for _ in range(choices):
            sequence = Sequence(
                id=str(len(self.sequences)),
                order=len(self.sequences),
                tokens=list(prompt),
                num_prompt=len(prompt),
                params=SamplingParams(max_tokens=max_tokens),
                seed=0,
                salt=salt,
                stop_ids=frozenset(),
                leader=leader,
            )
            self.scheduler.submit(sequence)
            self.sequences.append(sequence)
            self.asked.append((prompt, max_tokens))
            leader = leader or sequence

    @rule()
    def step(self) -> None:
        plan = self.scheduler.plan()
        self.compute(plan)
        self.scheduler.commit(plan, [verified(item) for item in plan.items if item.samples])

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.unfinished))
        self.scheduler.finish(sequence, FinishReason.ABORT)
        assert sequence.table is None

    @precondition(lambda self: not self.scheduler.has_work)
    @rule()
    def flush(self) -> None:
        assert self.tree.clear()
        assert self.tree.pool.free_blocks == BLOCKS

    @property
    def unfinished(self) -> list[Sequence]:
        return self.scheduler.running + self.scheduler.waiting

    def compute(self, plan: StepPlan) -> None:
        for source, target in plan.copies:
            for offset in range(SIZE):
                self.ghost[target, offset] = self.ghost.get((source, offset), ("nothing", ()))
        for item in plan.items:
            for position in range(item.start, item.start + item.count):
                self.ghost[self.slot(item.sequence, position)] = prefix(item.sequence, position)
        # After all writes, as the layers do it: a slot overwritten in this very step shows too.
        for item in plan.items:
            first = 0 if self.window is None else max(0, item.start - self.window + 1)
            for position in range(first, item.start + item.count):
                assert self.ghost[self.slot(item.sequence, position)] == prefix(item.sequence, position)

    def slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        block = sequence.blocks.ids[position // SIZE]
        assert block, "a block that is still read was given back"
        return block, position % SIZE

    @invariant()
    def references_are_what_counting_from_scratch_gives(self) -> None:
        holders = Counter(
            block for sequence in self.scheduler.running for block in sequence.blocks.ids if block
        )
        holders.update(node.block for node in self.tree.nodes() if node.block != EVICTED)
        pool = self.tree.pool
        assert [holders[block] for block in range(BLOCKS + 1)] == [
            pool.references(block) for block in range(BLOCKS + 1)
        ]
        self.tree.check()

    def teardown(self) -> None:
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            assert steps < 1000, "it does not come to an end"
        for sequence, (prompt, max_tokens) in zip(self.sequences, self.asked, strict=True):
            if sequence.finish is not FinishReason.ABORT:
                assert text_of(prompt, max_tokens) == sequence.tokens[len(prompt) :]
        assert self.tree.available_blocks == BLOCKS


class WindowedHistory(History):
    window = 4


def prefix(sequence: Sequence, position: int) -> Prefix:
    return sequence.salt, tuple(sequence.tokens[: position + 1])


SETTINGS = settings(
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)

TestHistory = History.TestCase
TestHistory.settings = SETTINGS
TestWindowedHistory = WindowedHistory.TestCase
TestWindowedHistory.settings = SETTINGS


class ForgetsCopies(Scheduler):
    def plan(self, now: float = 0.0) -> StepPlan:
        plan = super().plan(now)
        return StepPlan(items=plan.items, preempted=plan.preempted)


class KeepsBlocksOfTheAborted(Scheduler):
    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
            sequence.table, sequence.finish = None, reason
        else:
            super().finish(sequence, reason)


class KeepsBlocksOfThePreempted(Scheduler):
    def _preempt(self, sequence: Sequence) -> None:
        kept = sequence.blocks
        sequence.table = self._open_table(sequence)
        super()._preempt(sequence)
        assert kept


class CountsOneTooMany(Scheduler):
    def _admit(self, sequence: Sequence, table: object) -> None:
        super()._admit(sequence, table)  # type: ignore[arg-type]
        if sequence.num_computed:
            sequence.num_computed += sequence.pending > 1


@pytest.mark.parametrize(
    "bug", [ForgetsCopies, KeepsBlocksOfTheAborted, KeepsBlocksOfThePreempted, CountsOneTooMany]
)
def test_the_history_finds_a_planted_bug(bug: type[Scheduler]) -> None:
    class Bugged(History):
        scheduler_class = bug

    with pytest.raises(Exception):  # noqa: B017
        run_state_machine_as_test(
            Bugged, settings=settings(SETTINGS, phases=[Phase.generate], max_examples=400, print_blob=False)
        )
