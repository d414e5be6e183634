"""Derives the attention of every layer, and its parameters, by the rules of each model family."""

from dataclasses import dataclass

from workers.planning.config_values import Config, ShapeUnknown, count, integer
from workers.planning.layer_attention import HeadAttention, LatentAttention, LayerAttention, LinearAttention

LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")
"""Families with multi-head latent attention."""
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Families with gated DeltaNet layers between layers with keys and values."""
BIASED = ("qwen2", "qwen2_moe")
"""Families with biases of query, key and value unless `qkv_bias` is false."""
BIAS_OF_OUTPUT_TOO = ("llama", "qwen3", "qwen3_moe", "gpt_oss")
"""Families in which `attention_bias` includes a bias of the output."""
HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3_text", *HYBRID)
"""Families that normalise every query and key head with a weight."""

_FULL, _SLIDING, _CHUNKED, _LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The attention of a model."""

    layers: tuple[LayerAttention, ...]
    linear: int
    """Parameters of the matrices of all layers."""
    small: int
    """Parameters of biases, of norms of heads, and of convolutions."""


def read_attention(config: Config, kind: str) -> AttentionShape:
    """Return the attention that a config.json describes. Raises ShapeUnknown."""
    layers = integer(config, "num_hidden_layers")
    if kind in LATENT:
        return _latent(config, layers)
    return _by_layer(config, kind, layers)


def layer_kinds(config: Config, kind: str, layers: int) -> list[str]:
    """Return the kind of each layer, from `layer_types` or from the family's pattern."""
    listed = config.get("layer_types")
    if listed is not None:
        known = (_FULL, _SLIDING, _CHUNKED, *((_LINEAR,) if kind in HYBRID else ()))
        if not isinstance(listed, list) or len(listed) != layers:
            raise ShapeUnknown(f"config.json: layer_types must name the kind of each of {layers} layers")
        if others := {str(each) for each in listed} - set(known):
            raise ShapeUnknown(
                f"what layers of the kinds {', '.join(sorted(others))} of a {kind} cache is not known"
            )
        return [str(each) for each in listed]
    match kind:
        case "gemma2" | "gpt_oss":
            return _pattern(layers, _SLIDING, 2)
        case "gemma3_text":
            return _pattern(layers, _SLIDING, integer(config, "sliding_window_pattern"))
        case "llama4_text":
            return _llama4(config, layers)
        case "mistral" | "phi3" | "mixtral":
            return [_SLIDING if config.get("sliding_window") else _FULL] * layers
    if kind in HYBRID:
        return _pattern(layers, _LINEAR, integer(config, "full_attention_interval"))
    if kind.startswith("qwen") and config.get("use_sliding_window"):
        first = count(config, "max_window_layers", 28)
        return [_SLIDING if layer >= first else _FULL for layer in range(layers)]
    return [_FULL] * layers


def _pattern(layers: int, often: str, every: int) -> list[str]:
    """Return `often` for all layers, except for full attention in every `every`th."""
    return [_FULL if (layer + 1) % every == 0 else often for layer in range(layers)]


def _llama4(config: Config, layers: int) -> list[str]:
    rotated = config.get("no_rope_layers") or []
    if len(rotated) == layers:
        # Despite its name the list has a 1 for each layer with a rotation, which is one in chunks.
        return [_CHUNKED if each else _FULL for each in rotated]
    return _pattern(layers, _CHUNKED, integer(config, "no_rope_layer_interval", 4))


def _window(config: Config, kind: str, layer: str) -> int | None:
    if layer == _FULL or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return None
    return integer(config, "attention_chunk_size" if layer == _CHUNKED else "sliding_window")


def _by_layer(config: Config, kind: str, layers: int) -> AttentionShape:
    """Return the attention of layers with keys and values per head, and of linear layers between them."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    kv_heads = integer(config, "num_key_value_heads", heads)
    head_dim = integer(config, "head_dim", max(1, hidden // heads))
    if heads % kv_heads:
        raise ShapeUnknown(f"{heads} heads cannot share {kv_heads} key-value heads evenly")
    # A gated output has as many numbers as the queries.
    queries = heads * head_dim * (2 if kind in HYBRID else 1)
    keys = kv_heads * head_dim
    matrices = hidden * (queries + 2 * keys + heads * head_dim)
    small = _biases(config, kind, queries, keys, hidden)
    if kind in HEAD_NORMS or (kind == "glm4_moe" and config.get("use_qk_norm")):
        small += 2 * head_dim
    if kind == "gpt_oss":
        small += heads
    made: list[LayerAttention] = []
    linear = every_small = 0
    for layer in layer_kinds(config, kind, layers):
        if layer == _LINEAR:
            one = _delta(config)
            made.append(one)
            linear += _delta_matrices(one, hidden)
            every_small += one.kernel * one.convolved + 2 * one.value_heads + one.value_dim
        else:
            made.append(
                HeadAttention(
                    heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=_window(config, kind, layer)
                )
            )
            linear += matrices
            every_small += small
    return AttentionShape(layers=tuple(made), linear=linear, small=every_small)


def _biases(config: Config, kind: str, queries: int, keys: int, hidden: int) -> int:
    """Return the biases of one layer's attention."""
    if kind in BIASED and config.get("qkv_bias", True):
        return queries + 2 * keys
    if not config.get("attention_bias"):
        return 0
    if kind in BIAS_OF_OUTPUT_TOO:
        return queries + 2 * keys + hidden
    return queries + 2 * keys if kind in ("glm4", "glm4_moe") else 0


def _delta(config: Config) -> LinearAttention:
    return LinearAttention(
        key_heads=integer(config, "linear_num_key_heads"),
        value_heads=integer(config, "linear_num_value_heads"),
        key_dim=integer(config, "linear_key_head_dim"),
        value_dim=integer(config, "linear_value_head_dim"),
        kernel=integer(config, "linear_conv_kernel_dim"),
    )


def _delta_matrices(layer: LinearAttention, hidden: int) -> int:
    """Return the matrices of a linear layer: queries, keys, values, gate, two numbers a head, and the output."""
    values = layer.value_heads * layer.value_dim
    return hidden * (layer.convolved + values + 2 * layer.value_heads) + values * hidden


def _latent(config: Config, layers: int) -> AttentionShape:
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    one = LatentAttention(
        heads=heads,
        rank=integer(config, "kv_lora_rank"),
        rope_dim=integer(config, "qk_rope_head_dim"),
        key_dim=integer(config, "qk_nope_head_dim"),
        value_dim=integer(config, "v_head_dim"),
    )
    query, query_rank = heads * (one.key_dim + one.rope_dim), count(config, "q_lora_rank")
    matrices = query_rank * (hidden + query) if query_rank else hidden * query
    matrices += hidden * (one.rank + one.rope_dim) + one.rank * heads * (one.key_dim + one.value_dim)
    matrices += heads * one.value_dim * hidden
    return AttentionShape(
        layers=(one,) * layers, linear=layers * matrices, small=layers * (query_rank + one.rank)
    )
