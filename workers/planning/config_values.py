"""Reads values of a config.json, with defaults for those that a family's published files leave out."""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_LATENT = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_QWEN_HYBRID = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}
FAMILY_DEFAULTS: Mapping[str, Config] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "gemma2": _GEMMA | {"vocab_size": 256_000, "max_position_embeddings": 8192},
    "gemma3_text": _GEMMA
    | {"vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window_pattern": 6},
    "gpt_oss": {"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128, "attention_bias": True},
    "llama4_text": {"head_dim": 128, "attention_chunk_size": 8192, "interleave_moe_layer_step": 1},
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "qwen3_next": _QWEN_HYBRID,
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe_text": _QWEN_HYBRID,
}
"""By model_type: the defaults in transformers' configuration class of the family."""


class ShapeUnknown(ValueError):
    """The config.json lacks something, or describes a model that these formulas do not cover."""


def with_defaults(config: Config, kind: str) -> dict[str, Any]:
    """Return the config with its family's defaults in place of absent keys; a null key stays null."""
    return {**FAMILY_DEFAULTS.get(kind, {}), **config}


def integer(config: Config, name: str, default: int | None = None) -> int:
    """Return a positive integer. Raises ShapeUnknown, which names the key."""
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ShapeUnknown(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def count(config: Config, name: str, default: int = 0) -> int:
    """Return an integer that may be 0. Raises ShapeUnknown, which names the key."""
    return 0 if config.get(name, default) in (0, None) else integer(config, name, default)
