"""Attention of short spans: one token that decodes, or one and its drafts. Long contexts are split among programs.

    program (tile, key head, split)

    keys of the tile    |---- split 0 ----|---- split 1 ----|-- split 2 --|
    each program        its values mixed by its weights, and log2 of the sum of its weights  -> workspace
    merge (tile, head)  peak = max log_i,  mixed = sum of mixed_i * 2^(log_i - peak) / sum of 2^(log_i - peak)

With few sequences, one program for each sequence and key head would leave most of the device idle while it reads
a long context (Dao et al. 2023, Flash-Decoding). With one split the result is written at once.
"""

import triton
import triton.language as tl

from workers.engine.attention.kernels.online_softmax import attend_keys
from workers.engine.attention.kernels.tile import load_by_token, load_query, load_tile, store_output


@triton.jit(do_not_specialize=["splits"])
def decode_kernel(
    output,
    query,
    query_row,
    query_head,
    tiles,
    positions,
    tree_bits,
    blocks,
    partial,
    logs,
    splits,
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
    TREE: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Attend from one tile to one of `splits` parts of its keys; for the other arguments see `attend_keys`."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count, start, end, table = load_tile(tiles, tile)
    queries = load_query(query, query_row, query_head, row, count, kv_head, GROUP, HEAD_DIM, COLUMNS, ROWS)
    places = load_by_token(positions, row, count, -1, GROUP, ROWS)
    bits = places
    if TREE:
        bits = load_by_token(tree_bits, row, count, 0, GROUP, ROWS)
    begin = start * 0
    if WINDOW > 0:
        begin = tl.maximum(tl.load(positions + row) - WINDOW + 1, 0)
    share = tl.cdiv(tl.cdiv(end - begin, splits), KEYS) * KEYS
    first = begin + split * share
    peak, total, mixed = attend_keys(
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, COLUMNS], tl.float32),
        queries,
        places,
        bits,
        start,
        first,
        tl.minimum(first + share, end),
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
        TREE,
        True,
    )
    # A row without a key in this split has a total of 0 and a peak of -inf: it weighs nothing in the merge.
    total = tl.where(total == 0.0, 1.0, total)
    mixed = mixed / total[:, None]
    if SPLIT:
        rows = ((tile * KV_HEADS + kv_head) * splits + split) * ROWS + tl.arange(0, ROWS)
        tl.store(partial + rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], mixed)
        tl.store(logs + rows, peak + tl.log2(total))
    else:
        store_output(output, mixed, row, count, kv_head, KV_HEADS, GROUP, HEAD_DIM, COLUMNS, ROWS)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    output,
    tiles,
    partial,
    logs,
    splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Merge the splits of one tile and key head, and store the result in `output` [tokens, heads, HEAD_DIM]."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row, count, _, _, _ = load_tile(tiles, tile)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, COLUMNS], tl.float32)
    first = (tile * KV_HEADS + kv_head) * splits * ROWS
    for split in range(splits):
        rows = first + split * ROWS + tl.arange(0, ROWS)
        part = tl.load(partial + rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
        log = tl.load(logs + rows)
        higher = tl.maximum(peak, log)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink, weight = tl.exp2(peak - base), tl.exp2(log - base)
        total = total * shrink + weight
        mixed = mixed * shrink[:, None] + part * weight[:, None]
        peak = higher
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    store_output(output, mixed, row, count, kv_head, KV_HEADS, GROUP, HEAD_DIM, COLUMNS, ROWS)
