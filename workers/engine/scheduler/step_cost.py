"""What one more row adds to a step, learned from the steps that were computed.

A step without prefills takes  t(rows) = a + b * rows:  a to read the weights, b to compute a row. Here the line is
fitted to such steps by least squares, the older ones counting less and less:

    seconds |          . x
            |     . x                   share = b / (a + b), what the second row of a step costs; in (0, 1)
          a + . x
            |x
            +----------------- rows

How fast a machine is does not matter, only the line's shape. As long as all steps have had the same number of rows
nothing is known about it: so a few steps that nobody computed, of a typical shape and the present speed, count too.
"""

from collections.abc import Iterable

FORGET = 0.98
"""Weight of a step is this, to the power of the steps since: fifty of them decide."""
PRIOR_ROWS = (1, 16)
PRIOR_WEIGHT = 0.25
"""Of each step that nobody computed."""
OUTLIER = 3.0
"""A step counts as at most so many times what was expected: the machine did something else."""
SHARE_MIN, SHARE_MAX = 0.001, 0.95


class StepCost:
    """The line of one engine."""

    def __init__(self, typical: float) -> None:
        """`typical`: the share that is believed before any step was computed, in [0, 1)."""
        self._typical = typical
        self._weight = self._rows = self._seconds = self._square = self._product = 0.0

    @property
    def share(self) -> float:
        """b / (a + b)."""
        fixed, each = self._line()
        if fixed + each <= 0:
            return self._typical
        return min(SHARE_MAX, max(SHARE_MIN, each / (fixed + each)))

    def expected(self, rows: float) -> float:
        """Seconds of a step of so many rows; 0 before the first one."""
        fixed, each = self._line()
        return max(0.0, fixed + each * rows)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if self._weight and (expected := self.expected(rows)) > 0:
            seconds = min(seconds, OUTLIER * expected)
        old = FORGET
        self._weight = old * self._weight + 1
        self._rows = old * self._rows + rows
        self._seconds = old * self._seconds + seconds
        self._square = old * self._square + rows * rows
        self._product = old * self._product + rows * seconds

    def _line(self) -> tuple[float, float]:
        """a and b; the prior's shape at the present speed is part of what is fitted."""
        if not self._weight:
            return 0.0, 0.0
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        scale = seconds / self._typical_at(rows)
        prior = [(float(at), scale * self._typical_at(at)) for at in PRIOR_ROWS]
        weight = self._weight + PRIOR_WEIGHT * len(prior)
        mean_rows = (self._rows + _sum(at for at, _ in prior)) / weight
        mean_seconds = (self._seconds + _sum(took for _, took in prior)) / weight
        variance = (self._square + _sum(at * at for at, _ in prior)) / weight - mean_rows**2
        covariance = (
            self._product + _sum(at * took for at, took in prior)
        ) / weight - mean_rows * mean_seconds
        each = covariance / variance
        return mean_seconds - each * mean_rows, each

    def _typical_at(self, rows: float) -> float:
        """Time of a step, in those of a step with one row."""
        return 1 - self._typical + self._typical * rows


def _sum(values: Iterable[float]) -> float:
    return PRIOR_WEIGHT * sum(values)
