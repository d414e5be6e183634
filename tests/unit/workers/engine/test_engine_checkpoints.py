"""What is read from a checkpoint directory, and what is refused with a word on why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import CheckpointInvalid, ConfigInvalid
from workers.engine.model.rope import frequencies
from workers.engine.model.spec import ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
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
    qwen, llama = spec(model_type="qwen2"), spec(attention_bias=True)
    assert (qwen.qkv_bias, qwen.output_bias) == (True, False)
    assert (llama.qkv_bias, llama.output_bias) == (True, True)


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_the_old_and_the_new_way_to_write_rope_mean_the_same(kind: str) -> None:
    old = spec(rope_theta=5e5, rope_scaling={"type": kind, **SCALING})
    new = spec(rope_parameters={"rope_type": kind, "rope_theta": 5e5, **SCALING})
    assert old.rope == new.rope
    assert (kind, 5e5, 8.0) == (new.rope.kind, new.rope.theta, new.rope.factor)


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_frequencies_are_those_of_transformers(kind: str) -> None:
    parameters = {"rope_type": kind, "rope_theta": 5e5, **SCALING}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=32, rope_parameters=parameters)
    wanted, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    assert factor == 1.0
    torch.testing.assert_close(
        frequencies(spec(rope_parameters=parameters).rope, 32), wanted, atol=0, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("generation", "ids"), [({}, {7}), ({"eos_token_id": 9}, {7, 9}), ({"eos_token_id": [9, 11]}, {7, 9, 11})]
)
def test_every_file_that_names_an_end_token_is_heard(generation: dict[str, Any], ids: set[int]) -> None:
    assert ids == ModelSpec.from_config({**LLAMA, "eos_token_id": 7}, generation).eos_ids


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"use_sliding_window": True}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"head_dim": 15}, "head"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointInvalid, match=named):
        spec(**changes)


@pytest.fixture
def copy(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint that a test may break."""
    for file in checkpoint("llama-gqa").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_missing_tensor_is_named(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(CheckpointInvalid, match=r"layers\.1\.mlp\.up_proj"):
        Engine.load(EngineConfig(model=copy))


def test_a_misshapen_tensor_is_named_with_both_shapes(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    save_file({**weights, "lm_head.weight": np.zeros((3, 64), np.float32)}, copy / "model.safetensors")
    with pytest.raises(CheckpointInvalid, match=r"lm_head.*\(3, 64\).*\(512, 64\)"):
        Engine.load(EngineConfig(model=copy))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_broken_file_is_named(copy: Path, file: str) -> None:
    (copy / file).write_bytes(b"{ not what it should be")
    with pytest.raises(CheckpointInvalid, match=file):
        Engine.load(EngineConfig(model=copy))
    (copy / file).unlink()
    with pytest.raises(CheckpointInvalid, match=file):
        Engine.load(EngineConfig(model=copy))


def test_a_shard_outside_of_the_checkpoint_is_refused(copy: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointInvalid, match="elsewhere"):
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
