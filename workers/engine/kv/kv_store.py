"""The tensors of the KV cache: one per stored part, [layers, blocks, block_size, kv_heads, width].

Token-major blocks make a write one indexed copy, a gather one indexed read of whole blocks, and one block of one
layer a contiguous slab that can be sent elsewhere as it is. The codec defines the parts of keys and of values.

    exported block    [ layer 0 of part 0 .. layer n of part 0 | layer 0 of part 1 .. ]    as bytes
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.kv.kv_codec import KVCodec, SideCodec


class KVStore:
    """The keys and values of a fixed number of blocks, block 0 included."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        blocks: int,
        block_size: int,
        codec: KVCodec,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the tensors.

        Args:
            spec: the model that computes the keys and values.
            blocks: the number of blocks, block 0 included.
            block_size: tokens in a block.
            codec: how keys and values are stored.
            dtype: the type that the model computes in, and in which it reads keys and values.
            device: where the tensors live.
        """
        self.block_size = block_size
        self.codec = codec
        self.dtype = dtype
        self.device = device
        shape = (spec.layers, blocks, block_size, spec.kv_heads)
        self.keys, self.values = (
            tuple(_zeros((*shape, width), kept, device) for width, kept in side.parts(spec.head_dim))
            for side in (codec.key, codec.value)
        )

    @property
    def num_bytes(self) -> int:
        """The bytes of all blocks, block 0 included."""
        return sum(part.nbytes for part in self._parts)

    @property
    def bytes_per_block(self) -> int:
        """The bytes of an exported block."""
        return self.num_bytes // self.keys[0].shape[1]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store `key` and `value` [tokens, kv_heads, head_dim] of one layer in `slots` [tokens]."""
        for parts, codec, rows in ((self.keys, self.codec.key, key), (self.values, self.codec.value, value)):
            for part, encoded in zip(parts, codec.encode(rows), strict=True):
                part[layer].flatten(0, 1).index_copy_(0, slots, encoded)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of `blocks` [n], each [n * block_size, kv_heads, head_dim], in order."""
        key, value = (
            # index_select, not part[layer][blocks]: the same copy, five times faster on CPU.
            codec.decode(
                tuple(part[layer].index_select(0, blocks).flatten(0, 1) for part in parts), self.dtype
            )
            for parts, codec in ((self.keys, self.codec.key), (self.values, self.codec.value))
        )
        return key, value

    def as_read(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return new keys and values as `gather` would: a cache miss must read the same numbers as a hit."""
        return self._as_read(self.codec.key, key), self._as_read(self.codec.value, value)

    def copy(self, source: int, target: int) -> None:
        """Copy the content of block `source` to block `target`, in all layers."""
        for part in self._parts:
            part[:, target] = part[:, source]

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the content of the slots `sources` [n] to the slots `targets` [n], in all layers."""
        for part in self._parts:
            slots = part.flatten(1, 2)
            slots.index_copy_(1, targets, slots.index_select(1, sources))

    def export(self, blocks: Sequence[int], into: Tensor | None = None) -> Tensor:
        """Return the content of `blocks` as bytes on the CPU, [n, bytes_per_block], in `into` or a new tensor."""
        if into is None:
            into = torch.empty((len(blocks), self.bytes_per_block), dtype=torch.uint8)
        for part, slabs in self._slabs(into):
            # One by one: an indexed read over the blocks' axis copies small pieces, ten times slower.
            for index, block in enumerate(blocks):
                slabs[index].copy_(part[:, block])
        return into

    def load(self, blocks: Sequence[int], content: Tensor) -> None:
        """Fill `blocks` with bytes from `export`, [n, bytes_per_block]."""
        for part, slabs in self._slabs(content):
            for index, block in enumerate(blocks):
                part[:, block].copy_(slabs[index])

    def _slabs(self, content: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each part with its view in `content` [n, bytes], [n, layers, block_size, kv_heads, width]."""
        begin = 0
        for part in self._parts:
            layers, _, *shape = part.shape
            end = begin + part[:, 0].nbytes
            yield part, content[:, begin:end].view(part.dtype).view(len(content), layers, *shape)
            begin = end

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return (*self.keys, *self.values)

    def _as_read(self, codec: SideCodec, rows: Tensor) -> Tensor:
        return rows if codec.exact else codec.decode(codec.encode(rows), self.dtype)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of zeros. Garbage would not do: a masked slot still enters 0 * value, and 0 * nan is nan."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page at once. numpy gets zeroed pages, which cost memory only when they are used.
    pages = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)
