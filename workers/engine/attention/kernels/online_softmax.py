"""The loop over a sequence's keys that both kernels share: attention with a softmax that is kept up to date.

    for each tile of keys:      peak'  = max(peak, scores)
                                total' = total * 2^(peak - peak') + sum of 2^(scores - peak')
                                mixed' = mixed * 2^(peak - peak') + 2^(scores - peak') @ values

Scores are in units of log2, so that exp2 serves, which is what the hardware computes (Milakov and Gimelshein 2018;
Dao et al. 2022). Keys are found through the block table, so nothing is copied and no row is padded to another's
context.
"""

import triton
import triton.language as tl

from workers.engine.attention.kernels.product import product
from workers.engine.attention.kernels.stored_heads import load_heads


@triton.jit
def attend_keys(
    peak,
    total,
    mixed,
    query,
    positions,
    bits,
    start,
    begin,
    end,
    table,
    kv_head,
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
    HEAD_DIM: tl.constexpr,
    SCALE_GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    TREE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return peak, total and mixed after the keys at places `begin` to `end` of one sequence.

    Args:
        peak: [rows], the largest score so far.
        total: [rows], the sum of the weights so far, relative to the peak.
        mixed: [rows, COLUMNS], the sum of the weighted values so far.
        query: [rows, COLUMNS].
        positions: [rows], the position of each row's token; -1 for a row without a token, which attends to no key.
        bits: [rows], for a draft in a tree the rows of its span that it attends to, as bits; 0 for other tokens.
        start: the place of the span's first token.
        begin: the place of the first key.
        end: one more than the place of the last key.
        table: pointer to the blocks of the sequence.
        kv_head: the number of the key head.
        scale: what scores are multiplied by, log2(e) included.
        keys: pointer to the stored keys of the layer, as in `load_heads`, like the five after it.
        key_scales: see keys.
        key_minima: see keys.
        values: see keys.
        value_scales: see keys.
        value_minima: see keys.
        KEY_CODEC: how keys are stored.
        VALUE_CODEC: how values are stored.
        BLOCK_SIZE: tokens of a block.
        KV_HEADS: key heads of the model.
        HEAD_DIM: numbers of a head.
        SCALE_GROUP: numbers that share an INT4 scale.
        COLUMNS: HEAD_DIM, rounded up to a power of two.
        KEYS: keys of one pass of the loop.
        WINDOW: the positions that a token attends to; 0: all.
        TREE: whether any row has bits.
        MASKED: False where each row attends to all of these keys, and their number is a multiple of KEYS.
    """
    for first in range(begin, end, KEYS):
        places = first + tl.arange(0, KEYS)
        known = places < end
        blocks = tl.load(table + places // BLOCK_SIZE, mask=known, other=0)
        heads = (blocks * BLOCK_SIZE + places % BLOCK_SIZE) * KV_HEADS + kv_head
        key = load_heads(
            keys, key_scales, key_minima, heads, known, KEY_CODEC, HEAD_DIM, SCALE_GROUP, COLUMNS, query.dtype
        )
        scores = product(query, tl.trans(key)) * scale
        if MASKED:
            seen = _seen(places, known, positions, bits, start, WINDOW, TREE)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row without a key so far has a peak of -inf, and -inf - -inf is not a number.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(peak - base)
        weights = tl.exp2(scores - base[:, None])
        value = load_heads(
            values,
            value_scales,
            value_minima,
            heads,
            known,
            VALUE_CODEC,
            HEAD_DIM,
            SCALE_GROUP,
            COLUMNS,
            query.dtype,
        )
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + product(weights.to(value.dtype), value)
        peak = higher
    return peak, total, mixed


@triton.jit
def _seen(places, known, positions, bits, start, WINDOW: tl.constexpr, TREE: tl.constexpr):
    """Return which of the keys at `places` each row attends to, [rows, keys]."""
    seen = places[None, :] <= positions[:, None]
    if TREE:
        ahead = (places - start)[None, :]
        branch = (bits[:, None] >> tl.minimum(tl.maximum(ahead, 0), 62)) & 1
        seen = tl.where((bits[:, None] != 0) & (ahead >= 0), branch != 0, seen)
    if WINDOW > 0:
        seen = seen & (places[None, :] > positions[:, None] - WINDOW)
    return seen & known[None, :]
