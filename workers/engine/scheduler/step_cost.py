"""Estimates the time that one more row adds to a step, from the steps that were computed.

A step without prefills takes  t(rows) = a + b * rows:  a to read the weights, b to compute a row. The line is
fitted to such steps by least squares, in which older steps count less and less:

    seconds |          . x
            |     . x                   share = b / (a + b), the cost of a second row; in (0, 1)
          a + . x
            |x
            +----------------- rows

The speed of the machine does not matter, only the line's shape. While all steps have the same number of rows, they
do not determine the shape: so a few imaginary steps, of a typical shape and the present speed, count too.
"""

from collections.abc import Iterable

DECAY = 0.98
"""A step's weight is this to the power of the number of steps since: about the last fifty steps decide."""
PRIOR_ROWS = (1, 16)
"""Rows of the imaginary steps."""
PRIOR_WEIGHT = 0.25
"""Weight of each imaginary step."""
OUTLIER_FACTOR = 3.0
"""A step counts at most this many times the expected time; a longer one was disturbed by other work."""
SHARE_MIN, SHARE_MAX = 0.001, 0.95
"""Bounds of the estimated share."""


class StepCost:
    """The estimated time of a step by its number of rows, for one engine."""

    def __init__(self, typical: float) -> None:
        """Start with `typical`, the share assumed before any step was computed, in [0, 1)."""
        self._typical = typical
        self._weight = self._rows = self._seconds = self._square = self._product = 0.0

    @property
    def share(self) -> float:
        """The cost of a second row: b / (a + b)."""
        fixed, per_row = self._line()
        if fixed + per_row <= 0:
            return self._typical
        return min(SHARE_MAX, max(SHARE_MIN, per_row / (fixed + per_row)))

    def expected(self, rows: float) -> float:
        """Return the expected seconds of a step with `rows` rows; 0 before the first step."""
        fixed, per_row = self._line()
        return max(0.0, fixed + per_row * rows)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step with `rows` rows that took `seconds`."""
        if self._weight and (expected := self.expected(rows)) > 0:
            seconds = min(seconds, OUTLIER_FACTOR * expected)
        self._weight = DECAY * self._weight + 1
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        self._square = DECAY * self._square + rows * rows
        self._product = DECAY * self._product + rows * seconds

    def _line(self) -> tuple[float, float]:
        """Return a and b, fitted to the steps and to the imaginary ones at the present speed."""
        if not self._weight:
            return 0.0, 0.0
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        scale = seconds / self._typical_at(rows)
        prior = [(float(count), scale * self._typical_at(count)) for count in PRIOR_ROWS]
        weight = self._weight + PRIOR_WEIGHT * len(prior)
        mean_rows = (self._rows + _sum(count for count, _ in prior)) / weight
        mean_seconds = (self._seconds + _sum(took for _, took in prior)) / weight
        variance = (self._square + _sum(count * count for count, _ in prior)) / weight - mean_rows**2
        covariance = (
            self._product + _sum(count * took for count, took in prior)
        ) / weight - mean_rows * mean_seconds
        per_row = covariance / variance
        return mean_seconds - per_row * mean_rows, per_row

    def _typical_at(self, rows: float) -> float:
        """Return the typical time of a step, as a multiple of a step with one row."""
        return 1 - self._typical + self._typical * rows


def _sum(values: Iterable[float]) -> float:
    return PRIOR_WEIGHT * sum(values)
