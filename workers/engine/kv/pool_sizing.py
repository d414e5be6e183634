"""How many KV blocks the pool gets when nobody said so."""

import torch

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.errors import ConfigInvalid
from workers.engine.kv.kv_codec import KVCodec

CPU_BYTES = 1 << 30
CUDA_SHARE = 0.8


def pool_blocks(
    config: EngineConfig,
    spec: ModelSpec,
    *,
    context_length: int,
    codec: KVCodec,
    device: torch.device,
    draft_bytes: int = 0,
) -> int:
    """Usable blocks: what was asked for, else what fits, but no more than every sequence at full length needs.

    `draft_bytes` is what a draft model keeps for each token beside the model.
    """
    if config.kv_tokens is not None:
        return config.kv_tokens // config.block_size
    memory = CPU_BYTES
    if device.type == "cuda":
        memory = int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE)
    wanted = config.running_max * -(-context_length // config.block_size)
    # One block less than fits: block 0 takes memory too.
    token = codec.bytes_per_token(spec) + draft_bytes
    blocks = min(wanted, memory // (token * config.block_size) - 1)
    if blocks < 1:
        raise ConfigInvalid(f"{memory} bytes do not hold two KV blocks of {config.block_size} tokens")
    return blocks
