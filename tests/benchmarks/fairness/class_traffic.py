"""Traffic of all service classes: voice, code and chat at a given rate, and batch prompts that never end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp
from random import Random

RATE = 54.0
"""Voice, code and chat requests a second: 70 % of what two workers of 8B class can do (policies/simulation)."""

BATCH_IN_FLIGHT = 64
"""Batch requests that their sender keeps open."""

TARGETS = {"voice": 0.15, "code": 0.2, "chat": 0.5, "batch": 2.0}
"""Seconds to the first token, as the gateway's defaults have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRequest:
    """One request; every prompt is new."""

    at: float
    service_class: str
    prompt_tokens: int
    output_tokens: int


Lengths = Callable[[Random], tuple[int, int]]


def interactive(rate: float, seconds: float, seed: int) -> Iterator[ClassRequest]:
    """Yield voice, code and chat requests at random times."""
    random, at = Random(f"classes {seed}"), 0.0
    while (at := at + random.expovariate(rate)) < seconds:
        name = random.choice(("voice", "code", "chat"))
        prompt_tokens, output_tokens = _INTERACTIVE[name](random)
        yield ClassRequest(
            at=at, service_class=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens
        )


def _between(random: Random, median: float, sigma: float, least: int, most: int) -> int:
    return int(min(most, max(least, median * exp(random.gauss(0, sigma)))))


def _voice(random: Random) -> tuple[int, int]:
    return _between(random, 250, 0.5, 60, 1000), _between(random, 60, 0.4, 10, 150)


def _code(random: Random) -> tuple[int, int]:
    return _between(random, 500, 0.6, 60, 2000), _between(random, 40, 0.5, 5, 120)


def _chat(random: Random) -> tuple[int, int]:
    return _between(random, 800, 0.8, 60, 6000), _between(random, 200, 0.6, 20, 600)


def short_batch(random: Random) -> tuple[int, int]:
    """Return the prompt and output tokens of a batch request that mostly fits into a step."""
    return _between(random, 1500, 0.8, 100, 8000), _between(random, 150, 0.5, 10, 600)


def long_batch(random: Random) -> tuple[int, int]:
    """Return the prompt and output tokens of a batch request that mostly takes a worker several steps."""
    return _between(random, 6000, 0.6, 500, 16_000), _between(random, 150, 0.5, 10, 600)


_INTERACTIVE: dict[str, Lengths] = {"voice": _voice, "code": _code, "chat": _chat}
BATCH: dict[str, Lengths] = {"short batch prompts": short_batch, "long batch prompts": long_batch}
