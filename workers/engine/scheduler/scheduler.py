"""Who computes what in the next step. One rule, as in vLLM V1: hand out pending tokens until the budget is spent.

                submit                 admit: blocks for all known tokens
    refused <---------- waiting ----------------------------------> running ----> finished
                         |   ^                                          |    stop, length, abort
               deadline  |   +------------------------------------------+
                         v     preempt: out of blocks; who ranks last goes first

    order within a step:  1. running sequences that decode     one token each
                          2. drafts of those                   if somebody guesses: see `speculation`
                          3. running sequences that prefill    as many tokens as the budget has left
                          4. waiting sequences, by rank        a prefix match, then as 3

So prefill, chunked prefill, decode, prefix hits and resumed sequences are one case. A preempted sequence loses its
blocks and is computed again; its full blocks stay in the prefix tree, so it usually resumes by a prefix match.

Ranks come from the `policy` and never change. The running sequence that ranks first is never preempted while there
is another, and each fits the pool alone (`Limits`). So it always advances, and everything accepted finishes. No
tensor is touched here, and no clock: whoever plans says what time it is.
"""

from bisect import insort
from collections.abc import Collection, Iterable
from operator import attrgetter

from workers.engine.errors import QueueFull
from workers.engine.kv.block_table import KVTable, NextBlock
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.scheduler.opening import OpenTable, table_opener
from workers.engine.scheduler.plan import Item, PlanBuilder, Sampled, StepPlan
from workers.engine.scheduler.policy import SchedulingPolicy, expired
from workers.engine.scheduler.sequence import FinishReason, Sequence
from workers.engine.scheduler.speculation import Speculation

_by_rank = attrgetter("rank")


