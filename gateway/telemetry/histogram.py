"""A Prometheus histogram in plain Python numbers."""

from bisect import bisect_left


class HistogramCounters:
    """How many values were observed in each bucket of a histogram, and the sum of the values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # upper bounds of the buckets, ascending; the last bucket has none
        self.counts = [0] * (len(bounds) + 1)  # of each bucket alone; Prometheus wants them summed up
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value, in the first bucket with an upper bound of at least this value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
