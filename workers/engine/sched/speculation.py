"""Who guesses how far in a step: between decodes and prefills, from what is left of budget and blocks.

budget   [ a b c d | a' a' a' b' | e e e e e e ]       decodes, then their guesses, then prefills and newcomers
blocks   guesses take only blocks that no running sequence has been promised, preempt nobody, and give back after
         the step what did not come to stand
"""

from workers.engine.sched.plan import Item
from workers.engine.sched.sequence import Sequence
from workers.engine.spec.config import SpecConfig
from workers.engine.spec.counters import SpecCounters
from workers.engine.spec.drafter import Drafter
from workers.engine.spec.pace import row_cost

VERIFY_COSTS = {"cpu": 0.1, "cuda": 0.006}
"""A step of about 10 rows on a CPU (measured), 165 on an H200 (by roofline), takes twice as long as one of 1."""


class Speculation:
    """One engine's rule, and its record of how well it went."""

    def __init__(self, config: SpecConfig, drafter: Drafter, device: str = "cpu") -> None:
        self.counters = SpecCounters()
        self.batch_size_max = config.batch_size_max
        self._config = config
        self._verify_cost = VERIFY_COSTS[device] if config.verify_cost is None else config.verify_cost
        self._drafter = drafter

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
            most = sequence.pace.length(self._drafter.cost + row_cost(self._verify_cost, batch), most)
        return self._drafter.ready(sequence, most) if most > 0 else 0

    def learn(self, item: Item, accepted: int) -> None:
        """So many of the item's guesses stand."""
        self.counters.record(item.drafts, accepted)
        item.sequence.pace.learn(item.drafts, accepted)
