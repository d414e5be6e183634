"""The shape of a model by its config.json: parameters by purpose, heads, windows. No weights are read.

parameters = embedding + head + linear (attention, dense MLP, shared expert, router) + experts
                 + small (norms, biases)

streamed in a decode step   all but an embedding that is only looked up, and experts that no token chose
multiplied for one token    linear, and of the experts those that the token chose
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DENSE = ("llama", "mistral", "phi3", "qwen2", "qwen3")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")


class ShapeUnknown(ValueError):
    """The config.json lacks something, or describes a model that these formulas do not cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The size of a model; counts are in parameters."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    context_length: int
    tied: bool
    """Whether the output matrix is the input embedding."""
    linear: int
    """Attention, dense MLP, shared expert and router."""
    experts: int = 0
    """All experts together."""
    expert_count: int = 1
    expert_choices: int = 1
    """Experts that one token uses."""
    small: int = 0
    """Norms and biases."""
    windows: tuple[int | None, ...]
    """How many positions a token sees, for each layer; None: all."""
    weight_dtype: str = "bf16"
    """How the checkpoint stores its linear weights."""

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab * self.hidden

    @property
    def head(self) -> int:
        """Parameters of the output matrix, where it is not the embedding again."""
        return 0 if self.tied else self.embedding

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.embedding + self.head + self.linear + self.experts + self.small

    @property
    def multiplied(self) -> float:
        """Parameters that one token's forward pass multiplies with, without the head."""
        return self.linear + self.experts * self.expert_choices / self.expert_count

    def experts_read(self, tokens: int) -> float:
        """Return the expert parameters that n tokens use together: 1 - (1 - k/E)^n of all, chosen evenly."""
        return self.experts * (1 - (1 - self.expert_choices / self.expert_count) ** tokens)


