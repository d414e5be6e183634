"""Parameters counted from config.json alone are those that transformers builds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.unit.workers.planning.published_configs import PUBLISHED
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.kv import pool_sizing
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.planning.capacity import Deployment, kv_bytes_per_token
from workers.planning.config_values import FAMILY_DEFAULTS, ShapeUnknown
from workers.planning.gpus import Gpu
from workers.planning.layer_attention import HeadAttention
from workers.planning.model_shape import FAMILIES, read_shape

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
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "n_shared_experts": 2,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
}
LATENT = {
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 6,
    "n_group": 1,
    "topk_group": 1,
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
    ("gemma2", {}),
    ("gemma3_text", {}),
    ("glm4", {}),
    ("glm4", {"attention_bias": False}),
    ("gpt_oss", EXPERTS),
    ("llama4_text", EXPERTS | {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 200}),
    ("deepseek_v2", EXPERTS | LATENT),
    ("deepseek_v2", EXPERTS | LATENT | {"q_lora_rank": None}),
    ("deepseek_v3", EXPERTS | LATENT),
    ("glm4_moe", EXPERTS | {"use_qk_norm": True, "attention_bias": True}),
    ("glm4_moe", EXPERTS | {"first_k_dense_replace": 2}),
    ("qwen3_next", EXPERTS | DELTA),
    ("qwen3_5_text", DELTA),
    ("qwen3_5_moe_text", EXPERTS | DELTA),
]
SAME_AS = {"kimi_k2": "deepseek_v3"}
"""Families that transformers builds by another one's classes."""


def test_every_known_architecture_is_counted_here():
    assert {kind for kind, _ in CASES} == {*FAMILIES} - {*SAME_AS}


@pytest.mark.parametrize(("kind", "more"), CASES, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(CASES)])
def test_parameters_are_as_many_as_transformers_builds(kind: str, more: dict[str, Any]):
    # Some have no head size of their own: it is always the hidden size by the heads.
    head_dim = 16 if kind in ("qwen2", "phi3", "qwen2_moe") else 24
    config = AutoConfig.for_model(kind, **{**BASE, "head_dim": head_dim, **more})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = read_shape(config.to_dict())
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    with_heads = [layer for layer in shape.attention if isinstance(layer, HeadAttention)]
    assert {(layer.kv_heads, layer.head_dim) for layer in with_heads} <= {(2, head_dim)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_have_the_parameters_that_transformers_builds(name: str):
    inner = PUBLISHED[name].get("text_config", PUBLISHED[name])
    kind = SAME_AS.get(inner["model_type"], inner["model_type"])
    keys = {key: value for key, value in inner.items() if key not in ("model_type", "quantization_config")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **keys))
    assert read_shape(PUBLISHED[name]).parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        # Those of the model cards and reports. Some count the embedding as active, or the head as not.
        ("Gemma-2-9B", 9.24, 9.24),
        ("Gemma-2-27B", 27.2, 27.2),
        ("gpt-oss-20b", 20.91, 3.61),
        ("gpt-oss-120b", 116.83, 5.13),
        ("Llama-4-Scout", 109, 17),
        ("Llama-4-Maverick", 400, 17),
        ("DeepSeek-V3", 671, 36.6),
        ("Kimi-K2", 1040, 32),
        ("GLM-4.5", 355, 32),
        ("GLM-4.5-Air", 106, 12),
        ("Mixtral-8x7B", 46.7, 12.9),
        ("Mixtral-8x22B", 141, 39),
        ("Qwen3-30B-A3B", 30.5, 3.3),
        ("Qwen3-235B-A22B", 235, 22),
        ("Qwen3-Next-80B-A3B", 80, 3.6),
    ],
)
def test_published_models_have_their_published_size_and_active_part(
    name: str, billions: float, active: float
):
    shape = read_shape(PUBLISHED[name])
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.02)
    assert shape.active / 1e9 == pytest.approx(active, rel=0.09)


