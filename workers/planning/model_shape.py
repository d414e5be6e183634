"""The shape of a model by its config.json: parameters by purpose, and the attention of each layer.

parameters = embedding + head + linear (attention, dense MLP, shared experts, router) + experts
                 + small (norms, biases)

streamed in a decode step   all but an embedding that is only looked up, and experts that no token chose
multiplied for one token    linear, head, and of the experts those that the token chose: the active parameters

No weights are read. Families that are not modelled are refused: their figures would be wrong by factors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.planning.attention_shapes import HYBRID, LATENT, read_attention
from workers.planning.config_values import Config, ShapeUnknown, integer, with_defaults
from workers.planning.layer_attention import HeadAttention, LayerAttention
from workers.planning.mlp_shapes import DENSE, MIXTURES, read_mlp

FAMILIES = (*DENSE, *MIXTURES)
"""The values of model_type that are modelled."""
FOUR_NORMS = ("gemma2", "gemma3_text", "glm4")
"""Families with a norm before and after both parts of a layer."""
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
_OUTER_KEYS = ("quantization_config", "tie_word_embeddings", "dtype", "torch_dtype")
"""Keys that a multimodal model may have beside its language model's, instead of within."""
_STATE_KEYS = ("mamba_", "ssm_", "linear_attn", "linear_num_", "conv_L_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The size of a model; counts are in parameters."""

    name: str
    hidden: int
    vocab: int
    context_length: int
    tied: bool
    """Whether the output matrix is the input embedding."""
    attention: tuple[LayerAttention, ...]
    """The attention of each layer."""
    linear: int
    """Attention, dense MLP, shared experts and router."""
    experts: int = 0
    """All experts together."""
    expert_count: int = 1
    expert_choices: int = 1
    """Experts that one token uses."""
    small: int = 0
    """Norms and biases."""
    weight_dtype: str = "bf16"
    """How the checkpoint stores its linear weights."""
    uncounted: tuple[str, ...] = ()
    """The keys of config.json that describe other parts of a multimodal model; their weights are not counted."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.attention)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How many positions a token attends to, for each layer with keys and values of heads; None: all."""
        return tuple(layer.window for layer in self.attention if isinstance(layer, HeadAttention))

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

    @property
    def active(self) -> float:
        """Parameters that one token uses, the head among them and the embedding not: of that only a row is read."""
        return self.multiplied + self.embedding

    def experts_read(self, tokens: int) -> float:
        """Return the expert parameters that n tokens use together: 1 - (1 - k/E)^n of all, chosen evenly."""
        return self.experts * (1 - (1 - self.expert_choices / self.expert_count) ** tokens)


def read_shape(
    config: Config, *, parameters: int | None = None, weight_dtype: str | None = None
) -> ModelShape:
    """Return the shape that a parsed config.json describes.

    Args:
        config: the parsed file.
        parameters: the number of parameters, where a dense model has others than its family's.
        weight_dtype: the type of linear weights, where it is not to be read from the file.

    Raises:
        ShapeUnknown: the message names what is missing, or why the formulas do not hold.
    """
    uncounted, config = _uncounted(config), _language_model(config)
    kind = str(config.get("model_type"))
    _refuse_unmodelled(config, kind)
    config = with_defaults(config, kind)
    attention, mlp = read_attention(config, kind), read_mlp(config, kind)
    hidden, vocab = integer(config, "hidden_size"), integer(config, "vocab_size")
    tied = bool(config.get("tie_word_embeddings", False))
    norms = (len(attention.layers) * (4 if kind in FOUR_NORMS else 2) + 1) * hidden
    small = attention.small + mlp.small + norms
    linear = attention.linear + mlp.linear
    if parameters is not None:
        linear = _given_linear(kind, parameters, (1 if tied else 2) * vocab * hidden + small)
    return ModelShape(
        name=str(config.get("_name_or_path") or kind),
        hidden=hidden,
        vocab=vocab,
        context_length=integer(config, "max_position_embeddings"),
        tied=tied,
        attention=attention.layers,
        linear=linear,
        experts=mlp.experts,
        expert_count=mlp.expert_count,
        expert_choices=mlp.expert_choices,
        small=small,
        weight_dtype=weight_dtype or _weight_dtype(config),
        uncounted=uncounted,
    )


def _language_model(config: Config) -> Config:
    """Return the config of the language model, which is nested in that of a multimodal model."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return config
    outer = {name: config[name] for name in _OUTER_KEYS if name in config}
    two_caches = config.get("is_encoder_decoder") or inner.get("is_encoder_decoder")
    return {**outer, **inner, "is_encoder_decoder": two_caches}


def _uncounted(config: Config) -> tuple[str, ...]:
    """Return the keys of the other parts of a multimodal model."""
    if not isinstance(config.get("text_config"), Mapping):
        return ()
    counted = ("text_config", "quantization_config")
    parts = {
        name for name, value in config.items() if name.endswith("_config") and isinstance(value, Mapping)
    }
    return tuple(sorted(parts.difference(counted)))


def _refuse_unmodelled(config: Config, kind: str) -> None:
    """Raise ShapeUnknown for architectures, and for parts of them, that these formulas do not cover."""
    if config.get("is_encoder_decoder"):
        raise ShapeUnknown("encoder-decoder models keep two caches, which is not modelled")
    parts = []
    if config.get("kv_lora_rank") and kind not in LATENT:
        parts.append("a latent cache (kv_lora_rank)")
    if kind not in MIXTURES and (keys := [key for key in _EXPERT_KEYS if config.get(key)]):
        parts.append(f"experts ({keys[0]})")
    if kind not in HYBRID and (keys := [key for key in config if key.startswith(_STATE_KEYS)]):
        parts.append(f"state-space or linear-attention layers ({keys[0]})")
    if config.get("index_topk"):
        parts.append("an index for sparse attention (index_topk)")
    if config.get("num_kv_shared_layers"):
        parts.append("layers that share keys and values (num_kv_shared_layers)")
    if kind not in FAMILIES:
        raise ShapeUnknown(
            f"model_type {kind!r} is not modelled ({', '.join(FAMILIES)}): what its layers cache, and how many of"
            f" its parameters a token uses, is missing{''.join(f'; it has {part}' for part in parts)}"
        )
    if parts:
        raise ShapeUnknown(f"a {kind} with {' and '.join(parts)} is not modelled")


def _given_linear(kind: str, parameters: int, others: int) -> int:
    """Return the linear parameters of a dense model with that many parameters in all."""
    if kind in MIXTURES:
        raise ShapeUnknown(
            f"the number of parameters does not show how many of them a token of a {kind} uses; it is counted from"
            " config.json instead"
        )
    if parameters <= others:
        raise ShapeUnknown(f"{parameters} parameters are fewer than embedding, head and norms have")
    return parameters - others


def _weight_dtype(config: Mapping[str, Any]) -> str:
    quantised = config.get("quantization_config")
    if isinstance(quantised, Mapping):
        method, bits = str(quantised.get("quant_method")), quantised.get("bits")
        if method in ("awq", "gptq") and bits in (4, 8, None):
            return "int8" if bits == 8 else "int4"
        if method in ("fp8", "mxfp4"):
            return method
        raise ShapeUnknown(
            f"weights quantised by {method!r} with {bits} bits are not known; name the weights' type"
        )
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    if stored not in names:
        raise ShapeUnknown(f"weights of dtype {stored!r} are not known ({', '.join(names)})")
    return names[stored]
