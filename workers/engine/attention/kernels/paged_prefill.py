"""Attention of prompt chunks of any lengths, each over its own cached blocks and over itself.

    program (tile, key head)             keys   0 . . . . . . . . start . . . . end
                                                |---- no mask -----|--- masked ---|

The tiles of all chunks are listed one after the other, so no chunk is padded to the longest. Keys before the tile
need no mask where the layer has no window.
"""

import triton
import triton.language as tl

from workers.engine.attention.kernels.online_softmax import attend_keys
from workers.engine.attention.kernels.tile import load_by_token, load_query, load_tile, store_output


@triton.jit
def prefill_kernel(
    output,
    query,
    query_row,
    query_head,
    tiles,
    positions,
    blocks,
    scale,
    keys,
    key_scales,
    key_minima,
    values,
    value_scales,
    value_minima,
    KEY_CODEC: tl.constexpr,
    VALUE_CODEC: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SCALE_GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Attend from one tile to all of its keys; the arguments are those of `attend_keys` and `load_query`."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row, count, start, end, table = load_tile(tiles, tile)
    queries = load_query(query, query_row, query_head, row, count, kv_head, GROUP, HEAD_DIM, COLUMNS, ROWS)
    places = load_by_token(positions, row, count, -1, GROUP, ROWS)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, COLUMNS], tl.float32)
    if WINDOW > 0:
        begin = tl.maximum(tl.load(positions + row) - WINDOW + 1, 0)
    else:
        begin = tl.load(positions + row) // KEYS * KEYS
        peak, total, mixed = attend_keys(
            peak,
            total,
            mixed,
            queries,
            places,
            places,
            start,
            start * 0,
            begin,
            blocks + table,
            kv_head,
            scale,
            keys,
            key_scales,
            key_minima,
            values,
            value_scales,
            value_minima,
            KEY_CODEC,
            VALUE_CODEC,
            BLOCK_SIZE,
            KV_HEADS,
            HEAD_DIM,
            SCALE_GROUP,
            COLUMNS,
            KEYS,
            WINDOW,
            False,
            False,
        )
    peak, total, mixed = attend_keys(
        peak,
        total,
        mixed,
        queries,
        places,
        places,
        start,
        begin,
        end,
        blocks + table,
        kv_head,
        scale,
        keys,
        key_scales,
        key_minima,
        values,
        value_scales,
        value_minima,
        KEY_CODEC,
        VALUE_CODEC,
        BLOCK_SIZE,
        KV_HEADS,
        HEAD_DIM,
        SCALE_GROUP,
        COLUMNS,
        KEYS,
        WINDOW,
        False,
        True,
    )
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    store_output(output, mixed, row, count, kv_head, KV_HEADS, GROUP, HEAD_DIM, COLUMNS, ROWS)
