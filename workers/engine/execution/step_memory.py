"""The memory that the largest step needs besides weights and KV, as an upper bound.

    sdpa         keys and values of one batch, gathered      GATHER_BYTES_MAX, or one sequence at full length
                 masks of all batches and chunks             one for each different window
    triton       workspace of split contexts, index tensors  nothing is gathered, and no mask is made
    layer        chunk_tokens rows                           hidden states, heads, both halves of the MLP
    adapters     chunk_tokens rows                           inputs and outputs of one low-rank update
    sampling     running_max * (1 + drafts) rows             logits, and distributions in float64

The parts do not peak at the same moment, so the sum is more than any step takes.
"""

import torch

from workers.engine.attention.choice import BackendName
from workers.engine.attention.sdpa_backend import GATHER_BYTES_MAX
from workers.engine.attention.step_index import TILE_NUMBERS
from workers.engine.attention.workspace import workspace_bytes
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.execution.activations import activation_bytes
from workers.engine.kv.kv_codec import KVCodec

_FLOAT32, _FLOAT64, _INT64 = 4, 8, 8


def step_bytes(
    config: EngineConfig,
    spec: ModelSpec,
    *,
    context_length: int,
    codec: KVCodec,
    dtype: torch.dtype,
    attention: BackendName = "sdpa",
) -> int:
    """Return the bytes that the largest step needs.

    Args:
        config: the engine's settings.
        spec: the model.
        context_length: tokens of the longest sequence.
        codec: how keys and values are stored.
        dtype: the type that the model computes in.
        attention: the attention backend.
    """
    drafts = config.speculation.num_tokens if config.speculation else 0
    sampled = config.running_max * (1 + drafts)
    # Decoding sequences come first and are never cut, so a small budget does not bound the rows of a step.
    rows = max(config.chunk_tokens, sampled)
    if not config.chunked_prefill or config.kv_layout == "none":
        rows = max(rows, context_length)
    if attention == "triton":
        attending = _indexed(config, spec, context_length, codec, rows)
    else:
        attending = _gathered(config, spec, context_length, codec, dtype) + _masks(
            config, spec, context_length, dtype, rows
        )
    return (
        attending
        + activation_bytes(spec, dtype, rows)
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


def _indexed(config: EngineConfig, spec: ModelSpec, context_length: int, codec: KVCodec, rows: int) -> int:
    """Return the bytes of the Triton backend: workspaces, index tensors, and what encoding new tokens takes."""
    tables = config.running_max * -(-context_length // config.block_size)
    # Slots and positions, tiles of one token at worst, and the bits of drafts for each window.
    numbers = rows * (2 + TILE_NUMBERS + len(set(spec.windows))) + tables
    backends = 2 if config.speculation and config.speculation.method == "draft_model" else 1
    encoded = 0
    if not (codec.key.exact and codec.value.exact):
        # Keys or values in float32, scaled, rounded and clamped.
        encoded = 4 * rows * spec.kv_heads * spec.head_dim * _FLOAT32
    return backends * (workspace_bytes(spec) + numbers * _INT64) + encoded