def test_family_defaults_are_those_of_transformers():
    for kind, defaults in FAMILY_DEFAULTS.items():
        filled = AutoConfig.for_model(SAME_AS.get(kind, kind)).to_dict()
        for key, value in defaults.items():
            if key in filled:
                assert (kind, key, filled[key]) == (kind, key, value)


def test_layers_without_a_list_follow_the_pattern_of_their_family():
    for name, config in PUBLISHED.items():
        inner = config.get("text_config", config)
        kind = SAME_AS.get(inner["model_type"], inner["model_type"])
        keys = {
            key: value for key, value in inner.items() if key not in ("model_type", "quantization_config")
        }
        listed = AutoConfig.for_model(kind, **keys).to_dict().get("layer_types")
        if listed:
            assert read_shape({**inner, "layer_types": listed}) == read_shape(inner), name


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
    assert spec.layers == shape.layers
    assert spec.windows == shape.windows
    for layer in shape.attention:
        assert isinstance(layer, HeadAttention)
        assert (spec.kv_heads, spec.head_dim) == (layer.kv_heads, layer.head_dim)


def test_of_a_model_with_vision_the_language_model_is_read():
    inner = {**BASE, "model_type": "qwen2"}
    outer = {"model_type": "llava", "text_config": inner, "tie_word_embeddings": True, "dtype": "float32"}
    assert read_shape(outer) == read_shape(inner | {"tie_word_embeddings": True, "dtype": "float32"})
    assert read_shape(outer | {"vision_config": {}, "audio_config": {}}).uncounted == (
        "audio_config",
        "vision_config",
    )


def test_an_encoder_decoder_model_is_refused_also_where_its_decoder_is_nested():
    inner = {**BASE, "model_type": "llama", "is_encoder_decoder": False}
    with pytest.raises(ShapeUnknown, match="encoder-decoder"):
        read_shape({"model_type": "two", "is_encoder_decoder": True, "text_config": inner})


@pytest.mark.parametrize("parameters", [None, 80_000_000_000])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "'brandnew' is not modelled .*what its layers cache"),
        ({"kv_lora_rank": 512}, r"it has a latent cache \(kv_lora_rank\)"),
        ({"num_experts": 64}, r"it has experts \(num_experts\)"),
        ({"mamba_d_state": 16, "num_local_experts": 8}, "experts .*; it has state-space"),
        ({"linear_num_value_heads": 16}, "linear-attention layers"),
    ],
)
def test_an_unknown_architecture_is_refused_whether_or_not_its_size_is_given(
    changes: dict[str, Any], named: str, parameters: int | None
):
    with pytest.raises(ShapeUnknown, match=named):
        read_shape({**BASE, "model_type": "brandnew", **changes}, parameters=parameters)


def test_a_dense_model_may_have_another_number_of_parameters():
    config = {**BASE, "model_type": "llama"}
    assert read_shape(config, parameters=1_000_000).parameters == 1_000_000
    with pytest.raises(ShapeUnknown, match="fewer"):
        read_shape(config, parameters=100)


def test_the_number_of_parameters_of_a_mixture_is_not_enough():
    config = {**BASE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    with pytest.raises(ShapeUnknown, match="how many of them a token of a mixtral uses"):
        read_shape(config, parameters=1_000_000)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kv_lora_rank": 512}, "latent"),
        ({"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ({"layer_types": ["full_attention"]}, "each of 4 layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window must be a positive integer"),
        ({"num_experts": 8}, "experts"),
        ({"index_topk": 2048}, "sparse attention"),
        ({"num_kv_shared_layers": 2}, "share keys and values"),
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
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    ],
)
def test_weights_are_of_the_type_that_the_file_names(changes: dict[str, Any], dtype: str):
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


def test_the_engines_pool_is_as_large_as_in_the_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_weights_of_an_unknown_format_are_planned_when_their_type_is_named():
    config = {**BASE, "model_type": "llama", "quantization_config": {"quant_method": "compressed-tensors"}}
    with pytest.raises(ShapeUnknown, match="name the weights' type"):
        read_shape(config)
    assert read_shape(config, weight_dtype="int4").weight_dtype == "int4"
