"""The scheduler plans each step by one rule, as in vLLM V1: add pending tokens until the token budget is spent.

                submit                  admit: room for all known tokens
    refused <---------- waiting ----------------------------------> running ----> finished
                         |   ^                                          |    stop, length, abort
               deadline  |   +------------------------------------------+
                         v     preempt: out of blocks; the sequence with the last rank first

    order within a step:  1. running sequences that decode     one token each
                          2. drafts of those                   with speculative decoding: see `speculation`
                          3. running sequences that prefill    tokens that the budget has left: `tokens_in_step`
                          4. waiting sequences, by rank        a prefix match, then as 3

So prefill, chunked prefill, decode, prefix hits and resumed sequences are one case. A preempted sequence loses its
blocks and is computed again; its full blocks stay in the prefix tree, so it usually resumes by a prefix match.

Ranks come from the `policy` and never change. The running sequence that ranks first is never preempted while there
is another, and each sequence fits the pool alone (`Limits`). So the first always advances, and every accepted
request finishes. The scheduler touches no tensor and reads no clock: the caller passes the time.
"""

from bisect import insort
from collections.abc import Collection, Iterable
from operator import attrgetter

from workers.engine.errors import QueueFull
from workers.engine.kv.block_table import KVTable, NextBlock
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.scheduler.plan import PlanBuilder, SampledTokens, StepItem, StepPlan
from workers.engine.scheduler.policy import SchedulingPolicy, expired
from workers.engine.scheduler.sequence import FinishReason, Sequence
from workers.engine.scheduler.speculation import SpeculationController
from workers.engine.scheduler.table_opener import OpenTable, table_opener

_by_rank = attrgetter("rank")


