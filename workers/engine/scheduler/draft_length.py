"""The draft length: how many draft tokens to verify in a step, learnt from how many were accepted.

With a probability `p` that a draft is accepted given that the one before was, a step that verifies k drafts yields

    E(k) = 1 + p + p^2 + ... + p^k = (1 - p^(k+1)) / (1 - p)      tokens on average   (Leviathan et al. 2023, eq. 1)

and takes 1 + k * c of the time of a plain step, where c is the cost of a draft: to make it, and one more row to
verify (ibid., theorem 3.8). A step of B rows takes time a + b * B, to read the weights and to compute; so one more
draft for each of B sequences adds b * B / (a + b * B), and a draft that is worth its time for one sequence alone
may not be so for many. The chosen length is the k with the most tokens per time. Where even the first draft is not
worth its time the length is 0, and a step now and then probes whether that is still so. Where the drafts form a
tree, k is the number of its levels, `p` the probability that a draft of the next level is accepted, and a level
costs all of its drafts.

    acceptance   .8  .8  .1  .1 ............................ .1 | .9
    length        4   3   0   0   0  (PROBE_STEPS in all)  0  2 |  4
                                                        a probe |
"""

from collections.abc import Sequence
from dataclasses import dataclass

PROBE_STEPS = 32
"""Steps without drafts after which a probe is made."""
PROBE_TOKENS = 2
"""Draft tokens of a probe."""
AVERAGE_WEIGHT = 0.1
"""The weight of the newest draft in the moving average of the acceptance."""
ACCEPTANCE_PRIOR = 0.7
"""The acceptance assumed before any draft was verified: high enough to try."""


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Return the tokens that a step yields on average; `acceptance` in [0, 1]."""
    return sum(acceptance**position for position in range(drafts + 1))


def speed_up(acceptance: float, levels: int, cost: float, drafts: int | None = None) -> float:
    """Return how many times faster than plain decoding this is, when each draft costs `cost` of a plain step.

    `drafts` is the number of drafts in these levels; None: one in each.
    """
    return expected_tokens(acceptance, levels) / (1 + (levels if drafts is None else drafts) * cost)


def row_cost(verify_cost: float, batch: int) -> float:
    """Return the time that one more row for each of `batch` sequences adds to a step, as a share of it.

    `verify_cost` is b / (a + b), in [0, 1): the same for a batch of one; see `step_cost`.
    """
    rows = batch * verify_cost / (1 - verify_cost)
    return rows / (1 + rows)


def best_length(acceptance: float, cost: float, most: int, sizes: Sequence[int] | None = None) -> int:
    """Return the number of levels, at most `most`, with the largest speed-up; of equal ones the smallest.

    `sizes` are the drafts in no level, in the first one, in the first two, and so on; None: one in each level.
    """
    drafts = sizes or range(most + 1)
    return max(
        range(most + 1), key=lambda levels: (speed_up(acceptance, levels, cost, drafts[levels]), -levels)
    )


@dataclass(slots=True)
class AdaptiveDraftLength:
    """Chooses the number of drafts for one sequence from how many of its drafts were accepted."""

    acceptance: float = ACCEPTANCE_PRIOR
    """Moving average of the probability that a draft is accepted."""
    _idle: int = 0
    """Steps since the last draft."""

    def choose(self, cost: float, most: int, sizes: Sequence[int] | None = None) -> int:
        """Return how many levels, at most `most`, this step should verify; called once for each possible step.

        `sizes` are the drafts in no level, in the first one, in the first two, and so on; None: one in each level.
        """
        best = best_length(self.acceptance, cost, most, sizes)
        if best:
            return best
        self._idle += 1
        return min(most, PROBE_TOKENS) if self._idle >= PROBE_STEPS else 0

    def record(self, levels: int, accepted: int) -> None:
        """Learn from a verification; levels behind the first rejected one were not tested and do not count."""
        self._idle = 0
        for position in range(min(levels, accepted + 1)):
            self.acceptance += AVERAGE_WEIGHT * ((position < accepted) - self.acceptance)
