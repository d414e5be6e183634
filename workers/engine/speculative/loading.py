"""Builds the drafter of an engine from its settings of speculative decoding."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from workers.engine.attention.attention_backend import AttentionBackend
from workers.engine.attention.choice import BackendName, attention_backend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.errors import ConfigInvalid
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.engine.model.decoder import Decoder
from workers.engine.model.lora import LoraAdapter
from workers.engine.model.weight_loading import load_decoder
from workers.engine.scheduler.drafter import Drafter
from workers.engine.speculative.draft_kv import DraftKV
from workers.engine.speculative.medusa import MedusaDrafter, load_heads
from workers.engine.speculative.medusa_tree import best_tree, read_accuracies
from workers.engine.speculative.model_drafter import ModelDrafter, early_exit
from workers.engine.speculative.ngram import NgramDrafter


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetModel:
    """The model that verifies the drafts, and how it runs."""

    decoder: Decoder
    attention: AttentionBackend
    backend: BackendName
    """The name of the attention backend."""
    context_length: int
    blocks: int
    """KV blocks without block 0."""
    block_size: int
    chunk_tokens: int
    dtype: torch.dtype
    device: torch.device


def draft_spec(config: SpecConfig | None, target: ModelSpec, context_length: int) -> ModelSpec | None:
    """Return the spec of the draft model, or None without one.

    Raises:
        ConfigInvalid: The draft model cannot draft for the target.
    """
    if config is None or config.method != "draft_model" or config.model is None:
        return None
    spec = ModelSpec.from_directory(config.model)
    if spec.vocab_size != target.vocab_size:
        raise ConfigInvalid(
            f"the draft model has {spec.vocab_size} tokens and the model {target.vocab_size}; they must be the same"
        )
    if spec.context_length < context_length:
        raise ConfigInvalid(
            f"the draft model's context of {spec.context_length} tokens is shorter than {context_length}"
        )
    if target.window is not None and (spec.window is None or spec.window > target.window):
        raise ConfigInvalid(
            f"the draft model reads further back than the window of {target.window} tokens that the model keeps"
        )
    return spec


def draft_bytes_per_token(draft: ModelSpec | None, dtype: torch.dtype) -> int:
    """Return the KV bytes that a draft model needs for each token that the model keeps."""
    return kv_codec("auto", dtype).bytes_per_token(draft) if draft else 0


def load_drafter(
    config: SpecConfig, target: TargetModel, draft: ModelSpec | None, loras: Mapping[str, LoraAdapter]
) -> Drafter:
    """Return the drafter, with its weights loaded.

    The first layers of the model draft with the LoRA adapters; other drafters use no adapters.

    Raises:
        CheckpointInvalid, ConfigInvalid: The settings or the weights do not fit the target.
    """
    spec = target.decoder.spec
    if config.method == "ngram":
        return NgramDrafter(shortest=config.prompt_lookup_min, longest=config.prompt_lookup_max)
    if config.method == "medusa" and config.model is not None:
        heads = load_heads(config.model, target.decoder, dtype=target.dtype)
        tree = best_tree(read_accuracies(config.model, heads=len(heads)), config.num_tokens)
        head = spec.hidden_size**2 + spec.vocab_size * spec.hidden_size
        cost = tree.heads * head / _weights_read(spec, spec.layers) / len(tree.candidates)
        return MedusaDrafter(heads, tree, cost=cost, batch_size_max=config.batch_size_max)
    if config.method == "early_exit" and config.exit_layer is not None:
        if config.exit_layer >= spec.layers:
            raise ConfigInvalid(
                f"the exit layer {config.exit_layer} must be less than the model's {spec.layers} layers"
            )
        return _model_drafter(config, target, early_exit(target.decoder, config.exit_layer), loras)
    if draft is None or config.model is None:
        raise ConfigInvalid(f"speculative method {config.method} needs a speculative model")
    decoder = load_decoder(
        config.model,
        draft,
        context_length=target.context_length,
        dtype=target.dtype,
        device=target.device,
    )
    return _model_drafter(config, target, decoder, None)


def _model_drafter(
    config: SpecConfig, target: TargetModel, decoder: Decoder, loras: Mapping[str, LoraAdapter] | None
) -> ModelDrafter:
    has_own_kv = config.method == "draft_model"
    attention = target.attention
    if has_own_kv:
        store = KVStore(
            decoder.spec,
            blocks=target.blocks + 1,
            block_size=target.block_size,
            codec=kv_codec("auto", target.dtype),
            dtype=target.dtype,
            device=target.device,
        )
        attention = attention_backend(target.backend, store, decoder.spec)
    model = target.decoder.spec
    return ModelDrafter(
        decoder,
        attention,
        target.device,
        cost=_weights_read(decoder.spec, len(decoder.layers)) / _weights_read(model, model.layers),
        samples_drafts=config.draft_sample_method == "probabilistic",
        catch_up_tokens=target.chunk_tokens,
        own_kv=DraftKV(target.block_size) if has_own_kv else None,
        loras=loras,
    )


def _weights_read(spec: ModelSpec, layers: int) -> int:
    """Return how many weights one decoded token reads: the matrices of the layers and the head."""
    attention = spec.hidden_size * spec.head_dim * 2 * (spec.heads + spec.kv_heads)
    return layers * (attention + 3 * spec.hidden_size * spec.intermediate_size) + (
        spec.vocab_size * spec.hidden_size
    )
