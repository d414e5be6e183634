"""Requests as a service sees them: short and long ones mixed, many with a beginning in common, spread over time.

prompt = [ one of a few shared beginnings, or none | words of its own ]
lengths are drawn from log-normal distributions: most are short, some are several times as long (as in public
traces of conversations); arrivals are a Poisson process
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_SPREAD = 0.8
"""Of the logarithm of a length: the longest of fifty is about six times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShape:
    """What the traffic is like; lengths in tokens."""

    requests: int = 32
    seconds: float = 2.0
    """How long they go on arriving."""
    prompt_median: int = 48
    output_median: int = 24
    prompt_max: int = 192
    """Of its own part."""
    output_max: int = 80
    shared: int = 4
    """Different beginnings."""
    shared_tokens: int = 96
    shared_share: float = 0.75
    """Of the requests, how many have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request and its moment, in seconds from the start."""

    at: float
    prompt: tuple[int, ...]
    max_tokens: int

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return len(self.prompt) + self.max_tokens


def traffic(shape: TrafficShape, *, vocab: int, seed: int = 0) -> list[Arrival]:
    """The same requests for the same arguments, in order of arrival. Ids below 16 are left to special tokens."""
    chance = random.Random(seed)
    beginnings = [_words(chance, shape.shared_tokens, vocab) for _ in range(shape.shared)]
    moments = sorted(chance.uniform(0, shape.seconds) for _ in range(shape.requests))
    return [_arrival(chance, moment, shape, beginnings, vocab) for moment in moments]


def _arrival(
    chance: random.Random,
    moment: float,
    shape: TrafficShape,
    beginnings: Sequence[tuple[int, ...]],
    vocab: int,
) -> Arrival:
    begin = chance.choice(beginnings) if beginnings and chance.random() < shape.shared_share else ()
    own = _length(chance, shape.prompt_median, shape.prompt_max)
    output = _length(chance, shape.output_median, shape.output_max)
    return Arrival(at=moment, prompt=begin + _words(chance, own, vocab), max_tokens=output)


def _length(chance: random.Random, median: int, most: int) -> int:
    return max(1, min(most, round(chance.lognormvariate(math.log(median), _SPREAD))))


def _words(chance: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(chance.randrange(16, vocab) for _ in range(count))
