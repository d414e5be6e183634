"""The memory that the largest step needs besides weights and KV, as an upper bound.

    attention    keys and values of one batch, gathered      GATHER_BYTES_MAX, or one sequence at full length
                 masks of all batches and chunks             one for each different window
    layer        chunk_tokens rows                           hidden states, heads, both halves of the MLP
    adapters     chunk_tokens rows                           inputs and outputs of one low-rank update
    sampling     running_max * (1 + drafts) rows             logits, and distributions in float64

The parts do not peak at the same moment, so the sum is more than any step takes.
"""

import torch

from workers.engine.attention.sdpa_backend import GATHER_BYTES_MAX
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.kv.kv_codec import KVCodec

_FLOAT32, _FLOAT64 = 4, 8


def step_bytes(
    config: EngineConfig, spec: ModelSpec, *, context_length: int, codec: KVCodec, dtype: torch.dtype
) -> int:
    """Return the bytes that the largest step needs.

    Args:
        config: the engine's settings.
        spec: the model.
        context_length: tokens of the longest sequence.
        codec: how keys and values are stored.
        dtype: the type that the model computes in.
    """
    drafts = config.speculation.num_tokens if config.speculation else 0
    sampled = config.running_max * (1 + drafts)
    # Decoding sequences come first and are never cut, so a small budget does not bound the rows of a step.
    rows = max(config.chunk_tokens, sampled)
    if not config.chunked_prefill or config.kv_layout == "none":
        rows = max(rows, context_length)
    return (
        _gathered(config, spec, context_length, codec, dtype)
        + _masks(config, spec, context_length, dtype, rows)
        + _activations(spec, dtype, rows)
        + (_adapter_update(config, spec, dtype, rows) if config.lora.adapters else 0)
        + sampled * spec.vocab_size * (dtype.itemsize + _FLOAT32 + 3 * _FLOAT64)
    )


def _gathered(
    config: EngineConfig, spec: ModelSpec, context_length: int, codec: KVCodec, dtype: torch.dtype
) -> int:
    token = 2 * spec.kv_heads * spec.head_dim * dtype.itemsize
    blocks = -(-context_length // config.block_size)
    as_read = max(GATHER_BYTES_MAX, blocks * config.block_size * token)
    # A batch is no larger than all sequences at full length.
    as_read = min(as_read, config.running_max * blocks * config.block_size * token)
    if codec.key.exact and codec.value.exact:
        return as_read
    # The stored numbers are copied first, and multiplied by their scales in float32.
    return as_read + as_read // dtype.itemsize * (1 + 2 * _FLOAT32)


def _masks(config: EngineConfig, spec: ModelSpec, context_length: int, dtype: torch.dtype, rows: int) -> int:
    columns = -(-context_length // config.block_size) * config.block_size
    # Two conditions of a byte each become one mask; a verification repeats rows for the query heads of a key head.
    group = spec.heads // spec.kv_heads if config.speculation else 1
    return len(set(spec.windows)) * rows * columns * (dtype.itemsize * group + 2)


def _adapter_update(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, rows: int) -> int:
    widest = max(spec.hidden_size, spec.intermediate_size, spec.heads * spec.head_dim)
    # The rows of one adapter, reduced by up to three matrices, and what one of them adds.
    return rows * (2 * widest + 3 * config.lora.rank_max) * dtype.itemsize


def _activations(spec: ModelSpec, dtype: torch.dtype, rows: int) -> int:
    heads = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    # The residual, its norm and a layer's output; heads before and after rotation (in float32) and mixed; gate and
    # up, their activation and their product.
    widths = 4 * spec.hidden_size + 3 * heads + 4 * spec.intermediate_size
    return rows * (widths * dtype.itemsize + 2 * heads * _FLOAT32)
