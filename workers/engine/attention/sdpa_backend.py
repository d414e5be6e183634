"""Attention by gathering each sequence's blocks, then calling torch's scaled_dot_product_attention.

    rows that decode or verify, in batches of              a prefill chunk, alone:
    one span length and about one context length:
                                                           keys   0 . . . start . . end
      query  [B, kv_heads, group * count, head_dim]        row 0  1 1 1 1 1 1 0 0 0       with a window of 4:
      keys   [B, kv_heads, S,             head_dim]        row 1  1 1 1 1 1 1 1 0 0         0 0 0 1 1 1 1 0 0
      mask   [B, 1,        group * count, S]  0 or -inf    row n  1 1 1 1 1 1 1 1 1         0 0 0 0 0 1 1 1 1

Query heads that share a key head become rows of one query ("group"). The result is the same as with repeated keys,
and in bfloat16 on CPU it is about five times faster. This backend runs on any device and is the reference for
others.

Spans that verify the same number of drafts form batches as well; one that verifies three and one that verifies
four do not, because rows of padding would cost all of them what the copies and one more call cost once. `batching`
decides which contexts are padded to each other, and no batch copies more than GATHER_BYTES_MAX.

A layer with a window gathers only the blocks that the window reaches. Layers with the same window share one view.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionSpan, Window
from workers.engine.attention.batching import cut_batches
from workers.engine.attention.store_backend import StoreBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.draft_tree import DraftTree
from workers.engine.id_tensor import id_tensor
from workers.engine.kv.kv_store import KVStore

BATCHED_SPAN_TOKENS_MAX = 33
"""Spans up to this length are computed in batches: one token and the largest number of drafts."""
GATHER_BYTES_MAX = 256 << 20
"""Bytes of the keys and values that a batch copies, unless one span alone has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Short spans of equal length, which are computed together: rows `first` to `last` of the step."""

    first: int
    last: int
    """One more than the last row."""
    spans: int
    """The number of spans."""
    blocks: Tensor
    """[spans * width]: the blocks of each span, padded to the longest."""
    mask: Tensor
    """[spans, 1, group * count, width * block_size], or 1 in place of group * count where count is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """One span that is computed alone: rows `first` to `last` of the step."""

    first: int
    last: int
    """One more than the last row."""
    count: int
    """How many of the gathered keys the mask covers, from the first one on."""
    blocks: Tensor | None
    """The blocks to gather; None where the span begins at position 0, and reads only its own keys."""
    mask: Tensor | None
    """[rows, count]; None: causal."""


_View = Sequence[_Batch | _Chunk]
"""The batches and chunks of a step, in the order of its rows, for the layers with the same window."""


