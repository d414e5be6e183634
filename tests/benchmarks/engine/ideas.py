"""The techniques of the engine one by one: a figure with each technique, and one without it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.benchmarks.engine.models import Model
from tests.benchmarks.engine.speed import prompts, submit
from tests.benchmarks.engine.stopwatch import Times
from workers.engine.ablation.measurement import measure_engine
from workers.engine.ablation.traffic import Arrival
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams

Figures = dict[str, float]
STREAMS = 8
LONG_PROMPT = 768
LONG_CONTEXT = 1900
SHORT_ROWS = 31


def prefix_hit(model: Model, config: EngineConfig, rounds: int) -> Figures:
    """Return the TTFT of a prompt: uncached; with all but 64 tokens cached; and of a prompt of 64 tokens."""
    tokens, suffix = model.prefill_tokens, 64
    whole = prompts(1, tokens, model.shape["vocab"])[0]
    engine = Engine.load(replace(config, chunk_tokens=tokens))
    cold, hit, short = Times(), Times(), Times()
    for number in range(rounds + 1):
        for times, prompt, keep in (
            (cold, whole, 0),
            (hit, whole, tokens - suffix),
            (short, whole[-suffix:], 0),
        ):
            engine.flush_cache()
            if keep:
                _first_token(engine, whole[: keep + 1])
            with times.round():
                _first_token(engine, prompt)
        if not number:
            cold, hit, short = Times(), Times(), Times()
    return {
        "ttft_ms_cold": 1e3 * cold.wall_seconds,
        "ttft_ms_hit": 1e3 * hit.wall_seconds,
        "ttft_ms_suffix_alone": 1e3 * short.wall_seconds,
        "ttft_hit_ratio_to_cold": hit.cpu_seconds / cold.cpu_seconds,
        "ttft_hit_ratio_to_suffix_alone": hit.cpu_seconds / short.cpu_seconds,
    }


def _first_token(engine: Engine, prompt: Sequence[int]) -> None:
    submit(engine, [prompt], max_tokens=1)
    while engine.has_work:
        engine.step()


def chunked_prefill(model: Model, config: EngineConfig, rounds: int) -> Figures:
    """Return the gaps of running streams while long prompts arrive, cut into chunks or not.

    The script is fixed in tokens and not in time: each prompt arrives when the streams have so many tokens. Both
    engines take turns, so that disturbances affect both, and the longest gap is the median of all rounds.
    """
    sides = {"chunks": True, "whole": False}
    longest: dict[str, list[float]] = {name: [] for name in sides}
    middle: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, chunked in sides.items():
            engine = Engine.load(replace(config, chunked_prefill=chunked, chunk_tokens=64 + STREAMS))
            gaps = _gaps_of_streams(model, engine)
            # The first round warms up and does not count.
            if number:
                longest[name].append(max(gaps))
                middle[name].append(float(np.percentile(gaps, 50)))
    figures: Figures = {}
    for name in sides:
        figures[f"itl_ms_p50_{name}"] = 1e3 * float(np.median(middle[name]))
        figures[f"itl_ms_max_{name}"] = 1e3 * float(np.median(longest[name]))
    return figures


def _gaps_of_streams(model: Model, engine: Engine) -> list[float]:
    """Return the gaps of STREAMS streams of 60 tokens, beside which two long prompts arrive."""
    arrivals = dict(zip((10, 35), prompts(2, LONG_PROMPT, model.shape["vocab"], seed=9), strict=True))
    submit(engine, prompts(STREAMS, 32, model.shape["vocab"]), max_tokens=60)
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    gaps: list[float] = []
    while engine.has_work:
        times = Times()
        with times.round():
            outputs = engine.step()
        streams = [output for output in outputs if not output.id.startswith("long")]
        gaps += times.wall * sum(output.completion_tokens > 1 for output in streams)
        for output in streams:
            if output.id == "0" and (prompt := arrivals.pop(output.completion_tokens, None)):
                engine.submit(Request(id=f"long {output.completion_tokens}", prompt=prompt, params=params))
    return gaps


def long_among_short(model: Model, config: EngineConfig, rounds: int) -> Figures:
    """Return the time of a decode step: one long context, many short ones, and all of them together."""
    asked = prompts(1, LONG_CONTEXT, model.shape["vocab"]) + prompts(
        SHORT_ROWS, 16, model.shape["vocab"], seed=3
    )
    figures: Figures = {}
    sides = {"long": asked[:1], "short": asked[1:], "together": asked}
    for name, chosen in sides.items():
        engine = Engine.load(
            replace(config, chunk_tokens=4096, running_max=len(asked), kv_tokens=8 * LONG_CONTEXT)
        )
        submit(engine, chosen, max_tokens=32 * (rounds + 1))
        while (
            any(not sequence.is_decoding for sequence in engine.scheduler.running) or engine.loads().waiting
        ):
            engine.step()
        times = Times()
        for _ in range(16 * rounds):
            with times.round():
                engine.step()
        figures[f"step_ms_{name}"] = 1e3 * times.wall_seconds
    figures["step_ms_apart"] = figures["step_ms_long"] + figures["step_ms_short"]
    return figures


def continuous_batching(model: Model, config: EngineConfig) -> Figures:
    """Return how full the batch is and how fast it is done, with short answers among long ones."""
    asked = prompts(4 * STREAMS, 24, model.shape["vocab"], seed=5)
    # One in four is eight times as long. By theory a static batch is filled to mean / max.
    arrivals = [
        Arrival(at_seconds=0.0, prompt=tuple(prompt), max_tokens=64 if place % 4 == 0 else 8)
        for place, prompt in enumerate(asked)
    ]
    figures: Figures = {}
    for batching in ("continuous", "static"):
        chosen = replace(config, batching=batching, running_max=STREAMS, chunk_tokens=STREAMS * 24)
        done = measure_engine(Engine.load(chosen), arrivals)
        figures[f"rows_of_{STREAMS}_{batching}"] = done.rows
        figures[f"tokens_per_second_{batching}"] = done.tokens_per_second
        figures[f"steps_{batching}"] = done.steps
        figures[f"useful_{batching}"] = done.useful
    return figures
