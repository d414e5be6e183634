"""The cut of a step's spans into tiles of queries, for kernels that read the KV cache through block tables.

    spans       a 40+1   b 99+1   c 7+3    d 0+150
    short       a        b        c                       decode and verify: one tile shape, contexts may be split
    long                                   d0 d1 d2       prompt chunks: full tiles

A tile's rows are tokens x query heads of one key head. No rectangle is made: a short context has no part in what a
long one reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from workers.engine.attention.attention_backend import AttentionSpan

SHORT_TOKENS_MAX = 33
"""Spans up to this length may be split: one token and the largest number of drafts."""
ROWS_MIN, ROWS_MAX = 16, 64
"""Rows of a tile: tensor cores multiply at least 16, and more than 64 do not fit into registers."""
PROGRAMS = 512
"""Programs of one launch that keep a device busy. A batch with fewer tiles splits its contexts."""
SPLITS_MAX = 32
SPLIT_KEYS_MIN = 256
"""The fewest keys for which a split of their own is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Consecutive tokens of one span; see `kernels.tile`."""

    row: int
    """The row of the first token in the step."""
    count: int
    start: int
    """The place of the span's first token."""
    end: int
    """One more than the place of the last key that any of the tokens attends to."""


def cut_tiles(span: AttentionSpan, row: int, tokens: int) -> Iterator[Tile]:
    """Yield the tiles of a span, of up to `tokens` tokens each; `row` is the row of the span's first token."""
    for offset in range(0, span.count, tokens):
        count = min(tokens, span.count - offset)
        # No token attends to a later one of its span, also in a tree of drafts.
        yield Tile(row=row + offset, count=count, start=span.start, end=span.start + offset + count)


def tile_rows(tokens: int, group: int) -> int:
    """Return the rows of tiles for spans of up to `tokens` tokens: a power of two."""
    most = max(ROWS_MAX, power_of_two(group))
    return min(most, max(ROWS_MIN, power_of_two(tokens * group)))


def split_count(programs: int, keys: int) -> int:
    """Return the number of splits of each context, for so many programs without splits and so many keys at most."""
    return max(1, min(SPLITS_MAX, PROGRAMS // programs, -(-keys // SPLIT_KEYS_MIN)))


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
