"""The model's specification: read from a checkpoint directory, or refused with a reason."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import CheckpointInvalid, ConfigInvalid
from workers.engine.model.rope import frequencies

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
MISTRAL = {"model_type": "mistral", "num_key_value_heads": 2}
SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def spec(**changes: Any) -> ModelSpec:
    return ModelSpec.from_config({**LLAMA, **changes}, {})


def test_what_a_config_leaves_out_has_the_usual_meaning() -> None:
    plain = spec()
    assert (plain.kv_heads, plain.head_dim, plain.qkv_bias, plain.tied_head) == (4, 16, False, False)
    assert (plain.rope.kind, plain.rope.theta) == ("default", 10_000.0)
    assert frozenset() == plain.eos_ids


def test_qwen2_has_three_biases_and_llama_all_or_none() -> None:
    qwen, llama = spec(model_type="qwen2", num_key_value_heads=4), spec(attention_bias=True)
    assert (qwen.qkv_bias, qwen.output_bias) == (True, False)
    assert (llama.qkv_bias, llama.output_bias) == (True, True)


WINDOW = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("changes", "windows", "window"),
    [
        ({}, (None, None), None),
        ({"sliding_window": 64, "use_sliding_window": True}, (None, None), None),
        ({"model_type": "mistral", "sliding_window": 64}, (64, 64), 64),
        ({"model_type": "mistral", "sliding_window": None}, (None, None), None),
        ({"model_type": "mistral"}, (4096, 4096), 4096),
        ({"model_type": "qwen2", "sliding_window": 64}, (None, None), None),
        ({"model_type": "qwen2", **WINDOW}, (None, 64), None),
        ({"model_type": "qwen3", **WINDOW, "max_window_layers": 0}, (64, 64), 64),
        ({"model_type": "qwen2", **WINDOW, "max_window_layers": 2}, (None, None), None),
        (
            {"model_type": "qwen3", **WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
            (64, None),
            None,
        ),
    ],
)
def test_each_family_sets_the_window_of_a_layer_in_its_own_way(
    changes: dict[str, Any], windows: tuple[int | None, ...], window: int | None
) -> None:
    shape = spec(**{"num_key_value_heads": 2, **changes})
    assert (windows, window) == (shape.windows, shape.window)


@pytest.mark.parametrize(
    ("family", "kv_heads", "head_dim"),
    [("llama", 64, 4), ("qwen2", 32, 4), ("qwen3", 32, 128), ("mistral", 8, 4)],
)
def test_keys_that_are_left_out_mean_what_the_family_means(family: str, kv_heads: int, head_dim: int) -> None:
    shape = spec(model_type=family, num_attention_heads=64, hidden_size=256)
    assert (kv_heads, head_dim) == (shape.kv_heads, shape.head_dim)
    null = spec(
        model_type=family, num_attention_heads=64, hidden_size=256, num_key_value_heads=None, head_dim=None
    )
    assert (null.kv_heads, null.head_dim) == (64, 4)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_the_old_and_the_new_way_to_write_rope_mean_the_same(kind: str) -> None:
    old = spec(rope_theta=5e5, rope_scaling={"type": kind, **SCALING})
    new = spec(rope_parameters={"rope_type": kind, "rope_theta": 5e5, **SCALING})
    assert old.rope == new.rope
    assert (kind, 5e5, 8.0) == (new.rope.kind, new.rope.theta, new.rope.factor)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("linear", {}),
        ("llama3", {}),
        ("yarn", {}),
        ("yarn", {"attention_factor": 1.25}),
        ("yarn", {"mscale": 1.0, "mscale_all_dim": 0.7}),
        ("yarn", {"beta_fast": 8, "beta_slow": 2, "truncate": False}),
        ("yarn", {"factor": None}),
        ("yarn", {"factor": 0.5}),
        ("yarn", {"original_max_position_embeddings": 7, "beta_slow": 32}),
    ],
)
def test_frequencies_are_those_of_transformers(kind: str, more: dict[str, Any]) -> None:
    parameters = {"rope_type": kind, "rope_theta": 5e5, **SCALING, **more}
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=32,
        max_position_embeddings=256,
        rope_parameters=dict(parameters),
    )
    wanted, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    rope = spec(rope_parameters=parameters).rope
    assert rope.attention_factor == pytest.approx(factor)
    torch.testing.assert_close(frequencies(rope, 32), wanted, atol=0, rtol=1e-6)


@pytest.mark.parametrize(
    ("generation", "ids"), [({}, {7}), ({"eos_token_id": 9}, {7, 9}), ({"eos_token_id": [9, 11]}, {7, 9, 11})]
)
def test_every_file_that_names_an_end_token_counts(generation: dict[str, Any], ids: set[int]) -> None:
    assert ids == ModelSpec.from_config({**LLAMA, "eos_token_id": 7}, generation).eos_ids


def test_an_end_token_that_the_model_does_not_have_is_none() -> None:
    config = {**LLAMA, "eos_token_id": [7, LLAMA["vocab_size"], -1]}
    assert ModelSpec.from_config(config, {}).eos_ids == {7}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"layer_types": ["full_attention"]}, "each of 2 layers"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "full_attention or sliding_attention"),
        ({**MISTRAL, "layer_types": ["full_attention"] * 2}, "sliding window"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"head_dim": 15}, "head"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ({"rope_theta": math.inf}, "rope_theta"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        (
            {"model_type": "qwen2", "num_key_value_heads": 4, "use_sliding_window": "no"},
            "use_sliding_window must",
        ),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters .*full_attention",
        ),
        ({"rope_scaling": {"type": "llama3", **SCALING, "low_freq_factor": 4.0}}, "high_freq_factor"),
        ({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_theta"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": [2, "</s>"]}, "eos_token_id"),
        ({"quantization_config": {}}, "quantization_config"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointInvalid, match=named):
        spec(**changes)


def test_a_context_beyond_memory_is_refused_unless_a_smaller_one_is_set(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10**14}))
    with pytest.raises(ConfigInvalid, match="set a smaller context length"):
        Engine.load(EngineConfig(model=copy, kv_tokens=512))
    Engine.load(EngineConfig(model=copy, kv_tokens=512, context_length=512))


def test_a_config_that_nests_without_end_is_refused(copy: Path) -> None:
    (copy / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointInvalid, match=r"config\.json cannot be read"):
        Engine.load(EngineConfig(model=copy))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_broken_file_is_named(copy: Path, file: str) -> None:
    (copy / file).write_bytes(b"{ not what it should be")
    with pytest.raises(CheckpointInvalid, match=file):
        Engine.load(EngineConfig(model=copy))
    (copy / file).unlink()
    with pytest.raises(CheckpointInvalid, match=file):
        Engine.load(EngineConfig(model=copy))


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 0},
        {"kv_tokens": 15},
        {"running_max": 0},
        {"chunk_tokens": -1},
        {"dtype": "int8"},
        {"device": "tpu"},
        {"context_length": 513},
    ],
)
def test_settings_that_cannot_work_are_refused(
    checkpoint: Callable[[str], Path], settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigInvalid):
        Engine.load(EngineConfig(model=checkpoint("llama-gqa"), **settings))


def test_the_pool_has_whole_blocks_and_room_for_every_running_sequence(load: Callable[..., Engine]) -> None:
    assert load(kv_tokens=111, block_size=16).info.pool_tokens == 96
    # 512 tokens of context are 32 blocks of 16.
    assert load(running_max=4).info.pool_tokens == 4 * 512


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"logit_scale": 0.0625}, "logit_scale"),
        ({"residual_multiplier": 0.22}, "residual_multiplier"),
        ({"embedding_multiplier": 12}, "embedding_multiplier"),
        ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnModel"}}, "modeling_own.OwnModel"),
    ],
)
def test_a_key_that_changes_the_model_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointInvalid, match=named):
        spec(**changes)


def test_a_key_with_a_value_that_changes_nothing_is_ignored() -> None:
    changes = {"final_logit_softcapping": None, "logit_scale": 1.0, "num_experts": 0, "is_causal": True}
    assert spec(**changes, auto_map={"AutoTokenizer": "own.Tokenizer"}) == spec()
