"""Who guesses how far in a step: between decodes and prefills, from what is left of budget and blocks.

What pays is decided for each sequence by what became of its guesses (`pace`), and by what a row more has cost the
steps of this engine (`step_cost`): the more sequences decode, the less a step is bound by reading weights, and the
more a guess has to be worth. So guessing ends by itself where the batch is too large for it.

budget   [ a b c d | a' a' a' b' | e e e e e e ]       decodes, then their guesses, then prefills and newcomers
blocks   guesses take only blocks that no running sequence has been promised, preempt nobody, and give back after
         the step what did not come to stand
"""

from workers.engine.config.speculation_config import SpecConfig
from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.drafter import Drafter
from workers.engine.scheduler.pace import row_cost
from workers.engine.scheduler.plan import Item, StepPlan
from workers.engine.scheduler.sequence import Sequence
from workers.engine.scheduler.step_cost import StepCost

VERIFY_COSTS = {"cpu": 0.08, "cuda": 0.006}
"""What is believed at the start: a step of about 13 rows on a CPU (measured, two cores with AVX2), and of 165 on an
H200 (by roofline), takes twice as long as one of 1."""


class Speculation:
    """One engine's rule, and its record of how well it went."""

    def __init__(self, config: SpecConfig, drafter: Drafter, device: str = "cpu") -> None:
        self.counters = SpecCounters()
        self.batch_size_max = config.batch_size_max
        self._config = config
        self._cost = StepCost(VERIFY_COSTS[device])
        self._drafter = drafter

    @property
    def verify_cost(self) -> float:
        """What a second row adds to the time of a step with one, as a share of it."""
        return self._cost.share if self._config.verify_cost is None else self._config.verify_cost

    def count(self, sequence: Sequence, *, batch: int, budget: int, spare: int) -> int:
        """Guesses for one of `batch` sequences that decode in this step.

        They take at most `budget` tokens, and `spare` blocks more than the sequence has.
        """
        # The step gives one token more than it accepts, and no token behind the last one allowed.
        wanted = sequence.params.max_tokens - sequence.num_generated - 1
        most = min(self._config.num_tokens, budget, wanted)
        while most > 0 and sequence.blocks.missing(len(sequence.tokens) + most) > spare:
            most -= 1
        if most > 0 and self._config.adaptive:
            most = sequence.pace.length(self._drafter.cost + row_cost(self.verify_cost, batch), most)
        return self._drafter.ready(sequence, most) if most > 0 else 0

    def learn(self, item: Item, accepted: int) -> None:
        """So many of the item's guesses stand."""
        self.counters.record(item.drafts, accepted)
        item.sequence.pace.learn(item.drafts, accepted)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long. Those with prefills say nothing about a row more of decoding."""
        if not plan.items or plan.padding or any(item.count > 1 + item.drafts for item in plan.items):
            return
        # Guesses that a model made took their part of it before there was anything to verify.
        guessing = max(item.drafts for item in plan.items) * self._drafter.cost
        plain = self._cost.expected(len(plan.items))
        self._cost.observe(plan.num_tokens, max(seconds - guessing * plain, seconds / (1 + guessing)))
