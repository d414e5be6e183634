"""Timing single calls, in microseconds."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Asked = TypeVar("Asked")
ROUNDS = 5


def in_turn(
    subjects: Mapping[str, Callable[[Asked], object]], asked: Sequence[Asked], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Time all calls of each subject, in rounds in which subjects take turns. The first round only warms up."""
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    clock = time.perf_counter_ns
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds + 1):
            for name, call in subjects.items():
                samples = []
                for one in asked:
                    began = clock()
                    call(one)
                    samples.append((clock() - began) / 1000)
                if number:
                    taken[name] += samples
    finally:
        gc.enable()
    return taken


def at(samples: Sequence[float], percent: float) -> float:
    """Return a percentile of the samples; 0 if there are none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def figures(name: str, samples: Sequence[float]) -> dict[str, float]:
    return {f"{name}_us_p50": at(samples, 50), f"{name}_us_p99": at(samples, 99)}
