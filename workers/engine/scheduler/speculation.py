"""Decides how many draft tokens each decoding sequence gets in a step.

The number for each sequence depends on how many of its earlier drafts were accepted (`draft_length`), and on the
time that one more row has added to the steps of this engine (`step_cost`). The more sequences decode, the less a
step is bound by reading weights, and the likelier a draft token has to be accepted. So drafting ends by itself
where the batch is too large for it.

budget   [ a b c d | a' a' a' b' | e e e e e e ]       decodes, then their drafts, then prefills and new sequences
blocks   drafts take only blocks that no running sequence was promised, they preempt no sequence, and the blocks of
         rejected drafts are freed after the step
"""

from bisect import bisect_left
from collections.abc import Sequence as Items

from workers.engine.config.speculation_config import SpecConfig
from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.draft_length import row_cost
from workers.engine.scheduler.drafter import Drafter
from workers.engine.scheduler.plan import StepItem, StepPlan
from workers.engine.scheduler.sequence import Sequence
from workers.engine.scheduler.step_cost import StepCost

VERIFY_COSTS = {"cpu": 0.08, "cuda": 0.006}
"""The verification cost assumed at the start: a step of about 13 rows on a CPU (measured, two cores with AVX2), and
of 165 rows on an H200 (by roofline), takes twice as long as a step of one row."""


class SpeculationController:
    """Chooses the number of drafts of each sequence, and records how many were accepted."""

    def __init__(self, config: SpecConfig, drafter: Drafter, device: str = "cpu") -> None:
        self.counters = SpecCounters()
        self.batch_size_max = config.batch_size_max
        self._config = config
        self._cost = StepCost(VERIFY_COSTS[device])
        self._drafter = drafter
        self._sizes: Items[int] = drafter.tree.sizes if drafter.tree else range(config.num_tokens + 1)
        """The draft tokens of so many levels of the tree; in a chain each token is a level."""

    @property
    def verify_cost(self) -> float:
        """The time that a second row adds to a step with one row, as a share of that step's time."""
        return self._cost.share if self._config.verify_cost is None else self._config.verify_cost

    def draft_count(self, sequence: Sequence, *, batch: int, budget: int, spare: int) -> int:
        """Return the number of draft tokens for one sequence in this step.

        Args:
            sequence: A sequence that decodes in this step.
            batch: How many sequences decode in this step.
            budget: The most draft tokens that the step has room for.
            spare: The most blocks that the drafts may take beyond those that the sequence has.
        """
        # A step yields one token more than it accepts, and no token may follow the last one allowed.
        remaining = sequence.params.max_tokens - sequence.num_generated - 1
        sizes = self._sizes
        most = min(len(sizes) - 1, remaining)
        known, blocks = len(sequence.tokens), sequence.blocks
        budget = min(budget, blocks.tokens_max - known)
        while most > 0 and (sizes[most] > budget or blocks.missing(known + sizes[most]) > spare):
            most -= 1
        if most > 0 and self._config.adaptive:
            cost = self._drafter.cost + row_cost(self.verify_cost, batch)
            most = sequence.draft_length.choose(cost, most, sizes)
        return self._drafter.draft_count(sequence, sizes[most]) if most > 0 else 0

    def record_accepted(self, item: StepItem, accepted: int) -> None:
        """Record that `accepted` of the item's drafts were accepted, one of each level down to that depth."""
        levels = bisect_left(self._sizes, item.drafts)
        self.counters.record(item.drafts, accepted, levels)
        item.sequence.draft_length.record(levels, accepted)

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """Learn from the time that a step took; steps with prefills are no measure of decoding rows."""
        if not plan.items or plan.padding or any(item.count > 1 + item.drafts for item in plan.items):
            return
        # A draft model took part of that time before the verification began.
        drafting = max(item.drafts for item in plan.items) * self._drafter.cost
        plain = self._cost.expected(len(plan.items))
        self._cost.observe(plan.num_tokens, max(seconds - drafting * plain, seconds / (1 + drafting)))
