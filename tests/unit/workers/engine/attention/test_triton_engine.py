"""An engine with the Triton backend gives the tokens of one with the SDPA backend."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.workers.engine.attention.kernel_device import DEVICE
from tests.unit.workers.engine.conftest import finish_all, greedy
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.engine import Engine
from workers.engine.errors import ConfigInvalid
from workers.engine.request import Request

Load = Callable[..., Engine]


def requests(name: str) -> list[Request]:
    """A prompt of one token, one that repeats itself, and two with a common beginning."""
    common = [16 + place * 7 % 400 for place in range(18)]
    prompts = [[9], [20, 21, 22] * 4, common, [*common, 30, 31]]
    return [Request(id=f"{name}{n}", prompt=prompt, params=greedy(4)) for n, prompt in enumerate(prompts)]


def tokens(engine: Engine, *, twice: bool = False) -> list[list[int]]:
    found = [answer.tokens for answer in finish_all(engine, requests("cold")).values()]
    if twice:
        found += [answer.tokens for answer in finish_all(engine, requests("warm")).values()]
    return found


@pytest.mark.parametrize(
    ("variant", "settings", "twice"),
    [
        ("llama-gqa", {}, True),
        ("qwen2-window", {"kv_dtype": "k8v4", "block_size": 4}, False),
        ("mistral-window-of-two", {"batching": "static"}, False),
        (
            "qwen3-mqa",
            {"speculation": SpecConfig(method="ngram", prompt_lookup_min=1, adaptive=False)},
            False,
        ),
        ("llama-gqa", {"speculation": SpecConfig(method="early_exit", exit_layer=1, num_tokens=2)}, False),
    ],
    ids=str,
)
def test_greedy_tokens_are_those_of_the_sdpa_backend(
    load: Load, variant: str, settings: dict[str, Any], twice: bool
) -> None:
    common = {"device": DEVICE.type, "kv_tokens": 1024, "chunk_tokens": 16, **settings}
    expected, found = (
        tokens(load(variant, attention_backend=name, **common), twice=twice) for name in ("sdpa", "triton")
    )
    assert found == expected


def test_the_plan_of_a_step_has_the_workspace_and_no_gathered_keys(load: Load) -> None:
    sdpa, triton = (
        load("llama-gqa", device=DEVICE.type, attention_backend=name, cuda_graphs=False)
        for name in ("sdpa", "triton")
    )
    assert (sdpa.info.attention_backend, triton.info.attention_backend) == ("sdpa", "triton")
    assert triton.info.step_bytes < sdpa.info.step_bytes


def test_an_engine_without_a_kv_cache_refuses_the_kernels(load: Load) -> None:
    with pytest.raises(ConfigInvalid, match="kv_layout none keeps none"):
        load("llama-gqa", device=DEVICE.type, attention_backend="triton", kv_layout="none")