class Scheduler:
    """Queues of one engine, and the only one who gives and takes blocks."""

    def __init__(
        self,
        tree: PrefixTree,
        *,
        token_budget: int,
        running_max: int,
        waiting_max: int,
        open_table: OpenTable | None = None,
        policy: SchedulingPolicy | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.pulling: list[Sequence] = []
        """Have their blocks, and wait for another engine to fill them."""
        self.reserved: list[Sequence] = []
        """Those among them that nobody was told of yet."""
        self.held: dict[str, KVTable] = {}
        """Blocks of prompts that were computed for another engine, by the id of their sequence."""
        self.seconds_per_token = 0.0
        """What a token of prefill takes at present; deadlines reckon with it. Told by whoever has a clock."""
        self._tree = tree
        self._speculation = speculation
        self._token_budget = token_budget
        self._running_max = running_max
        self._waiting_max = waiting_max
        self._policy = policy or SchedulingPolicy()
        self._open_table = open_table or table_opener("paged", tree, shares=self._policy.prefix_caching)
        self._finished_in_batch = 0

    @property
    def has_work(self) -> bool:
        """Is any sequence unfinished?"""
        return bool(self.waiting or self.running)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence that `Limits` let through; QueueFull at the bound."""
        if len(self.waiting) >= self._waiting_max:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, which is the maximum")
        if self._policy.prefix_caching:
            depth = self._tree.match_depth(sequence.tokens, sequence.salt)
            sequence.expected_cached = depth * self._tree.pool.block_size
        uncached = len(sequence.tokens) - sequence.expected_cached
        sequence.rank = self._policy.rank(sequence, uncached * self.seconds_per_token)
        insort(self.waiting, sequence, key=_by_rank)

    def plan(self, now: float = 0.0) -> StepPlan:
        """The next step; takes blocks for it, by evicting and, in need, by preempting.

        Who has waited past its deadline at `now` is ended and named in the plan, which may then hold nothing else.
        """
        late = tuple(sequence for sequence in self.waiting if expired(sequence, now))
        for sequence in late:
            self.finish(sequence, FinishReason.DEADLINE)
        step = PlanBuilder(self._token_budget)
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self.running:
            (decoding if sequence.decodes else prefilling).append(sequence)
        self._continue_running(step, decoding)
        self._add_drafts(step)
        self._continue_running(step, prefilling)
        # Whoever was preempted would come straight back and push out the next one.
        if not step.preempted:
            self._admit_waiting(step)
        return step.plan(expired=late, padding=self._padding(step.items.values()))

    def commit(self, plan: StepPlan, sampled: Iterable[Sampled]) -> None:
        """Record what the step computed. `sampled` holds one for each item that samples, in order."""
        results = iter(sampled)
        for item in plan.items:
            sequence = item.sequence
            if item.samples:
                result = next(results)
                if item.drafts and self._speculation:
                    self._speculation.learn(item, accepted=len(result.tokens) - 1)
                sequence.extend(result.tokens, result.logprobs)
                # What was kept of the drafts is computed, and the rest is forgotten by not counting it. The last
                # token is never computed yet: if it was a draft that ended the answer, that makes no difference.
                sequence.num_computed = len(sequence.tokens) - 1
                sequence.drafts.clear()
            else:
                sequence.num_computed += item.count
            sequence.computed_max = max(sequence.computed_max, sequence.num_computed)
            sequence.blocks.commit(sequence.tokens, sequence.num_computed)
            sequence.num_computed = sequence.blocks.computed
            if item.drafts:
                sequence.blocks.shrink(sequence.num_computed)
            if sequence.finish:
                self._retire(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence between two steps, wherever it stands; one that has ended is left alone."""
        if sequence.finish is None:
            sequence.finish = reason
            self._retire(sequence)

    def resume(self, sequence: Sequence, first: Sampled | None) -> None:
        """Another engine has filled a prompt, and `first` is what it sampled. None: it has not."""
        self.pulling.remove(sequence)
        insort(self.running, sequence, key=_by_rank)
        sequence.handoff = None
        if first is None:
            return
        sequence.blocks.commit(sequence.tokens, sequence.num_prompt)
        sequence.num_computed = sequence.computed_max = sequence.blocks.computed
        sequence.extend(first.tokens, first.logprobs)
        if sequence.finish:
            self._retire(sequence)

    def let_go(self, sequence_id: str) -> None:
        """Free the blocks that were held for another engine."""
        self.held.pop(sequence_id).close()

    def _add_drafts(self, step: PlanBuilder) -> None:
        decoding = list(step.items.values())
        if self._speculation is None or len(decoding) > self._speculation.batch_size_max:
            return
        promised = sum(running.blocks.missing(len(running.tokens)) for running in self.running)
        spare = self._tree.available_blocks - promised
        for item in decoding:
            blocks = item.sequence.blocks
            count = self._speculation.count(
                item.sequence, batch=len(decoding), budget=step.budget, spare=spare
            )
            if count:
                spare -= blocks.missing(len(item.sequence.tokens) + count)
                step.copies += blocks.grow(len(item.sequence.tokens) + count)
                step.speculate(item, count)

    def _continue_running(self, step: PlanBuilder, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            # One that was preempted a moment ago has no table any more.
            count = self._share(step, sequence) if sequence.table is not None else 0
            if count and self._make_room(step, sequence, count):
                step.add(sequence, count)

    def _share(self, step: PlanBuilder, sequence: Sequence) -> int:
        """Tokens that this running sequence would get now."""
        if step.budget <= 0 and not self._policy.lockstep:
            return 0
        if sequence.blocks.recomputes_everything:
            return sequence.pending
        return self._policy.share(sequence.pending, step.budget, first=not step.prefills)

    def _make_room(self, step: PlanBuilder, sequence: Sequence, count: int) -> bool:
        """Get blocks for the sequence's next `count` tokens; False when it had to give up its own place."""
        blocks, num_tokens = sequence.blocks, sequence.num_computed + count
        # A decoding sequence mostly has room in its last block.
        while (missing := blocks.missing(num_tokens)) and missing > self._tree.available_blocks:
            victim = self.running[-1]
            self._preempt(victim)
            step.drop(victim)
            if victim is sequence:
                return False
        if missing or blocks.recomputes_everything:
            step.copies += blocks.grow(num_tokens)
        return True

    def _admit_waiting(self, step: PlanBuilder) -> None:
        if not self.waiting or (self._policy.static and self.running):
            return
        computing = {self._next_block(sequence) for sequence in self.running}
        place = 0
        # Each look costs a walk down the tree: a long queue of deferred sequences is not walked to its end.
        looks = self._running_max
        while looks and place < len(self.waiting) and self._has_place:
            looks -= 1
            sequence = self.waiting[place]
            table = self._open_table(sequence)
            sequence.expected_cached = table.shared_tokens
            if self._is_computed_now(sequence, table, computing):
                table.close()
                place += 1
                continue
            count = self._opening_share(step, sequence, table)
            if count is None or not self._fits(sequence, table):
                table.close()
                break
            if sequence.handoff == "take":
                self._reserve(sequence, table)
                continue
            self._admit(sequence, table)
            if count:
                step.copies += table.grow(sequence.num_computed + count)
                step.add(sequence, count)
            computing.add(self._next_block(sequence))

    def _opening_share(self, step: PlanBuilder, sequence: Sequence, table: KVTable) -> int | None:
        """Tokens that a newcomer gets in its first step; None: it has to wait for another one."""
        pending = len(sequence.tokens) - table.computed
        if step.budget <= 0 and not self._policy.static:
            return None
        share = self._policy.share(pending, max(0, step.budget), first=not step.prefills)
        if table.recomputes_everything and share:
            return pending
        # A static batch comes in at once; what the budget does not reach is computed in the steps after.
        return share if self._policy.static else share or None

    def _next_block(self, sequence: Sequence) -> NextBlock | None:
        """The block that this running sequence will share next, if its tokens are known: a prefill's."""
        return sequence.blocks.next_block(sequence.tokens)

    def _is_computed_now(self, sequence: Sequence, table: KVTable, computing: set[NextBlock | None]) -> bool:
        """Is somebody else about to fill the next block that this sequence could reuse?

        Then it waits for that block: of simultaneous equal prompts, one is computed and the others match it. The
        last token is always computed by its own sequence, so a block that contains it is worth no waiting. A fork
        waits for its leader's whole prompt, and shares the block that is not full as well. In a static batch nobody
        waits: it would be for the whole batch.
        """
        if self._policy.static or not self._policy.prefix_caching or table.recomputes_everything:
            return False
        leader = sequence.leader
        if leader and leader.table is not None and leader.num_computed < sequence.num_prompt - 1:
            return True
        wanted = table.next_block(sequence.tokens[:-1])
        return wanted is not None and wanted in computing

    def _fits(self, sequence: Sequence, table: KVTable) -> bool:
        """Are there blocks for all known tokens, beside what the running ones still need for theirs?"""
        if not (self.running or self.pulling or self.held):
            return True
        promised = sum(running.blocks.missing(len(running.tokens)) for running in self.running)
        # One spare block for each that runs: else the next decoded token of an older one preempts the newcomer.
        spare = len(self.running)
        return table.fits(len(sequence.tokens), promised + spare)

    def _admit(self, sequence: Sequence, table: KVTable) -> None:
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_by_rank)
        sequence.table = table
        sequence.num_computed = table.computed
        if sequence.cached_tokens is None:
            sequence.cached_tokens = table.computed

    def _reserve(self, sequence: Sequence, table: KVTable) -> None:
        """Give blocks to a prompt that another engine computes: no transfer without a home."""
        self.waiting.remove(sequence)
        table.grow(sequence.num_prompt)
        sequence.table = table
        sequence.num_computed = sequence.cached_tokens = table.computed
        self.pulling.append(sequence)
        self.reserved.append(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        sequence.expected_cached = sequence.blocks.shared_tokens
        self._leave_running(sequence)
        sequence.num_computed = 0
        sequence.drafts.clear()
        insort(self.waiting, sequence, key=_by_rank)

    def _retire(self, sequence: Sequence) -> None:
        if sequence.table is None:
            self.waiting.remove(sequence)
        elif sequence in self.pulling:
            self.pulling.remove(sequence)
            sequence.table.close()
            sequence.table = None
        else:
            self._leave_running(sequence)
            self._finished_in_batch = self._finished_in_batch + 1 if self.running else 0

    def _leave_running(self, sequence: Sequence) -> None:
        if sequence.handoff == "give" and sequence.finish in (FinishReason.STOP, FinishReason.LENGTH):
            self.held[sequence.id] = sequence.blocks
        else:
            sequence.blocks.close()
        sequence.table = None
        self.running.remove(sequence)

    @property
    def _has_place(self) -> bool:
        return len(self.running) + len(self.pulling) < self._running_max

    def _padding(self, items: Collection[Item]) -> tuple[int, ...]:
        """What a static batch computes for nobody: short prompts filled up, finished rows carried along."""
        if not self._policy.static or not items:
            return ()
        width = max(item.count for item in items)
        short = tuple(width - item.count for item in items if item.count < width)
        return short + (width,) * self._finished_in_batch
