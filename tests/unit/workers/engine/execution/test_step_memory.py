"""The planned memory of a step is more than steps take, and not many times more."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.workers.engine.conftest import greedy
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.execution.step_memory import step_bytes
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.request import Request

CONTEXT = 512
RUNNING = 4


def peak_bytes(engine: Engine) -> int:
    """The most memory that torch had allocated at one moment of a run, beyond what it had at its beginning."""
    with torch.profiler.profile(profile_memory=True) as profile:
        while engine.has_work:
            engine.step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_tokens": 64},
        {"chunk_tokens": 500},
        {"chunk_tokens": 16, "kv_dtype": "int8"},
        {"chunk_tokens": 64, "kv_dtype": "int4"},
        {"chunk_tokens": 16, "chunked_prefill": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", ["llama-gqa", "qwen2-window"])
def test_no_step_takes_more_than_was_planned(
    load: Callable[..., Engine], checkpoint: Callable[..., Any], variant: str, settings: dict[str, Any]
) -> None:
    engine = load(variant, running_max=RUNNING, kv_tokens=RUNNING * CONTEXT, prefix_caching=False, **settings)
    config = EngineConfig(model=checkpoint(variant), running_max=RUNNING, **settings)
    spec = ModelSpec.from_directory(config.model)
    codec = kv_codec(config.kv_dtype, torch.float32)
    planned = step_bytes(config, spec, context_length=CONTEXT, codec=codec, dtype=torch.float32)
    for number in range(RUNNING):
        prompt = [16 + (number + place) % 400 for place in range(CONTEXT - 8)]
        engine.submit(Request(id=str(number), prompt=prompt, params=greedy(8)))
    peak = peak_bytes(engine)
    assert planned / 40 < peak < planned
    assert engine.info.step_bytes == planned