class Scheduler:
    """The queues of one engine; only the scheduler allocates and frees KV blocks."""

    def __init__(
        self,
        tree: PrefixTree,
        *,
        token_budget: int,
        running_max: int,
        waiting_max: int,
        open_table: OpenTable | None = None,
        policy: SchedulingPolicy | None = None,
        speculation: SpeculationController | None = None,
    ) -> None:
        """Start with empty queues.

        Args:
            tree: The prefix tree, with the block pool.
            token_budget: Most tokens of a step.
            running_max: Most sequences that run at once.
            waiting_max: Most sequences that wait.
            open_table: Opens block tables; by default paged ones.
            policy: Ranks sequences and decides when batches begin.
            speculation: Chooses the number of drafts; None without speculative decoding.
        """
        self.waiting: list[Sequence] = []
        """Sequences without blocks, sorted by rank."""
        self.running: list[Sequence] = []
        """Sequences with blocks that steps compute, sorted by rank."""
        self.receiving: list[Sequence] = []
        """Sequences that have blocks and wait for another engine to send the content."""
        self.newly_reserved: list[Sequence] = []
        """Sequences in `receiving` of which the decode side was not notified yet."""
        self.held_for_handoff: dict[str, KVTable] = {}
        """Blocks of prompts that were computed for another engine, by the id of their sequence."""
        self.seconds_per_token = 0.0
        """Time that a token of prefill takes at present, for deadlines; set by the engine, which has a clock."""
        self._tree = tree
        self._speculation = speculation
        self._token_budget = token_budget
        self._running_max = running_max
        self._waiting_max = waiting_max
        self._policy = policy or SchedulingPolicy()
        self._open_table = open_table or table_opener("paged", tree, shares=self._policy.prefix_caching)
        self._finished_in_batch = 0
        """Finished sequences of a static batch that is still running."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.waiting or self.running)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence that passed the checks of `Limits`. Raises QueueFull when too many wait."""
        if len(self.waiting) >= self._waiting_max:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, which is the maximum")
        if self._policy.prefix_caching:
            depth = self._tree.match_depth(sequence.tokens, sequence.salt, sequence.lora)
            sequence.expected_cached = depth * self._tree.pool.block_size
        uncached = len(sequence.tokens) - sequence.expected_cached
        sequence.rank = self._policy.rank(sequence, uncached * self.seconds_per_token)
        insort(self.waiting, sequence, key=_by_rank)

    def plan(self, now: float = 0.0) -> StepPlan:
        """Plan the next step and allocate its blocks.

        Blocks come from evictions and, if needed, from preemptions. A waiting sequence with a deadline before `now`
        is ended and named in the plan, which may then have no items.
        """
        late = tuple(sequence for sequence in self.waiting if expired(sequence, now))
        for sequence in late:
            self.finish(sequence, FinishReason.DEADLINE)
        step = PlanBuilder(self._token_budget)
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self.running:
            (decoding if sequence.is_decoding else prefilling).append(sequence)
        self._continue_running(step, decoding)
        self._add_drafts(step)
        self._continue_running(step, prefilling)
        # A preempted sequence would be admitted again at once and preempt the next one.
        if not step.preempted:
            self._admit_waiting(step)
        return step.build(expired=late, padding=self._padding(step.items.values()))

    def commit(self, plan: StepPlan, sampled: Iterable[SampledTokens]) -> None:
        """Record what the step computed; `sampled` has one entry for each item that samples, in order."""
        results = iter(sampled)
        for item in plan.items:
            sequence = item.sequence
            if item.samples:
                result = next(results)
                if item.drafts and self._speculation:
                    self._speculation.record_accepted(item, accepted=len(result.tokens) - 1)
                sequence.extend(result.tokens, result.logprobs)
                # The accepted drafts are computed; the rejected ones are dropped by not counting them. The last
                # token counts as not computed: if it was a draft that ended the answer, that makes no difference.
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
        """End a sequence between two steps, in whatever state it is; leave one that has ended alone."""
        if sequence.finish is None:
            sequence.finish = reason
            self._retire(sequence)

    def resume(self, sequence: Sequence, first: SampledTokens | None) -> None:
        """Continue a sequence after its handoff.

        `first` is what the other engine sampled after the prompt; None where the handoff failed and the prompt has
        to be computed here.
        """
        self.receiving.remove(sequence)
        insort(self.running, sequence, key=_by_rank)
        sequence.handoff_role = None
        if first is None:
            return
        sequence.blocks.commit(sequence.tokens, sequence.num_prompt)
        sequence.num_computed = sequence.computed_max = sequence.blocks.computed
        sequence.extend(first.tokens, first.logprobs)
        if sequence.finish:
            self._retire(sequence)

    def release_held(self, sequence_id: str) -> None:
        """Free the blocks of a sequence that were held for another engine."""
        self.held_for_handoff.pop(sequence_id).close()

    def _add_drafts(self, step: PlanBuilder) -> None:
        """Add draft tokens to decoding sequences, as many as free blocks and the budget allow."""
        decoding = list(step.items.values())
        if self._speculation is None or len(decoding) > self._speculation.batch_size_max:
            return
        promised = sum(running.blocks.missing(len(running.tokens)) for running in self.running)
        spare = self._tree.available_blocks - promised
        for item in decoding:
            blocks = item.sequence.blocks
            count = self._speculation.draft_count(
                item.sequence, batch=len(decoding), budget=step.budget, spare=spare
            )
            if count:
                spare -= blocks.missing(len(item.sequence.tokens) + count)
                step.copies += blocks.grow(len(item.sequence.tokens) + count)
                step.add_drafts(item, count)

    def _continue_running(self, step: PlanBuilder, sequences: Iterable[Sequence]) -> None:
        """Add the next tokens of running sequences to the step, first rank first."""
        for sequence in sequences:
            # A sequence that was preempted a moment ago has no table any more.
            count = self._tokens_in_step(step, sequence) if sequence.table is not None else 0
            if count and self._make_room(step, sequence, count):
                step.add(sequence, count)

    def _tokens_in_step(self, step: PlanBuilder, sequence: Sequence) -> int:
        """Return how many tokens of this running sequence the step can compute.

        They are its pending tokens, as far as the budget goes. A sequence whose table keeps no KV between steps
        (`recomputes_everything`: the engine without a KV cache, for comparison) is computed from its first token in
        every step, or its next token could not be sampled; so all of it counts, however small the budget.
        """
        if step.budget <= 0 and not self._policy.lockstep:
            return 0
        if sequence.blocks.recomputes_everything:
            return sequence.pending
        return self._policy.tokens_in_step(sequence.pending, step.budget, first=not step.prefills)

    def _make_room(self, step: PlanBuilder, sequence: Sequence, count: int) -> bool:
        """Allocate blocks for the next `count` tokens; without free ones, preempt the sequences that rank last.

        Return False when that preempted the sequence itself.
        """
        # Mostly none is missing: the last block of a decoding sequence has room for a token.
        blocks, num_tokens = sequence.blocks, sequence.num_computed + count
        while (missing := blocks.missing(num_tokens)) and missing > self._tree.available_blocks:
            victim = self.running[-1]
            self._preempt(victim)
            step.add_preempted(victim)
            if victim is sequence:
                return False
        if missing or blocks.recomputes_everything:
            step.copies += blocks.grow(num_tokens)
        return True

    def _admit_waiting(self, step: PlanBuilder) -> None:
        """Admit waiting sequences, by rank, until one does not fit.

        A sequence whose next block a running one computes now is deferred: that block will be cached for it.
        """
        if not self.waiting or (self._policy.static and self.running):
            return
        computing = {self._next_block(sequence) for sequence in self.running}
        index = 0
        # Each look is a walk down the tree, so a long queue of deferred sequences is not tried to its end.
        looks_left = self._running_max
        while looks_left and index < len(self.waiting) and self._has_free_slot:
            looks_left -= 1
            sequence = self.waiting[index]
            table = self._open_table(sequence)
            sequence.expected_cached = table.shared_tokens
            if self._is_computed_now(sequence, table, computing):
                table.close()
                index += 1
                continue
            count = self._tokens_in_first_step(step, sequence, table)
            if count is None or not self._fits(sequence, table):
                table.close()
                break
            if sequence.handoff_role == "decode":
                self._reserve(sequence, table)
                continue
            self._admit(sequence, table)
            if count:
                step.copies += table.grow(sequence.num_computed + count)
                step.add(sequence, count)
            computing.add(self._next_block(sequence))

    def _tokens_in_first_step(self, step: PlanBuilder, sequence: Sequence, table: KVTable) -> int | None:
        """Return how many tokens of a new sequence the step can compute; None where the sequence has to wait."""
        pending = len(sequence.tokens) - table.computed
        if step.budget <= 0 and not self._policy.static:
            return None
        count = self._policy.tokens_in_step(pending, max(0, step.budget), first=not step.prefills)
        if table.recomputes_everything and count:
            return pending
        # A static batch is admitted at once; tokens beyond the budget are computed in the steps after.
        return count if self._policy.static else count or None

    def _next_block(self, sequence: Sequence) -> NextBlock | None:
        """Return the next block that this running sequence will complete and share, if its tokens are known."""
        return sequence.blocks.next_block(sequence.tokens)

    def _is_computed_now(self, sequence: Sequence, table: KVTable, computing: set[NextBlock | None]) -> bool:
        """Return whether another sequence is about to complete the next block that this sequence could reuse.

        Then this sequence waits for that block: of simultaneous equal prompts, one is computed and the others match
        it. Each sequence computes its last token itself, so a block that contains that token is not worth waiting
        for. A fork waits for its leader's whole prompt, and also shares the last block, which is not full. In a
        static batch no sequence waits, because it would wait for the whole batch.
        """
        if self._policy.static or not self._policy.prefix_caching or table.recomputes_everything:
            return False
        leader = sequence.leader
        if leader and leader.table is not None and leader.num_computed < sequence.num_prompt - 1:
            return True
        wanted = table.next_block(sequence.tokens[:-1])
        return wanted is not None and wanted in computing

    def _fits(self, sequence: Sequence, table: KVTable) -> bool:
        """Return whether there are blocks for all known tokens, besides those that running sequences still need."""
        if not (self.running or self.receiving or self.held_for_handoff):
            return True
        promised = sum(running.blocks.missing(len(running.tokens)) for running in self.running)
        # One spare block per running sequence: else its next decoded token would preempt the new sequence.
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
        """Allocate blocks for a prompt that another engine computes, before any transfer begins."""
        self.waiting.remove(sequence)
        table.grow(sequence.num_prompt)
        sequence.table = table
        sequence.num_computed = sequence.cached_tokens = table.computed
        self.receiving.append(sequence)
        self.newly_reserved.append(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        sequence.expected_cached = sequence.blocks.shared_tokens
        self._leave_running(sequence)
        sequence.num_computed = 0
        sequence.drafts.clear()
        insort(self.waiting, sequence, key=_by_rank)

    def _retire(self, sequence: Sequence) -> None:
        """Take a sequence that has ended, or was aborted, out of the queue it is in, and free its blocks."""
        if sequence.table is None:
            self.waiting.remove(sequence)
        elif sequence in self.receiving:
            self.receiving.remove(sequence)
            sequence.table.close()
            sequence.table = None
        else:
            self._leave_running(sequence)
            self._finished_in_batch = self._finished_in_batch + 1 if self.running else 0

    def _leave_running(self, sequence: Sequence) -> None:
        """Take a sequence out of the running ones and free its blocks, unless they wait for a handoff."""
        if sequence.handoff_role == "prefill" and sequence.finish in (FinishReason.STOP, FinishReason.LENGTH):
            self.held_for_handoff[sequence.id] = sequence.blocks
        else:
            sequence.blocks.close()
        sequence.table = None
        self.running.remove(sequence)

    @property
    def _has_free_slot(self) -> bool:
        return len(self.running) + len(self.receiving) < self._running_max

    def _padding(self, items: Collection[StepItem]) -> tuple[int, ...]:
        """Return the padding of a static batch: short prompts are padded, and finished rows are still computed."""
        if not self._policy.static or not items:
            return ()
        width = max(item.count for item in items)
        short = tuple(width - item.count for item in items if item.count < width)
        return short + (width,) * self._finished_in_batch
