"""Parameters counted from config.json alone are those that transformers builds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.kv import pool_sizing
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.planning.capacity import Deployment, kv_bytes_per_token
from workers.planning.gpus import Gpu
from workers.planning.model_shape import DENSE, MIXTURES, ShapeUnknown, read_shape

BASE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("mistral", {"tie_word_embeddings": True}),
    ("phi3", {}),
    ("qwen2", {}),
    ("qwen3", {"attention_bias": True}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    (
        "qwen2_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56,
        },
    ),
    (
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 40,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
    ),
]


def test_every_known_architecture_is_counted_here():
    assert {kind for kind, _ in CASES} == {*DENSE, *MIXTURES}


@pytest.mark.parametrize(("kind", "more"), CASES, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(CASES)])
def test_parameters_are_as_many_as_transformers_builds(kind: str, more: dict[str, Any]):
    # Some have no head size of their own: it is always the hidden size by the heads.
    head_dim = 16 if kind in ("qwen2", "phi3", "qwen2_moe") else 24
    config = AutoConfig.for_model(kind, **{**BASE, "head_dim": head_dim, **more})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = read_shape(config.to_dict())
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    assert (shape.kv_heads, shape.head_dim) == (2, head_dim)


@pytest.mark.parametrize(
    ("published", "config"),
    [
        (
            8_030_261_248,
            {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256},
        ),
        (
            70_553_706_496,
            {
                "hidden_size": 8192,
                "intermediate_size": 28672,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "vocab_size": 128256,
            },
        ),
        (
            494_032_768,
            {
                "model_type": "qwen2",
                "hidden_size": 896,
                "intermediate_size": 4864,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "vocab_size": 151936,
                "tie_word_embeddings": True,
            },
        ),
        (
            46_702_792_704,
            {
                "model_type": "mixtral",
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "vocab_size": 32000,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            },
        ),
    ],
    ids=["Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-0.5B", "Mixtral-8x7B"],
)
def test_well_known_models_have_their_published_size(published: int, config: dict[str, Any]):
    usual = {
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
    }
    assert read_shape(usual | config).parameters == published


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize(
    "window",
    [
        {},
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        {"sliding_window": None},
    ],
    ids=["plain", "window", "null"],
)
def test_the_engine_and_the_planner_read_the_same_shape(kind: str, window: dict[str, Any]):
    # What both take from a family's own defaults is said here, as every published file does.
    config = {**BASE, "model_type": kind, **({"sliding_window": None} if kind == "mistral" else {}), **window}
    spec, shape = ModelSpec.from_config(config, {}), read_shape(config)
    assert (spec.layers, spec.kv_heads, spec.head_dim) == (shape.layers, shape.kv_heads, shape.head_dim)
    assert spec.windows == shape.windows


def test_of_a_model_that_also_sees_the_language_model_is_read():
    inner = {**BASE, "model_type": "qwen2"}
    outer = {"model_type": "llava", "text_config": inner, "tie_word_embeddings": True, "vision_config": {}}
    assert read_shape(outer) == read_shape(inner | {"tie_word_embeddings": True})


def test_an_unknown_architecture_is_planned_when_its_size_is_given():
    config = {**BASE, "model_type": "brandnew"}
    with pytest.raises(ShapeUnknown, match=r"'brandnew' is not known.*give their number"):
        read_shape(config)
    assert read_shape(config, parameters=1_000_000).parameters == 1_000_000
    with pytest.raises(ShapeUnknown, match="fewer"):
        read_shape(config, parameters=100)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kv_lora_rank": 512}, "latent"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"num_key_value_heads": 4}, "evenly"),
        ({"hidden_size": "96"}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
        ({"torch_dtype": "int3"}, "int3"),
    ],
)
def test_caches_and_files_of_another_kind_are_refused(changes: dict[str, Any], named: str):
    with pytest.raises(ShapeUnknown, match=named):
        read_shape({**BASE, "model_type": "llama", **changes})


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "float16"}, "fp16"),
        ({"dtype": "float32"}, "fp32"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
    ],
)
def test_weights_are_of_the_type_that_the_file_says(changes: dict[str, Any], dtype: str):
    assert read_shape({**BASE, "model_type": "llama", **changes}).weight_dtype == dtype


@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("kept", ["float32", "bfloat16", "float16", "int8", "int4", "k8v4"])
def test_the_engine_allocates_the_kv_bytes_that_are_planned(kept: Any, head_dim: int):
    spec = ModelSpec.from_config({**BASE, "model_type": "llama", "head_dim": head_dim}, {})
    codec = kv_codec(kept, torch.float32)
    planned = kv_bytes_per_token(
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        head_dim=head_dim,
        dtype={"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(kept, kept),
    )
    assert planned == codec.bytes_per_token(spec)
    store = KVStore(
        spec, blocks=5, block_size=4, codec=codec, dtype=torch.float32, device=torch.device("cpu")
    )
    assert store.num_bytes == 5 * 4 * planned


def test_the_engines_pool_is_as_large_as_the_planner_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = {**BASE, "model_type": "llama", "torch_dtype": "float32"}
    shape, spec = read_shape(config), ModelSpec.from_config(config, {})
    room = 3_000_000
    planned = Deployment(
        shape=shape,
        gpu=Gpu(name="mine", memory_bytes=room + 4 * shape.parameters, bandwidth=1, flops=1, source="here"),
        kv_dtype="int8",
        weight_dtype="fp32",
    )
    monkeypatch.setattr(pool_sizing, "CPU_BYTES", room)
    blocks = pool_sizing.pool_blocks(
        EngineConfig(model=tmp_path, running_max=1000, kv_dtype="int8"),
        spec,
        context_length=spec.context_length,
        codec=kv_codec("int8", torch.float32),
        device=torch.device("cpu"),
    )
    assert planned.kv_tokens == blocks * 16 > 0
