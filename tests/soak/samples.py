"""Samples of a run, and the verdict: is memory flat?

    resident memory
        |        . . . . . . . . . . .  <- the last two thirds: their slope counts
        |     .
        |  .     the first third: caches fill up to their bounds
        +------------------------------- requests

The slope is that of a straight line through the samples (least squares). It is flat if, over the requests of those
two thirds, the line rises by no more than SHARE_MAX of its memory or BYTES_MAX, whichever is more: an allocator's
noise. What leaks a hundred bytes a request shows in a hundred thousand requests, ten bytes in a million.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean

SHARE_MAX = 0.05
BYTES_MAX = 6 * 1024**2
SAMPLES_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """`memory`: resident bytes by process, Valkey's own count under REDIS. The rest: of all gateways together."""

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
    """The last two thirds, by requests."""
    last = samples[-1].requests
    return [sample for sample in samples if sample.requests >= last / 3]


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
