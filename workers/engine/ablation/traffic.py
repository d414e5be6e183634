"""Synthetic requests like those of a service: mixed lengths, many with a common beginning, spread over time.

prompt = [ one of a few shared beginnings, or none | tokens of its own ]

Lengths are drawn from log-normal distributions: most are short, and some are several times as long, as in public
traces of conversations. Arrivals are a Poisson process.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_LENGTH_SIGMA = 0.8
"""Standard deviation of the logarithm of a length: the longest of fifty is about six times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShape:
    """The parameters of the traffic; lengths are in tokens."""

    requests: int = 32
    seconds: float = 2.0
    """Time over which the requests arrive."""
    prompt_median: int = 48
    """Median length of a prompt without its shared beginning."""
    output_median: int = 24
    prompt_max: int = 192
    """Longest prompt without its shared beginning."""
    output_max: int = 80
    shared: int = 4
    """How many different beginnings there are."""
    shared_tokens: int = 96
    """Length of a shared beginning."""
    shared_share: float = 0.75
    """Share of the requests with a shared beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request and the time of its arrival."""

    at_seconds: float
    """Seconds from the start."""
    prompt: tuple[int, ...]
    max_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the answer together."""
        return len(self.prompt) + self.max_tokens


def traffic(shape: TrafficShape, *, vocab: int, seed: int = 0) -> list[Arrival]:
    """Return requests in order of arrival; the same arguments give the same requests.

    Token ids below 16 are left to special tokens.
    """
    random_numbers = random.Random(seed)
    beginnings = [_tokens(random_numbers, shape.shared_tokens, vocab) for _ in range(shape.shared)]
    moments = sorted(random_numbers.uniform(0, shape.seconds) for _ in range(shape.requests))
    return [_arrival(random_numbers, moment, shape, beginnings, vocab) for moment in moments]


def _arrival(
    random_numbers: random.Random,
    moment: float,
    shape: TrafficShape,
    beginnings: Sequence[tuple[int, ...]],
    vocab: int,
) -> Arrival:
    begin = (
        random_numbers.choice(beginnings)
        if beginnings and random_numbers.random() < shape.shared_share
        else ()
    )
    own = _length(random_numbers, shape.prompt_median, shape.prompt_max)
    output = _length(random_numbers, shape.output_median, shape.output_max)
    return Arrival(at_seconds=moment, prompt=begin + _tokens(random_numbers, own, vocab), max_tokens=output)


def _length(random_numbers: random.Random, median: int, most: int) -> int:
    return max(1, min(most, round(random_numbers.lognormvariate(math.log(median), _LENGTH_SIGMA))))


def _tokens(random_numbers: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(random_numbers.randrange(16, vocab) for _ in range(count))
