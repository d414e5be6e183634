"""Requests of mixed lengths that arrive over time: this engine beside `generate` in static batches.

`generate` takes all waiting requests, up to the same number of sequences, pads prompts to the longest and goes on
until the longest answer is finished; requests that arrive meanwhile wait for that. Neither side is ever idle:
requests arrive faster than either can answer them, so tokens per second are those of the engine and not of the
arrivals.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.benchmarks.engine.generate import Generate
from workers.engine.ablation.measurement import measure_engine
from workers.engine.ablation.traffic import Arrival, TrafficShape, traffic
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine

Figures = dict[str, float]


SHAPES = {
    "mixed": {"prompt_median": 48, "output_median": 24, "prompt_max": 160, "output_max": 160},
    "mixed_long_prompts": {"prompt_median": 160, "output_median": 12, "prompt_max": 320, "output_max": 48},
}
"""Short and long, three in four with a shared beginning of 96 tokens."""

BATCH_MAX = 16


def requests(name: str, vocab: int, *, count: int, seconds: float) -> list[Arrival]:
    """Return the traffic with this name."""
    return traffic(TrafficShape(requests=count, seconds=seconds, **SHAPES[name]), vocab=vocab, seed=1)


def compared(
    config: EngineConfig, generate: Generate, arrivals: Sequence[Arrival], rounds: int
) -> tuple[Figures, Figures, Figures]:
    """Measure in turn the engine, the engine without its prefix cache, and `generate`: medians of all rounds."""
    chosen = replace(config, running_max=BATCH_MAX, waiting_max=len(arrivals))
    sides: tuple[Callable[[], Figures], ...] = (
        lambda: ours(chosen, arrivals),
        lambda: ours(replace(chosen, prefix_caching=False), arrivals),
        lambda: theirs(generate, arrivals, batch_max=BATCH_MAX),
    )
    # Kernels are made when a shape occurs for the first time: outside of the measured time.
    ours(chosen, [replace(arrival, at_seconds=0.0) for arrival in arrivals[: 2 * BATCH_MAX]])
    found: list[list[Figures]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, figures in zip(sides, found, strict=True):
            figures.append(side())
    first, second, third = (
        {name: statistics.median(each[name] for each in figures) for name in figures[0]} for figures in found
    )
    return first, second, third


def ours(config: EngineConfig, arrivals: Sequence[Arrival]) -> Figures:
    """Measure the engine with this configuration."""
    figures = measure_engine(Engine.load(config), arrivals)
    return {
        "tokens_per_second": figures.tokens_per_second,
        "cpu_ms_per_token": 1e3 * figures.cpu_seconds / figures.output_tokens,
        "ttft_ms_p50": 1e3 * figures.percentile(figures.ttft, 0.5),
        "ttft_ms_p99": 1e3 * figures.percentile(figures.ttft, 0.99),
    }


def theirs(
    generate: Generate,
    arrivals: Sequence[Arrival],
    *,
    batch_max: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Figures:
    """Measure `generate`, one batch after the other. First tokens come when a batch is done."""
    start, cpu, done = clock(), time.process_time(), 0
    waits: list[float] = []
    while done < len(arrivals):
        now = clock() - start
        batch = [a for a in arrivals[done : done + batch_max] if a.at_seconds <= now]
        if not batch:
            time.sleep(arrivals[done].at_seconds - now)
            continue
        generate([arrival.prompt for arrival in batch], max(arrival.max_tokens for arrival in batch))
        waits += [clock() - start - arrival.at_seconds for arrival in batch]
        done += len(batch)
    seconds, cpu = clock() - start, time.process_time() - cpu
    tokens = sum(arrival.max_tokens for arrival in arrivals)
    return {
        "tokens_per_second": tokens / seconds,
        "cpu_ms_per_token": 1e3 * cpu / tokens,
        "ttft_ms_p50": 1e3 * float(np.percentile(waits, 50)),
        "ttft_ms_p99": 1e3 * float(np.percentile(waits, 99)),
    }


def same_tokens(directory: Path, config: EngineConfig, generate: Generate, asked: Sequence[Arrival]) -> bool:
    """Check that both give the same answers to single requests: only then can the figures be compared."""
    figures = measure_engine(Engine.load(config), asked)
    return all(
        list(tokens) == generate([arrival.prompt], arrival.max_tokens)[0]
        for tokens, arrival in zip(figures.tokens, asked, strict=True)
    )
