"""Samples of a run, and the verdict: is memory flat?

    memory
        |        . . . . . . . . . . .  <- counted: their slope
        |     .
        |  .     WARM_REQUESTS: what is bounded fills up
        +------------------------------- requests

The slope is that of a straight line through the samples (least squares). It is flat if the line rises by no more
than BYTES_MAX, or SHARE_MAX of its memory where that is more: an allocator's noise, which does not grow with the
number of requests. What leaks a hundred bytes a request shows in a hundred thousand, ten bytes in a million.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean

WARM_REQUESTS = 120_000
"""The longest takes the logs of changes in Valkey: 64 shards of 4,096 entries, two or three a request."""

SHARE_MAX = 0.03
BYTES_MAX = 5 * 1024**2
SAMPLES_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """`memory`: bytes by process, without what it maps from files; Valkey's own count under REDIS. The rest: of all
    gateways together."""

    requests: int
    seconds: float
    memory: dict[str, int]
    descriptors: int
    tasks: int
    leases: int
    nodes: int
    blocks: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of one process. `growth`: bytes that the line rises over the counted part; `allowed`: how many it may."""

    name: str
    growth: float
    allowed: float
    bytes_per_request: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


def counted(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Those after the warm-up, or in a short run the second half."""
    first = min(WARM_REQUESTS, samples[-1].requests / 2)
    return [sample for sample in samples if sample.requests >= first]


def verdict(name: str, samples: Sequence[Sample]) -> Verdict:
    """Raises ValueError if there are too few to say anything."""
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
