"""The model's specification: its sizes and variants, read from its config.json.

    family     biases                     other differences               sliding window
    llama      all or none                biases in the MLP, all or none  never
    qwen2      query, key, value          -                               from some layer on, where it is enabled
    qwen3      all or none (attention)    norm of each query and key head as qwen2
    mistral    none                       -                               every layer, unless it says null

A setting that the engine cannot compute exactly is refused here, by name: a checkpoint runs right or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.engine.checkpoint.json_files import boolean, integer, number, read_json, read_json_if_present
from workers.engine.checkpoint.quantization_spec import QuantizationSpec, quantization_spec
from workers.engine.checkpoint.rope_spec import RopeSpec, rope_spec
from workers.engine.checkpoint.unsupported_keys import refuse_unsupported_keys
from workers.engine.errors import CheckpointInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The defaults of a model family for keys that config.json leaves out; None: derived from the other keys."""

    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    full_layers: int | None = None
    """Layers before the first one with a window, in a family where `use_sliding_window` enables windows."""
    qk_norm: bool = False
    may_have_biases: bool = False


_FAMILIES = {
    "llama": _Family(may_have_biases=True),
    "qwen2": _Family(kv_heads=32, window=4096, full_layers=28),
    "qwen3": _Family(
        kv_heads=32, head_dim=128, window=4096, full_layers=28, qk_norm=True, may_have_biases=True
    ),
    "mistral": _Family(kv_heads=8, window=4096),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The dimensions and variants of a decoder-only transformer."""

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
    qk_norm: bool
    """Whether every query and key head is normalised before its rotation."""
    windows: tuple[int | None, ...]
    """For each layer the positions that a token attends to, its own included; None: all of them."""
    tied_head: bool
    quantization: QuantizationSpec | None = None
    """How the linear layers are stored; None where they are not quantised."""
    dtype: str
    """The type of the weights, as config.json names it."""
    eos_ids: frozenset[int]

    @property
    def window(self) -> int | None:
        """The positions that the widest window of the layers covers; None when some layer has no window."""
        widths = [width for width in self.windows if width is not None]
        return max(widths) if len(widths) == self.layers else None

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelSpec":
        """Read config.json and generation_config.json; CheckpointInvalid names a value that is not supported."""
        config = read_json(directory / "config.json")
        generation = read_json_if_present(directory / "generation_config.json")
        return cls.from_config(config, generation)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], generation: Mapping[str, Any]) -> "ModelSpec":
        """Return the spec of the parsed files; `generation` may be empty."""
        architecture = config.get("model_type")
        family = _FAMILIES.get(architecture) if isinstance(architecture, str) else None
        if family is None or not isinstance(architecture, str):
            raise CheckpointInvalid(
                f"config.json: model_type {architecture!r} is not supported ({', '.join(_FAMILIES)})"
            )
        _refuse_unsupported_activation(config)
        refuse_unsupported_keys(config)
        hidden, heads, layers = (
            integer(config, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        kv_heads = _derived(config, "num_key_value_heads", family.kv_heads, heads)
        head_dim = _derived(config, "head_dim", family.head_dim, max(1, hidden // heads))
        if heads % kv_heads or head_dim % 2:
            raise CheckpointInvalid(
                f"config.json: {heads} heads, {kv_heads} key-value heads, head size {head_dim} do not go together"
            )
        context, vocab = integer(config, "max_position_embeddings"), integer(config, "vocab_size")
        ends = _end_ids("config.json", config) | _end_ids("generation_config.json", generation)
        biases = family.may_have_biases and boolean(config, "attention_bias")
        return cls(
            architecture=architecture,
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=integer(config, "intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context,
            norm_eps=number(config, "rms_norm_eps", 1e-6),
            rope=rope_spec(config, context),
            # Qwen2 always has the three biases and never the fourth.
            qkv_bias=biases or architecture == "qwen2",
            output_bias=biases,
            mlp_bias=architecture == "llama" and boolean(config, "mlp_bias"),
            qk_norm=family.qk_norm,
            windows=_windows(config, family, layers),
            tied_head=boolean(config, "tie_word_embeddings"),
            quantization=quantization_spec(config),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            # Instruct models end a turn with a token that is often in only one of the two files. A token beyond
            # the model's vocabulary, where the tokenizer is larger, can never be sampled.
            eos_ids=frozenset(token for token in ends if 0 <= token < vocab),
        )


def _refuse_unsupported_activation(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointInvalid(f"config.json: hidden_act {config['hidden_act']!r} is not supported (silu)")


def _derived(config: Mapping[str, Any], name: str, of_family: int | None, derived: int) -> int:
    """Return an integer: an absent key has the family's default, where there is one; a null key is derived."""
    return integer(config, name, derived if name in config or of_family is None else of_family)


def _windows(config: Mapping[str, Any], family: _Family, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, None where it has none."""
    width, first = _width(config, family), 0
    if family.full_layers is not None and config.get("max_window_layers") != 0:
        first = integer(config, "max_window_layers", family.full_layers)
    derived = tuple(width if layer >= first else None for layer in range(layers))
    kinds = config.get("layer_types")
    if kinds is None:
        return derived
    known = {"full_attention": None, "sliding_attention": width}
    if not isinstance(kinds, list) or len(kinds) != layers or not {*map(str, kinds)} <= {*known}:
        raise CheckpointInvalid(
            f"config.json: layer_types must name {' or '.join(known)} for each of {layers} layers"
        )
    listed = tuple(known[kind] for kind in kinds)
    # Some families ignore the list in other engines: it must agree with the other keys.
    if (width is None and "sliding_attention" in kinds) or (family.full_layers is None and listed != derived):
        raise CheckpointInvalid("config.json: layer_types contradicts the sliding window")
    return listed


def _width(config: Mapping[str, Any], family: _Family) -> int | None:
    if family.window is None or (
        family.full_layers is not None and not boolean(config, "use_sliding_window")
    ):
        return None
    if "sliding_window" in config and config["sliding_window"] is None:
        return None
    return integer(config, "sliding_window", family.window)


def _end_ids(file: str, values: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids of the tokens that end an answer: the key holds one id, a list of ids, or nothing."""
    value = values.get("eos_token_id")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if any(not isinstance(token, int) or isinstance(token, bool) for token in listed):
        raise CheckpointInvalid(f"{file}: eos_token_id must be a token id or a list of them, not {value!r}")
    return frozenset(listed)
