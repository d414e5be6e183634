"""Where keys and values live: one tensor per side, [layers, blocks, block_size, kv_heads, head_dim].

Token-major blocks make a write one indexed copy, a gather one indexed read of whole blocks, and one block of one
layer a contiguous slab that can be sent elsewhere as it is.
"""

import math

import numpy as np
import torch
from torch import Tensor

from workers.engine.model.spec import ModelSpec


def bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Memory of one token's keys and values over all layers."""
    return 2 * spec.layers * spec.kv_heads * spec.head_dim * dtype.itemsize


class KVStore:
    """Keys and values of `blocks` blocks, block 0 included."""

    def __init__(
        self, spec: ModelSpec, *, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        shape = (spec.layers, blocks, block_size, spec.kv_heads, spec.head_dim)
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Put `key` and `value` [tokens, kv_heads, head_dim] into `slots` [tokens]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, value)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `blocks` [n], each [n * block_size, kv_heads, head_dim], in their order."""
        # index_select, not keys[layer][blocks]: the same copy, five times faster on CPU.
        keys = self.keys[layer].index_select(0, blocks).flatten(0, 1)
        values = self.values[layer].index_select(0, blocks).flatten(0, 1)
        return keys, values


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros and not garbage: a masked slot still enters 0 * value, and 0 * nan is nan."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page at once. numpy gets zeroed pages, which cost memory only when they are used.
    pages = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)
