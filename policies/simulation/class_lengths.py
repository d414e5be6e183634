"""Lengths of prompts and answers by service class: what voice, code, chat and batch requests look like."""

from collections.abc import Callable, Mapping
from math import exp
from random import Random

Lengths = Callable[[Random], tuple[int, int]]
"""Draws the prompt and output tokens of one request."""


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


def long_answers(random: Random) -> tuple[int, int]:
    """Return the prompt and output tokens of a batch request with a long answer."""
    return _between(random, 2000, 0.6, 100, 8000), _between(random, 800, 0.5, 10, 2000)


INTERACTIVE: Mapping[str, Lengths] = {"voice": _voice, "code": _code, "chat": _chat}