class SdpaBackend(StoreBackend):
    """An AttentionBackend over a KVStore, on the store's device."""

    def __init__(self, store: KVStore, spec: ModelSpec) -> None:
        """Create a backend for the model `spec`, which the keys and values in the store belong to."""
        super().__init__(store)
        self._windows = spec.windows
        self._group = spec.heads // spec.kv_heads
        block_bytes = 2 * store.block_size * spec.kv_heads * spec.head_dim * store.dtype.itemsize
        self._gathered_blocks_max = GATHER_BYTES_MAX // block_bytes

    def begin(self, spans: Sequence[AttentionSpan]) -> "SdpaAttentionStep":
        """Return a step with the indices and masks for all layers."""
        views = {window: self._view(spans, window) for window in set(self._windows)}
        return SdpaAttentionStep(
            self._store,
            id_tensor(self._slots(spans), self._store.device),
            [views[window] for window in self._windows],
        )

    def _view(self, spans: Sequence[AttentionSpan], window: Window) -> _View:
        view: list[_Batch | _Chunk] = []
        first = 0
        for (count, _), alike in groupby(spans, key=_batch_key):
            group = list(alike)
            if count:
                view += self._batches(group, first, window)
            else:
                starts = accumulate((span.count for span in group), initial=first)
                view += [self._chunk(span, start, window) for span, start in zip(group, starts, strict=False)]
            first = view[-1].last
        return view

    def _batches(self, spans: Sequence[AttentionSpan], first: int, window: Window) -> Iterator[_Batch]:
        """Yield the batches of spans of one length; `first` is the row of the first span."""
        used = [self._read(span, window) for span in spans]
        for cut in cut_batches([len(blocks) for blocks in used], self._gathered_blocks_max):
            yield self._batch(spans[cut], used[cut], first + cut.start * spans[0].count, window)

    def _batch(
        self, spans: Sequence[AttentionSpan], used: Sequence[Sequence[int]], first: int, window: Window
    ) -> _Batch:
        store, size, count = self._store, self._store.block_size, spans[0].count
        width = max(len(blocks) for blocks in used)
        # Shorter rows are padded with block 0; the mask hides it.
        table = chain.from_iterable((*blocks, *[0] * (width - len(blocks))) for blocks in used)
        begins = _column([_first_block(span, window, size) * size for span in spans], store.device)
        starts = _column([span.start for span in spans], store.device)
        positions = begins + torch.arange(width * size, device=store.device)
        tree = spans[0].tree
        if tree is None:
            rows = starts + torch.arange(count, device=store.device)
            mask = self._mask(_hidden(positions[:, None, :], rows[:, :, None], window))
        else:
            mask = self._mask(_hidden_in_tree(positions, starts, tree, window))
        return _Batch(
            first=first,
            last=first + len(spans) * count,
            spans=len(spans),
            blocks=id_tensor(table, store.device),
            mask=(mask if count == 1 else mask.repeat(1, self._group, 1))[:, None],
        )

    def _chunk(self, span: AttentionSpan, first: int, window: Window) -> _Chunk:
        store, last = self._store, first + span.count
        if span.start == 0 and (window is None or span.end <= window):
            return _Chunk(first=first, last=last, count=span.count, blocks=None, mask=None)
        begin = 0 if span.start == 0 else _first_block(span, window, store.block_size) * store.block_size
        rows = torch.arange(span.start, span.end, device=store.device)[:, None]
        mask = self._mask(_hidden(torch.arange(begin, span.end, device=store.device), rows, window))
        blocks = None
        if span.start:
            blocks = id_tensor(self._read(span, window), store.device)
        return _Chunk(first=first, last=last, count=span.end - begin, blocks=blocks, mask=mask)

    def _read(self, span: AttentionSpan, window: Window) -> Sequence[int]:
        """Return the blocks that this span reads."""
        size = self._store.block_size
        return span.blocks[_first_block(span, window, size) : -(-span.end // size)]

    def _mask(self, hidden: Tensor) -> Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._store.dtype, device=self._store.device)
        return mask.masked_fill_(hidden, -torch.inf)


class SdpaAttentionStep:
    """The indices and masks of one step, used by every layer."""

    def __init__(self, store: KVStore, slots: Tensor, views: Sequence[_View]) -> None:
        self._store = store
        self._slots = slots
        self._views = views

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the keys and values of one layer, and return the attention output, shaped as `query`."""
        self._store.write(layer, self._slots, key, value)
        parts = [
            self._attend_batch(layer, query[part.first : part.last], part)
            if isinstance(part, _Batch)
            else self._attend_chunk(layer, query, key, value, part)
            for part in self._views[layer]
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_batch(self, layer: int, query: Tensor, batch: _Batch) -> Tensor:
        keys, values = self._store.gather(layer, batch.blocks)
        _, kv_heads, head_dim = keys.shape
        by_span = (batch.spans, -1, kv_heads, head_dim)
        # [spans, count, kv_heads, group, head_dim] and back.
        cut = query.reshape(batch.spans, -1, kv_heads, query.shape[1] // kv_heads, head_dim)
        _, count, _, group, _ = cut.shape
        mixed = F.scaled_dot_product_attention(
            cut.permute(0, 2, 3, 1, 4).flatten(2, 3),
            keys.view(by_span).transpose(1, 2),
            values.view(by_span).transpose(1, 2),
            attn_mask=batch.mask,
        )
        apart = mixed.view(batch.spans, kv_heads, group, count, head_dim)
        return apart.permute(0, 3, 1, 2, 4).reshape(query.shape)

    def _attend_chunk(self, layer: int, query: Tensor, key: Tensor, value: Tensor, chunk: _Chunk) -> Tensor:
        query, key, value = (side[chunk.first : chunk.last] for side in (query, key, value))
        if chunk.blocks is None:
            key, value = self._store.as_read(key, value)
        else:
            key, value = (side[: chunk.count] for side in self._store.gather(layer, chunk.blocks))
        count, heads, head_dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        # [kv_heads, group, rows, head_dim] against the keys of the whole group, without copying them.
        mixed = F.scaled_dot_product_attention(
            query.view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3),
            key.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
            value.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
        )
        return mixed.permute(2, 0, 1, 3).reshape(query.shape)


def _batch_key(span: AttentionSpan) -> tuple[int, DraftTree | None]:
    """Return the length of a span that is computed in a batch, or 0 where it is computed alone, and its tree."""
    return span.count if span.start and span.count <= BATCHED_SPAN_TOKENS_MAX else 0, span.tree


def _first_block(span: AttentionSpan, window: Window, size: int) -> int:
    """Return the index of the first block that the first token of a span attends to."""
    return 0 if window is None else max(0, span.start - window + 1) // size


def _hidden(positions: Tensor, rows: Tensor, window: Window) -> Tensor:
    """Return which of `positions` [.., 1 or rows, keys] are masked for each of `rows` [.., rows, 1]."""
    hidden = positions > rows
    return hidden if window is None else hidden | (positions <= rows - window)


def _hidden_in_tree(places: Tensor, starts: Tensor, tree: DraftTree, window: Window) -> Tensor:
    """Return which keys are masked for each row of spans whose tokens after the first one are a tree of drafts.

    Args:
        places: [spans, keys], the places of the keys in their sequences.
        starts: [spans, 1], the place of each span's first token.
        tree: the tree, of rows - 1 drafts.
        window: the window of the layer.

    Returns:
        [spans, rows, keys].
    """
    attended = torch.tensor(tree.attended_rows(), device=places.device)
    ahead = torch.tensor((0, *(depth + 1 for depth in tree.depths)), device=places.device)
    inside = (places - starts).clamp(0, len(ahead) - 1)
    hidden = ~attended[:, inside].transpose(0, 1) | (places - starts >= len(ahead))[:, None, :]
    if window is None:
        return hidden
    positions = torch.where(places > starts, starts + ahead[inside], places)
    return hidden | (positions[:, None, :] <= (starts + ahead)[:, :, None] - window)


def _column(values: Sequence[int], device: torch.device) -> Tensor:
    return id_tensor(values, device)[:, None]
