"""The shape of a model, read from its config.json.

Two generations of that file are in use: the old one has `rope_theta` and `rope_scaling` at the top, the new one
(transformers 5) has both in `rope_parameters`. What we cannot compute exactly is refused here, by name, so that a
checkpoint either runs right or does not start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workers.engine.checkpoint import integer, number, read_json, read_json_if_present
from workers.engine.errors import CheckpointInvalid

RopeKind = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: the base and, for stretched contexts, how the frequencies are scaled."""

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One decoder-only transformer, Llama or Qwen2."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rope: RopeSpec
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_head: bool
    dtype: str
    eos_ids: frozenset[int]

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelSpec":
        """Read config.json and generation_config.json; CheckpointInvalid names what does not fit."""
        config = read_json(directory / "config.json")
        generation = read_json_if_present(directory / "generation_config.json")
        return cls.from_config(config, generation)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], generation: Mapping[str, Any]) -> "ModelSpec":
        """The spec of parsed files; `generation` may be empty."""
        architecture = config.get("model_type")
        if architecture not in ("llama", "qwen2"):
            raise CheckpointInvalid(
                f"config.json: model_type {architecture!r} is not supported (llama, qwen2)"
            )
        _refuse_what_we_cannot_compute(config)
        llama = architecture == "llama"
        hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
        kv_heads = integer(config, "num_key_value_heads", heads)
        head_dim = integer(config, "head_dim", max(1, hidden // heads))
        if heads % kv_heads or head_dim % 2:
            raise CheckpointInvalid(
                f"config.json: {heads} heads, {kv_heads} key-value heads, head size {head_dim} do not go together"
            )
        context = integer(config, "max_position_embeddings")
        return cls(
            architecture=architecture,
            vocab_size=integer(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=integer(config, "intermediate_size"),
            layers=integer(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context,
            norm_eps=number(config, "rms_norm_eps", 1e-6),
            rope=_rope(config, context),
            # Qwen2 always has the three biases and never the fourth; Llama has all four or none.
            qkv_bias=bool(config.get("attention_bias", False)) if llama else True,
            output_bias=bool(config.get("attention_bias", False)) if llama else False,
            mlp_bias=bool(config.get("mlp_bias", False)) if llama else False,
            tied_head=bool(config.get("tie_word_embeddings", False)),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            # Instruct models end a turn with a token that often stands in only one of the two files.
            eos_ids=_ids(config.get("eos_token_id")) | _ids(generation.get("eos_token_id")),
        )


def _refuse_what_we_cannot_compute(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointInvalid(f"config.json: hidden_act {config['hidden_act']!r} is not supported (silu)")
    if config.get("quantization_config"):
        raise CheckpointInvalid("config.json: quantised checkpoints are not supported")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise CheckpointInvalid("config.json: sliding-window attention is not supported")


def _rope(config: Mapping[str, Any], context: int) -> RopeSpec:
    values = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    values.setdefault("rope_theta", config.get("rope_theta"))
    kind = values.get("rope_type") or values.get("type") or "default"
    theta = number(values, "rope_theta", 10_000.0)
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointInvalid("config.json: partial rotary embeddings are not supported")
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(kind="linear", theta=theta, factor=number(values, "factor"))
    if kind == "llama3":
        return RopeSpec(
            kind="llama3",
            theta=theta,
            factor=number(values, "factor"),
            low_frequency_factor=number(values, "low_freq_factor"),
            high_frequency_factor=number(values, "high_freq_factor"),
            original_context=integer(values, "original_max_position_embeddings", context),
        )
    raise CheckpointInvalid(f"config.json: rope type {kind!r} is not supported (default, linear, llama3)")


def _ids(value: object) -> frozenset[int]:
    """One id, several, or none."""
    if isinstance(value, int):
        return frozenset({value})
    return frozenset(i for i in value if isinstance(i, int)) if isinstance(value, list) else frozenset()
