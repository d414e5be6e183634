"""Who computes what in the next step. One rule, as in vLLM V1: hand out pending tokens until the budget is spent.

                submit                 admit: blocks for all known tokens
    refused <---------- waiting ----------------------------------> running ----> finished
                           ^                                          |    stop, length, abort
                           +------------------------------------------+
                             preempt: out of blocks; the last to come goes first

    order within a step:  1. running sequences that decode     one token each
                          2. running sequences that prefill    as many tokens as the budget has left
                          3. waiting sequences, oldest first   a prefix match, then as 2

So prefill, chunked prefill, decode, prefix hits and resumed sequences are one case. A preempted sequence loses its
blocks and is computed again; its full blocks stay in the prefix tree, so it usually resumes by a prefix match.

The oldest running sequence is never preempted while there is another, and each fits the pool alone (`Limits`).
So it always advances, and everything that was accepted finishes. No tensor is touched here, and no clock.
"""

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from workers.engine.errors import QueueFull
from workers.engine.kv.prefix import PrefixTree
from workers.engine.kv.table import BlockTable, NextBlock
from workers.engine.sched.plan import Item, StepPlan
from workers.engine.sched.sequence import FinishReason, Sequence

_by_order = attrgetter("order")


class _Draft:
    """A plan while it is made: what is left of the budget, and what was handed out."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.items: dict[Sequence, Item] = {}
        self.preempted: list[Sequence] = []

    def add(self, sequence: Sequence, count: int) -> None:
        """Hand out `count` of the pending tokens; their blocks are there."""
        self.items[sequence] = Item(
            sequence=sequence, start=sequence.num_computed, count=count, samples=count == sequence.pending
        )
        self.budget -= count

    def allowance(self, sequence: Sequence) -> int:
        """Tokens that this sequence would get now."""
        return min(sequence.pending, self.budget)

    def drop(self, sequence: Sequence) -> None:
        """The sequence was preempted; what it had been given is free again."""
        item = self.items.pop(sequence, None)
        self.budget += item.count if item else 0
        self.preempted.append(sequence)


class Scheduler:
    """Queues of one engine, and the only one who gives and takes blocks."""

    def __init__(self, tree: PrefixTree, *, token_budget: int, running_max: int, waiting_max: int) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._tree = tree
        self._token_budget = token_budget
        self._running_max = running_max
        self._waiting_max = waiting_max

    @property
    def has_work(self) -> bool:
        """Is any sequence unfinished?"""
        return bool(self.waiting or self.running)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence that `Limits` let through; QueueFull at the bound."""
        if len(self.waiting) >= self._waiting_max:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, which is the maximum")
        sequence.expected_cached = (
            self._tree.depth_of(sequence.tokens, sequence.salt) * self._tree.pool.block_size
        )
        insort(self.waiting, sequence, key=_by_order)

    def plan(self) -> StepPlan:
        """The next step; takes blocks for it, by evicting and, in need, by preempting."""
        draft = _Draft(self._token_budget)
        self._continue_running(draft)
        # Whoever was preempted would come straight back and push out the next one.
        if not draft.preempted:
            self._admit_waiting(draft)
        return StepPlan(items=tuple(draft.items.values()), preempted=tuple(draft.preempted))

    def commit(self, plan: StepPlan, sampled: Iterable[int]) -> None:
        """Record what the step computed. `sampled` holds one token for each item that samples, in order."""
        tokens = iter(sampled)
        for item in plan.items:
            sequence = item.sequence
            sequence.num_computed += item.count
            sequence.blocks.commit(sequence.tokens, sequence.num_computed)
            if item.samples:
                sequence.append(next(tokens))
                if sequence.finish:
                    self._retire(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence between two steps, wherever it stands; one that has ended is left alone."""
        if sequence.finish is None:
            sequence.finish = reason
            self._retire(sequence)

    def _continue_running(self, draft: _Draft) -> None:
        decoding = [sequence for sequence in self.running if sequence.decodes]
        prefilling = [sequence for sequence in self.running if not sequence.decodes]
        for sequence in decoding + prefilling:
            if not draft.budget:
                break
            count = draft.allowance(sequence)
            # One that was preempted a moment ago has no table any more.
            if sequence.table is not None and self._make_room(draft, sequence, count):
                draft.add(sequence, count)

    def _make_room(self, draft: _Draft, sequence: Sequence, count: int) -> bool:
        """Get blocks for the sequence's next `count` tokens; False when it had to give up its own place."""
        num_tokens = sequence.num_computed + count
        while sequence.blocks.missing(num_tokens) > self._tree.available:
            victim = self.running[-1]
            self._preempt(victim)
            draft.drop(victim)
            if victim is sequence:
                return False
        sequence.blocks.grow(num_tokens)
        return True

    def _admit_waiting(self, draft: _Draft) -> None:
        computing = {self._next_block(sequence) for sequence in self.running}
        place = 0
        # Each look costs a walk down the tree: a long queue of deferred sequences is not walked to its end.
        looks = self._running_max
        while draft.budget and looks and place < len(self.waiting) and len(self.running) < self._running_max:
            looks -= 1
            sequence = self.waiting[place]
            table = BlockTable(self._tree, sequence.tokens, sequence.salt)
            sequence.expected_cached = table.shared_tokens
            if self._is_computed_now(sequence, table, computing):
                table.close()
                place += 1
                continue
            if not self._fits(sequence, table):
                table.close()
                break
            self._admit(sequence, table)
            count = draft.allowance(sequence)
            table.grow(sequence.num_computed + count)
            draft.add(sequence, count)
            computing.add(self._next_block(sequence))

    def _next_block(self, sequence: Sequence) -> NextBlock | None:
        """The block that this running sequence will share next, if its tokens are known: a prefill's."""
        return sequence.blocks.next_block(sequence.tokens)

    def _is_computed_now(
        self, sequence: Sequence, table: BlockTable, computing: set[NextBlock | None]
    ) -> bool:
        """Is somebody else about to fill the next block that this sequence could reuse?

        Then it waits for that block: of simultaneous equal prompts, one is computed and the others match it. The
        last token is always computed by its own sequence, so a block that contains it is worth no waiting.
        """
        wanted = table.next_block(sequence.tokens[:-1])
        return wanted is not None and wanted in computing

    def _fits(self, sequence: Sequence, table: BlockTable) -> bool:
        """Are there blocks for all known tokens, beside what the running ones still need for theirs?"""
        if not self.running:
            return True
        promised = sum(running.blocks.missing(len(running.tokens)) for running in self.running)
        # One spare block for each that runs: else the next decoded token of an older one preempts the newcomer.
        spare = len(self.running)
        return table.missing(len(sequence.tokens)) + promised + spare <= self._tree.available

    def _admit(self, sequence: Sequence, table: BlockTable) -> None:
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_by_order)
        sequence.table = table
        sequence.num_computed = table.shared_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = table.shared_tokens

    def _preempt(self, sequence: Sequence) -> None:
        sequence.expected_cached = sequence.blocks.shared_tokens
        self._leave_running(sequence)
        sequence.num_computed = 0
        insort(self.waiting, sequence, key=_by_order)

    def _retire(self, sequence: Sequence) -> None:
        if sequence.table is None:
            self.waiting.remove(sequence)
        else:
            self._leave_running(sequence)

    def _leave_running(self, sequence: Sequence) -> None:
        sequence.blocks.close()
        sequence.table = None
        self.running.remove(sequence)
