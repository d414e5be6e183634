"""Attention by gathering: copy each sequence's blocks together, then torch's scaled_dot_product_attention.

    decode rows, one batch, padded to the longest:          a prefill chunk, alone:

      query  [B, kv_heads, group, head_dim]                  keys   0 . . . start . . end
      keys   [B, kv_heads, S,     head_dim]                  row 0  1 1 1 1 1 1 0 0 0
      mask   [B, 1,        1,     S]  0 or -inf              row 1  1 1 1 1 1 1 1 0 0
                                                             row n  1 1 1 1 1 1 1 1 1

Query heads that share a key head become rows of one query ("group"). The result is the same as with repeated keys,
and in bfloat16 on CPU it is about five times faster. This backend runs anywhere and is the reference for others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engine.attention.base import Span
from workers.engine.kv.store import KVStore


@dataclass(frozen=True, slots=True, kw_only=True)
class _Singles:
    """The spans of one token: `blocks` [rows * width], `mask` [rows, 1, 1, width * block_size]."""

    rows: int
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """One longer span: rows `first` to `last` of the step; blocks and mask only when something stands before it."""

    first: int
    last: int
    end: int
    blocks: Tensor | None
    mask: Tensor | None


class SdpaBackend:
    """AttentionBackend over a KVStore, on its device."""

    def __init__(self, store: KVStore) -> None:
        self._store = store

    def begin(self, spans: Sequence[Span]) -> "SdpaStep":
        """Indices and masks for all layers of a step."""
        singles = list(takewhile(lambda span: span.count == 1, spans))
        chunks, first = [], len(singles)
        for span in spans[len(singles) :]:
            chunks.append(self._chunk(span, first))
            first += span.count
        return SdpaStep(self._store, self._slots(spans), self._singles(singles) if singles else None, chunks)

    def _slots(self, spans: Sequence[Span]) -> Tensor:
        """Where each row's key and value go, [tokens]."""
        size = self._store.block_size
        slots = [
            span.blocks[position // size] * size + position % size
            for span in spans
            for position in range(span.start, span.end)
        ]
        return torch.tensor(slots, device=self._store.device)

    def _singles(self, spans: Sequence[Span]) -> _Singles:
        store = self._store
        width = max(-(-span.end // store.block_size) for span in spans)
        # Shorter rows are padded with block 0; the mask hides it.
        table = [list(span.blocks[:width]) + [0] * (width - len(span.blocks)) for span in spans]
        ends = torch.tensor([span.end for span in spans], device=store.device)
        hidden = torch.arange(width * store.block_size, device=store.device) >= ends[:, None]
        mask = torch.zeros(hidden.shape, dtype=store.dtype, device=store.device).masked_fill_(
            hidden, -torch.inf
        )
        return _Singles(
            rows=len(spans),
            blocks=torch.tensor(table, device=store.device).flatten(),
            mask=mask[:, None, None, :],
        )

    def _chunk(self, span: Span, first: int) -> _Chunk:
        store = self._store
        last = first + span.count
        if span.start == 0:
            return _Chunk(first=first, last=last, end=span.end, blocks=None, mask=None)
        used = span.blocks[: -(-span.end // store.block_size)]
        rows = torch.arange(span.start, span.end, device=store.device)
        hidden = torch.arange(span.end, device=store.device) > rows[:, None]
        return _Chunk(
            first=first,
            last=last,
            end=span.end,
            blocks=torch.tensor(used, device=store.device),
            mask=torch.zeros(hidden.shape, dtype=store.dtype, device=store.device).masked_fill_(
                hidden, -torch.inf
            ),
        )


class SdpaStep:
    """One step's indices and masks, used by every layer."""

    def __init__(
        self, store: KVStore, slots: Tensor, singles: _Singles | None, chunks: Sequence[_Chunk]
    ) -> None:
        self._store = store
        self._slots = slots
        self._singles = singles
        self._chunks = chunks

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As promised by AttentionStep."""
        self._store.write(layer, self._slots, key, value)
        parts = []
        if self._singles:
            parts.append(self._attend_singles(layer, query[: self._singles.rows], self._singles))
        for chunk in self._chunks:
            rows = slice(chunk.first, chunk.last)
            parts.append(self._attend_chunk(layer, query[rows], key[rows], value[rows], chunk))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_singles(self, layer: int, query: Tensor, singles: _Singles) -> Tensor:
        keys, values = self._store.gather(layer, singles.blocks)
        _, kv_heads, head_dim = keys.shape
        by_row = (singles.rows, -1, kv_heads, head_dim)
        mixed = F.scaled_dot_product_attention(
            query.reshape(singles.rows, kv_heads, -1, head_dim),
            keys.view(by_row).transpose(1, 2),
            values.view(by_row).transpose(1, 2),
            attn_mask=singles.mask,
        )
        return mixed.reshape(query.shape)

    def _attend_chunk(self, layer: int, query: Tensor, key: Tensor, value: Tensor, chunk: _Chunk) -> Tensor:
        if chunk.blocks is not None:
            key, value = (side[: chunk.end] for side in self._store.gather(layer, chunk.blocks))
        count, heads, head_dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        # [kv_heads, group, rows, head_dim] against keys that all of a group see, without copying them.
        mixed = F.scaled_dot_product_attention(
            query.view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3),
            key.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
            value.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
        )
        return mixed.permute(2, 0, 1, 3).reshape(query.shape)
