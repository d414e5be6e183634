"""How far it pays to guess, learned from how it went.

With a probability `a` that a guess is accepted given that the one before was, a step that verifies k guesses gives

    E(k) = 1 + a + a^2 + ... + a^k = (1 - a^(k+1)) / (1 - a)      tokens on average   (Leviathan et al. 2023, eq. 1)

and takes 1 + k * c of the time of a plain step, where c is what a guess costs: to make it, and one more row to
verify (ibid., theorem 3.8). A step of B rows takes time a + b * B, to read the weights and to compute; so one
more guess for each of B sequences adds b * B / (a + b * B), and what pays for one sequence alone may not pay for
many. The k that gives the most tokens per time is the pace. Where even the first guess does not pay it is 0, and
then a step now and then probes whether that is still so:

    acceptance   .8  .8  .1  .1 ............................ .1 | .9
    pace          4   3   0   0   0  (PROBE_STEPS in all)  0  2 |  4
                                                        a probe |
"""

from dataclasses import dataclass

PROBE_STEPS = 32
"""Steps without a guess after which one is tried."""
PROBE_TOKENS = 2
WEIGHT = 0.1
"""Of the newest guess in the moving average."""
FIRST_ACCEPTANCE = 0.7
"""What is believed before anything was tried: high enough to try."""


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a step gives on average; `acceptance` in [0, 1]."""
    return sum(acceptance**place for place in range(drafts + 1))


def speed_up(acceptance: float, drafts: int, cost: float) -> float:
    """How many times faster than plain decoding, when each draft costs `cost` of a plain step."""
    return expected_tokens(acceptance, drafts) / (1 + drafts * cost)


def row_cost(verify_cost: float, batch: int) -> float:
    """What one more row for each of `batch` sequences adds to a step, as a share of it.

    `verify_cost` is b / (a + b), in [0, 1): the same for a batch of one; see `step_cost`.
    """
    rows = batch * verify_cost / (1 - verify_cost)
    return rows / (1 + rows)


def best_length(acceptance: float, cost: float, most: int) -> int:
    """The number of drafts, at most `most`, with the largest speed-up; of equal ones the smallest."""
    return max(range(most + 1), key=lambda drafts: (speed_up(acceptance, drafts, cost), -drafts))


@dataclass(slots=True)
class Pace:
    """One sequence's experience with its guesses."""

    acceptance: float = FIRST_ACCEPTANCE
    _idle: int = 0

    def length(self, cost: float, most: int) -> int:
        """Drafts that this step should verify, at most `most`; called once for each step that could."""
        best = best_length(self.acceptance, cost, most)
        if best:
            return best
        self._idle += 1
        return min(most, PROBE_TOKENS) if self._idle >= PROBE_STEPS else 0

    def learn(self, drafts: int, accepted: int) -> None:
        """Of so many drafts so many were accepted. Those behind the first rejected one were never tried."""
        self._idle = 0
        for place in range(min(drafts, accepted + 1)):
            self.acceptance += WEIGHT * ((place < accepted) - self.acceptance)
