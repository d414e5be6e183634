"""A tile of queries: consecutive tokens of one span, each with the query heads that share a key head.

    tiles   [ row | count | start | end | table ]      row of its first token, tokens, place of the span's first
                                                       token, one more than its last key, first entry in `blocks`
    rows of a tile, 3 query heads to a key head:       t0h0 t0h1 t0h2 t1h0 t1h1 t1h2 ...

One multiplication with the keys serves all heads of the group, so a key is read once for all of them.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(tiles, tile):
    """Return the five numbers of a tile: row, count, start, end, table."""
    entry = tiles + tile * 5
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3), tl.load(entry + 4)


@triton.jit
def load_query(
    query,
    query_row,
    query_head,
    row,
    count,
    kv_head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return the queries of a tile [ROWS, COLUMNS], with 0 where the tile has no token.

    Args:
        query: pointer to the queries of the step.
        query_row: numbers from one row to the next.
        query_head: numbers from one head to the next.
        row: the row of the tile's first token.
        count: tokens of the tile.
        kv_head: the number of the key head.
        GROUP: query heads of a key head.
        HEAD_DIM: numbers of a head.
        COLUMNS: HEAD_DIM, rounded up to a power of two.
        ROWS: rows of a tile.
    """
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    token, head = rows // GROUP, kv_head * GROUP + rows % GROUP
    inside = (token < count)[:, None] & (columns < HEAD_DIM)[None, :]
    places = ((row + token) * query_row + head * query_head)[:, None] + columns[None, :]
    return tl.load(query + places, mask=inside, other=0.0)


@triton.jit
def load_by_token(numbers, row, count, other, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Return the number of each row's token, [ROWS], or `other` where the tile has no token."""
    token = tl.arange(0, ROWS) // GROUP
    return tl.load(numbers + row + token, mask=token < count, other=other)


@triton.jit
def store_output(
    output,
    mixed,
    row,
    count,
    kv_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Store the results of a tile in `output` [tokens, heads, HEAD_DIM]."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    token, head = rows // GROUP, kv_head * GROUP + rows % GROUP
    inside = (token < count)[:, None] & (columns < HEAD_DIM)[None, :]
    places = ((row + token) * (KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + columns[None, :]
    tl.store(output + places, mixed.to(output.dtype.element_ty), mask=inside)
