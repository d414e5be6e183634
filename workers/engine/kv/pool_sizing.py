"""The size of the KV pool: the number of blocks that `kv_tokens` names, or that fit into the memory."""

import torch

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.errors import ConfigInvalid
from workers.engine.kv.kv_codec import KVCodec

CPU_BYTES = 1 << 30
"""Bytes of the KV cache on a CPU."""
CUDA_SHARE = 0.9
"""The share of the memory that is free on a CUDA device, once the weights are loaded, for KV cache and steps."""


def pool_blocks(
    config: EngineConfig,
    spec: ModelSpec,
    *,
    context_length: int,
    codec: KVCodec,
    device: torch.device,
    draft_bytes: int = 0,
    step_bytes: int = 0,
) -> int:
    """Return the number of usable blocks: by `kv_tokens`, else what fits into the memory.

    No more blocks than `running_max` sequences at full length need are used.

    Args:
        config: the engine's settings.
        spec: the model.
        context_length: tokens of the longest sequence.
        codec: how keys and values are stored.
        device: where they are stored.
        draft_bytes: the bytes that a draft model stores for each token besides.
        step_bytes: the bytes that the largest step needs on the device besides.

    Raises:
        ConfigInvalid: the memory does not hold two blocks.
    """
    if config.kv_tokens is not None:
        return config.kv_tokens // config.block_size
    memory = CPU_BYTES
    if device.type == "cuda":
        memory = kv_memory(torch.cuda.mem_get_info(device)[0], step_bytes)
    wanted = config.running_max * -(-context_length // config.block_size)
    # One block less than fits: block 0 takes memory too.
    token = codec.bytes_per_token(spec) + draft_bytes
    blocks = min(wanted, memory // (token * config.block_size) - 1)
    if blocks < 1:
        raise ConfigInvalid(f"{memory} bytes do not hold two KV blocks of {config.block_size} tokens")
    return blocks


def kv_memory(free: int, step_bytes: int) -> int:
    """Return the bytes for KV blocks on a CUDA device with `free` bytes beside the weights.

    Raises:
        ConfigInvalid: the largest step alone does not fit.
    """
    memory = int(free * CUDA_SHARE) - step_bytes
    if memory <= 0:
        raise ConfigInvalid(
            f"{free} free bytes do not hold the {step_bytes} that the largest step needs; lower context_length, "
            "chunk_tokens or running_max"
        )
    return memory