def read_shape(config: Mapping[str, Any], *, parameters: int | None = None) -> ModelShape:
    """Return the shape that a parsed config.json describes.

    `parameters` is the number of parameters, for architectures that are not known here. Raises
    ShapeUnknown, which says what is missing, or why the formulas do not hold.
    """
    if isinstance(config.get("text_config"), Mapping):
        # Of a multimodal model only the language model is planned.
        outer = {
            name: config[name] for name in ("quantization_config", "tie_word_embeddings") if name in config
        }
        config = {**outer, **config["text_config"]}
    _refuse_other_caches(config)
    kind = str(config.get("model_type"))
    heads, hidden, layers = (
        _integer(config, name) for name in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    kv_heads = _integer(config, "num_key_value_heads", heads)
    head_dim = _integer(config, "head_dim", max(1, hidden // heads))
    if heads % kv_heads:
        raise ShapeUnknown(f"{heads} heads cannot share {kv_heads} key-value heads evenly")
    vocab, tied = _integer(config, "vocab_size"), bool(config.get("tie_word_embeddings", False))
    counts = {"linear": 0}
    if parameters is not None:
        counts["linear"] = parameters - (1 if tied else 2) * vocab * hidden
        if counts["linear"] < 0:
            raise ShapeUnknown(f"{parameters} parameters are fewer than embedding and head have")
    elif kind in (*DENSE, *MIXTURES):
        attention = hidden * head_dim * 2 * (heads + kv_heads)
        mlp = _mlp(config, kind, hidden, layers)
        counts = {
            **mlp,
            "linear": layers * attention + mlp["linear"],
            "small": _small(config, kind, hidden, layers, heads * head_dim, kv_heads * head_dim, head_dim),
        }
    else:
        raise ShapeUnknown(
            f"model_type {kind!r} is not known ({', '.join((*DENSE, *MIXTURES))}): its parameters cannot be counted"
            " from its config.json; give their number"
        )
    return ModelShape(
        name=str(config.get("_name_or_path") or kind),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        vocab=vocab,
        context_length=_integer(config, "max_position_embeddings"),
        tied=tied,
        windows=_windows(config, kind, layers),
        weight_dtype=_weight_dtype(config),
        **counts,
    )


def _refuse_other_caches(config: Mapping[str, Any]) -> None:
    """Raise ShapeUnknown for models that do not cache keys and values of every position."""
    if config.get("kv_lora_rank"):
        raise ShapeUnknown(
            "multi-head latent attention caches one compressed vector per token, not keys and values"
        )
    kinds = {str(kind) for kind in config.get("layer_types") or ()}
    if others := kinds - {"full_attention", "sliding_attention"}:
        raise ShapeUnknown(
            f"layers of the kinds {', '.join(sorted(others))} do not cache keys and values per token"
        )
    if any(name.startswith(("mamba_", "ssm_", "linear_attn")) for name in config):
        raise ShapeUnknown("state-space and linear-attention layers do not cache keys and values per token")
    if config.get("is_encoder_decoder"):
        raise ShapeUnknown("encoder-decoder models keep two caches")


def _mlp(config: Mapping[str, Any], kind: str, hidden: int, layers: int) -> dict[str, int]:
    """Return dense and expert parameters; an MLP is three matrices (gate, up, down)."""
    if kind in DENSE:
        return {"linear": layers * 3 * hidden * _integer(config, "intermediate_size")}
    if kind == "mixtral":
        count, inner, shared = _integer(config, "num_local_experts"), _integer(config, "intermediate_size"), 0
        dense_layers = 0
    else:
        # transformers 5 saves the number under Mixtral's name.
        written = "num_experts" if "num_experts" in config else "num_local_experts"
        count, inner = _integer(config, written), _integer(config, "moe_intermediate_size")
        # The shared expert has a gate of one output.
        shared = (
            3 * hidden * _integer(config, "shared_expert_intermediate_size") + hidden
            if kind == "qwen2_moe"
            else 0
        )
        step, dense = _integer(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
        dense_layers = sum(layer in dense or bool((layer + 1) % step) for layer in range(layers))
    sparse = layers - dense_layers
    dense_mlp = 3 * hidden * _integer(config, "intermediate_size") if dense_layers else 0
    return {
        "linear": dense_layers * dense_mlp + sparse * (shared + count * hidden),
        "experts": sparse * count * 3 * hidden * inner,
        "expert_count": count,
        "expert_choices": _integer(config, "num_experts_per_tok"),
    }


def _small(
    config: Mapping[str, Any], kind: str, hidden: int, layers: int, queries: int, keys: int, head_dim: int
) -> int:
    """Return the parameters of norms and biases."""
    per_layer = 2 * hidden
    if kind in ("qwen3", "qwen3_moe"):
        per_layer += 2 * head_dim
    if kind == "qwen2" or (kind == "qwen2_moe" and config.get("qkv_bias", True)):
        per_layer += queries + 2 * keys
    elif config.get("attention_bias") and kind in ("llama", "qwen3", "qwen3_moe"):
        per_layer += queries + 2 * keys + hidden
    if config.get("mlp_bias") and kind == "llama":
        per_layer += 2 * _integer(config, "intermediate_size") + hidden
    return layers * per_layer + hidden


def _windows(config: Mapping[str, Any], kind: str, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, by the rules of each model family."""
    width = config.get("sliding_window")
    if (
        not isinstance(width, int)
        or width < 1
        or (kind.startswith("qwen") and not config.get("use_sliding_window"))
    ):
        return (None,) * layers
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(width if each == "sliding_attention" else None for each in kinds)
    first = int(config.get("max_window_layers", 28)) if kind.startswith("qwen") else 0
    return tuple(width if layer >= first and kind != "llama" else None for layer in range(layers))


def _weight_dtype(config: Mapping[str, Any]) -> str:
    quantised = config.get("quantization_config")
    if isinstance(quantised, Mapping):
        method, bits = str(quantised.get("quant_method")), quantised.get("bits")
        if method in ("awq", "gptq") and bits in (4, 8, None):
            return "int8" if bits == 8 else "int4"
        if method == "fp8":
            return "fp8"
        raise ShapeUnknown(
            f"weights quantised by {method!r} with {bits} bits are not known; name the weights' type"
        )
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    if stored not in names:
        raise ShapeUnknown(f"weights of dtype {stored!r} are not known ({', '.join(names)})")
    return names[stored]


def _integer(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ShapeUnknown(f"config.json: {name} must be a positive integer, not {value!r}")
    return value
