"""A Prometheus histogram in plain Python numbers."""

from bisect import bisect_left

Exemplar = tuple[str, float, float]
"""A trace id, the value that was observed in the trace, and the Unix time in seconds."""


class HistogramCounters:
    """How many values were observed in each bucket of a histogram, and the sum of the values."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # upper bounds of the buckets, ascending; the last bucket has none
        self.counts = [0] * (len(bounds) + 1)  # of each bucket alone; Prometheus has them summed up
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # the latest of each bucket, by the bucket's number

    def observe(self, value: float) -> None:
        """Count one value, in the first bucket with an upper bound of at least this value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def exemplify(self, value: float, trace_id: str, at: float) -> None:
        """Name a trace in which this value was observed."""
        self.exemplars[bisect_left(self.bounds, value)] = (trace_id, value, at)

    def add(self, other: "HistogramCounters") -> None:
        """Add the values of a histogram with the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
        self.exemplars.update(other.exemplars)
