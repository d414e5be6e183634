"""The parameters of MLPs and experts, by the rules of each model family.

An MLP is three matrices: gate, up, down.
"""

from dataclasses import dataclass

from workers.planning.config_values import Config, count, integer

DENSE = ("llama", "mistral", "phi3", "qwen2", "qwen3", "gemma2", "gemma3_text", "glm4", "qwen3_5_text")
MIXTURES = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_moe_text",
    "gpt_oss",
    "llama4_text",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe",
)
SHARED_WITH_GATE = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
"""Families with one shared expert, behind a gate of one output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape:
    """The MLPs of a model."""

    linear: int
    """Parameters that every token uses: dense MLPs, shared experts, routers."""
    experts: int = 0
    """Parameters of all experts together."""
    expert_count: int = 1
    """Experts of a layer."""
    expert_choices: int = 1
    """Experts of a layer that one token uses."""
    small: int = 0
    """Parameters of biases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """The experts of one layer, and which layers have them."""

    count: int
    inner: int
    sparse: int
    """Layers with experts."""
    shared: int = 0
    """Parameters of the shared experts of a layer, and of their gate."""
    dense_inner: int = 0
    """The inner size of layers without experts."""


def read_mlp(config: Config, kind: str) -> MlpShape:
    """Return the MLPs that a config.json describes. Raises ShapeUnknown."""
    hidden, layers = integer(config, "hidden_size"), integer(config, "num_hidden_layers")
    if kind in DENSE:
        inner = integer(config, "intermediate_size")
        biases = 2 * inner + hidden if config.get("mlp_bias") and kind == "llama" else 0
        return MlpShape(linear=layers * 3 * hidden * inner, small=layers * biases)
    mixture = _mixture(config, kind, hidden, layers)
    biases = 0
    if kind == "gpt_oss":
        biases = mixture.count * (1 + 2 * mixture.inner + hidden)
    return MlpShape(
        linear=(layers - mixture.sparse) * 3 * hidden * mixture.dense_inner
        + mixture.sparse * (mixture.shared + mixture.count * hidden),
        experts=mixture.sparse * mixture.count * 3 * hidden * mixture.inner,
        expert_count=mixture.count,
        expert_choices=integer(config, "num_experts_per_tok"),
        small=mixture.sparse * biases,
    )


def _mixture(config: Config, kind: str, hidden: int, layers: int) -> _Mixture:
    match kind:
        case "mixtral" | "gpt_oss":
            inner = integer(config, "intermediate_size")
            return _Mixture(count=integer(config, "num_local_experts"), inner=inner, sparse=layers)
        case "llama4_text":
            return _llama4(config, hidden, layers)
        case "deepseek_v2" | "deepseek_v3" | "kimi_k2" | "glm4_moe":
            return _with_first_layers_dense(config, hidden, layers)
    return _qwen(config, kind, hidden, layers)


def _llama4(config: Config, hidden: int, layers: int) -> _Mixture:
    """Return every nth layer with experts, and one shared expert as large as the others."""
    inner, step = integer(config, "intermediate_size"), integer(config, "interleave_moe_layer_step")
    listed = config.get("moe_layers")
    return _Mixture(
        count=integer(config, "num_local_experts"),
        inner=inner,
        sparse=len(listed) if isinstance(listed, list) else layers // step,
        shared=3 * hidden * inner,
        dense_inner=count(config, "intermediate_size_mlp"),
    )


def _with_first_layers_dense(config: Config, hidden: int, layers: int) -> _Mixture:
    inner = integer(config, "moe_intermediate_size")
    dense = count(config, "first_k_dense_replace")
    every = integer(config, "moe_layer_freq", 1)
    return _Mixture(
        count=integer(config, "n_routed_experts"),
        inner=inner,
        sparse=sum(layer >= dense and layer % every == 0 for layer in range(layers)),
        shared=count(config, "n_shared_experts") * 3 * hidden * inner,
        dense_inner=count(config, "intermediate_size"),
    )


def _qwen(config: Config, kind: str, hidden: int, layers: int) -> _Mixture:
    # transformers 5 saves the number under Mixtral's name.
    written = "num_experts" if "num_experts" in config else "num_local_experts"
    shared = 0
    if kind in SHARED_WITH_GATE:
        shared = 3 * hidden * integer(config, "shared_expert_intermediate_size") + hidden
    step, dense = integer(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    dense_layers = sum(layer in dense or bool((layer + 1) % step) for layer in range(layers))
    return _Mixture(
        count=integer(config, written),
        inner=integer(config, "moe_intermediate_size"),
        sparse=layers - dense_layers,
        shared=shared,
        dense_inner=integer(config, "intermediate_size") if dense_layers else 0,
    )
