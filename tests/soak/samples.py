"""Samples of a run, and the verdict: is memory flat?

    memory
        |        . . . . . . . . . . .  <- counted: their slope
        |     .
        |  .     WARM_REQUESTS: everything bounded fills up
        +------------------------------- requests

The slope is that of a straight line through the samples (least squares). Memory is flat if the line rises by no
more than BYTES_MAX, or SHARE_MAX of the memory where that is more: the noise of an allocator, which does not grow
with the number of requests. A leak of a hundred bytes a request shows after a hundred thousand requests, ten
bytes after a million.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean

WARM_REQUESTS = 120_000
"""The logs of index changes in Valkey fill up last: 64 shards of 4,096 entries, two or three entries a request."""

SHARE_MAX = 0.03
BYTES_MAX = 5 * 1024**2
SAMPLES_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The memory of each process after so many requests, and counts of all gateways together."""

    requests: int
    seconds: float
    memory: dict[str, int]
    """Bytes by process, without pages of files; Valkey's own count under REDIS."""
    descriptors: int
    tasks: int
    leases: int
    nodes: int
    """Nodes of the prefix index."""
    blocks: int
    """Blocks in the prefix index."""
    pages: int
    """Pages that the engine reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on the memory of one process."""

    name: str
    growth: float
    """By how many bytes the line rises over the counted part."""
    allowed: float
    """By how many bytes it may rise."""
    bytes_per_request: float

    @property
    def flat(self) -> bool:
        """Whether the memory is flat."""
        return self.growth <= self.allowed


def counted(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples after the warm-up, or the second half of a short run."""
    first = min(WARM_REQUESTS, samples[-1].requests / 2)
    return [sample for sample in samples if sample.requests >= first]


def verdict(name: str, samples: Sequence[Sample]) -> Verdict:
    """Return the verdict on one process. Raises ValueError if there are too few samples."""
    part = counted(samples)
    if len(part) < SAMPLES_MIN:
        raise ValueError(f"{len(part)} samples are too few for a verdict")
    memory = [float(sample.memory[name]) for sample in part]
    requests = [float(sample.requests) for sample in part]
    slope, _ = linear_regression(requests, memory)
    return Verdict(
        name=name,
        growth=slope * (requests[-1] - requests[0]),
        allowed=max(SHARE_MAX * mean(memory), BYTES_MAX),
        bytes_per_request=slope,
    )
