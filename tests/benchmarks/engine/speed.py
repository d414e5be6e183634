"""Prefill and decode tokens per second beside `generate`, and decode beside what memory can deliver."""

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.benchmarks.engine.generate import Generate, StepTimes
from tests.benchmarks.engine.models import Model
from tests.benchmarks.engine.stopwatch import Times, by_turns
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams

Figures = dict[str, float]
BATCHES = (1, 8, 32)
BANDWIDTH_BYTES = 1 << 28


def prompts(count: int, tokens: int, vocab: int, seed: int = 0) -> list[list[int]]:
    """Return random prompts, no two of them alike."""
    chance = random.Random(seed)
    return [[chance.randrange(16, vocab) for _ in range(tokens)] for _ in range(count)]


def submit(engine: Engine, asked: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Submit greedy requests, named by their place."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    for place, prompt in enumerate(asked):
        engine.submit(Request(id=str(place), prompt=prompt, params=params))


def prefill(
    model: Model, config: EngineConfig, theirs: Generate, batch: int, rounds: int
) -> tuple[Figures, Figures]:
    """Measure prefill: one long prompt, or a batch of shorter ones, to their first tokens."""
    length = model.prefill_tokens if batch == 1 else model.context
    asked, tokens = prompts(batch, length, model.shape["vocab"]), batch * length
    engine = Engine.load(replace(config, running_max=batch, chunk_tokens=tokens, prefix_caching=False))

    def ours() -> None:
        submit(engine, asked, max_tokens=1)
        while engine.has_work:
            engine.step()

    own, other = by_turns((ours, lambda: theirs(asked, 1)), rounds)
    return _rates(f"prefill_{batch}", tokens, own), _rates(f"prefill_{batch}", tokens, other)


def decode(
    model: Model, config: EngineConfig, theirs: Generate, batch: int, rounds: int, bandwidth: float
) -> tuple[Figures, Figures]:
    """Measure decode: `batch` streams, for a number of steps after equally long prompts."""
    steps, asked = model.decode_steps, prompts(batch, model.context, model.shape["vocab"], seed=batch)
    engine = Engine.load(replace(config, running_max=batch, chunk_tokens=batch * model.context))
    own, other = Times(), Times()
    for number in range(rounds + 1):
        submit(engine, asked, max_tokens=steps + 1)
        engine.step()
        # So many steps that all first tokens are there.
        while any(not sequence.is_decoding for sequence in engine.scheduler.running):
            engine.step()
        with own.round():
            while engine.has_work:
                engine.step()
        engine.flush_cache()
        watch = StepTimes()
        theirs(asked, steps + 1, watch)
        other.add(*watch.decode)
        if not number:
            # The first round warms up and does not count.
            own, other = Times(), Times()
    figures = tuple(_rates(f"decode_{batch}", batch * steps, times) for times in (own, other))
    width = getattr(torch, engine.info.dtype).itemsize
    read = model.weights_read * width + batch * (model.context + steps // 2) * engine.info.kv_bytes_per_token
    for each, times in zip(figures, (own, other), strict=True):
        each[f"decode_{batch}_bandwidth_share"] = read * steps / times.wall_seconds / bandwidth
    return figures


def read_bandwidth(device: str, rounds: int = 5) -> float:
    """Return the bytes per second that a plain sum over memory reads, with torch's threads."""
    numbers = torch.ones(BANDWIDTH_BYTES // 4, dtype=torch.float32, device=device)
    return BANDWIDTH_BYTES / min(by_turns((numbers.sum,), rounds)[0].wall)


def _rates(name: str, tokens: int, times: Times) -> Figures:
    return {
        f"{name}_tokens_per_second": tokens / times.wall_seconds,
        f"{name}_cpu_ms_per_token": 1e3 * times.cpu_seconds / tokens,
    }
