"""The index tensors of one step of the Triton backend, all views of one tensor, which is copied to the device once.

numbers   [ slots | positions | short tiles | long tiles | tables of all spans, one after the other ]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionSpan, Window
from workers.engine.attention.tiles import ROWS_MAX, SHORT_TOKENS_MAX, cut_tiles, split_count, tile_rows
from workers.engine.id_tensor import id_tensor

TILE_NUMBERS = 5
"""The numbers of a tile: row, count, start, end, first entry of its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileGroup:
    """The tiles of one launch."""

    tiles: Tensor
    """[tiles, TILE_NUMBERS]."""
    rows: int
    """Rows of each tile."""
    splits: int = 1
    """The splits of each context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIndex:
    """The index tensors of one step, read by the kernels besides queries, keys and values; int64, on the device."""

    slots: Tensor
    """[tokens]: where each token's key and value are stored."""
    positions: Tensor
    """[tokens]: the position of each token in the text."""
    blocks: Tensor
    """The tables of all spans, one after the other."""
    short: TileGroup | None
    """Spans that decode or verify."""
    long: TileGroup | None
    """Prompt chunks."""
    tree_bits: Mapping[Window, Tensor] = field(default_factory=dict)
    """[tokens] for each window: the rows of its span that a draft attends to, as bits; empty without a tree."""


def step_index(
    spans: Sequence[AttentionSpan],
    slots: Sequence[int],
    *,
    block_size: int,
    group: int,
    kv_heads: int,
    windows: Sequence[Window],
    device: torch.device,
) -> StepIndex:
    """Return the index of a step.

    Args:
        spans: the spans of the step.
        slots: the slot of each token.
        block_size: tokens of a block.
        group: query heads of a key head.
        kv_heads: key heads of the model.
        windows: the different windows of the layers.
        device: where the tensors go.
    """
    tables = [span.blocks[: -(-span.end // block_size)] for span in spans]
    places = _Places(
        firsts=list(accumulate((span.count for span in spans[:-1]), initial=0)),
        tables=list(accumulate((len(table) for table in tables), initial=0)),
    )
    short = [number for number, span in enumerate(spans) if _is_short(span)]
    long = [number for number, span in enumerate(spans) if not _is_short(span)]
    short_rows = tile_rows(max((spans[number].count for number in short), default=1), group)
    # Chunks of any length have one tile shape, so that one kernel serves all.
    long_rows = tile_rows(ROWS_MAX, group)
    parts = (
        slots,
        [position for span in spans for position in span_positions(span)],
        places.tile_numbers(spans, short, short_rows, group),
        places.tile_numbers(spans, long, long_rows, group),
        [block for table in tables for block in table],
    )
    cut = id_tensor(chain.from_iterable(parts), device).split_with_sizes([len(part) for part in parts])
    short_tiles, long_tiles = (part.view(-1, TILE_NUMBERS) for part in cut[2:4])
    splits = split_count(
        max(1, len(short_tiles)) * kv_heads, max((spans[number].end for number in short), default=1)
    )
    has_tree = any(span.tree for span in spans)
    return StepIndex(
        slots=cut[0],
        positions=cut[1],
        blocks=cut[4],
        short=TileGroup(tiles=short_tiles, rows=short_rows, splits=splits) if short else None,
        long=TileGroup(tiles=long_tiles, rows=long_rows) if long else None,
        tree_bits={window: _bits(spans, window, device) for window in windows} if has_tree else {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where the spans of a step begin."""

    firsts: Sequence[int]
    """The row of each span's first token."""
    tables: Sequence[int]
    """The first entry of each span's table."""

    def tile_numbers(
        self, spans: Sequence[AttentionSpan], numbers: Sequence[int], rows: int, group: int
    ) -> list[int]:
        """Return the numbers of the tiles of some spans, one tile after the other."""
        found: list[int] = []
        for number in numbers:
            for tile in cut_tiles(spans[number], self.firsts[number], rows // group):
                found += (tile.row, tile.count, tile.start, tile.end, self.tables[number])
        return found


def span_positions(span: AttentionSpan) -> Sequence[int]:
    """Return the position in the text of each token of a span."""
    if span.tree is None:
        return range(span.start, span.end)
    return (span.start, *(span.start + 1 + depth for depth in span.tree.depths))


def tree_bits(span: AttentionSpan, window: Window) -> Sequence[int]:
    """Return the rows of the span that each of its tokens attends to, as bits; 0 where the span has no tree."""
    if span.tree is None:
        return [0] * span.count
    positions = span_positions(span)
    return [
        sum(
            1 << row
            for row, seen in enumerate(sees)
            if seen and (window is None or positions[row] > position - window)
        )
        for sees, position in zip(span.tree.attended_rows(), positions, strict=True)
    ]


def _is_short(span: AttentionSpan) -> bool:
    return span.tree is not None or (span.count <= SHORT_TOKENS_MAX and (span.start > 0 or span.count == 1))


def _bits(spans: Sequence[AttentionSpan], window: Window, device: torch.device) -> Tensor:
    return id_tensor([bits for span in spans for bits in tree_bits(span, window)], device)
