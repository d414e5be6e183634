"""Reading of stored keys and values in a kernel, in each codec of the KV cache.

Quantised numbers are multiplied by their scales in registers, in float32, and rounded to the type that the model
computes in: a kernel reads the same numbers as `SideCodec.decode` returns.
"""

import triton
import triton.language as tl

PLAIN = tl.constexpr(0)
INT8 = tl.constexpr(1)
INT4 = tl.constexpr(2)


@triton.jit
def load_heads(
    numbers,
    scales,
    minima,
    heads,
    known,
    CODEC: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SCALE_GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Return stored heads [keys, COLUMNS] in TYPE, with 0 beyond HEAD_DIM and for keys that are not known.

    Args:
        numbers: pointer to the stored numbers: plain, int8 steps, or bytes of two int4 steps.
        scales: pointer to the scales of a quantised codec.
        minima: pointer to the minima of INT4.
        heads: [keys], the number of each stored head: slot * kv_heads + head.
        known: [keys], which of them to read.
        CODEC: PLAIN, INT8 or INT4.
        HEAD_DIM: numbers of a head.
        SCALE_GROUP: numbers that share an INT4 scale.
        COLUMNS: HEAD_DIM, rounded up to a power of two.
        TYPE: the type that the model computes in.
    """
    column = tl.arange(0, COLUMNS)
    inside = known[:, None] & (column < HEAD_DIM)[None, :]
    if CODEC == PLAIN:
        read = tl.load(numbers + heads[:, None] * HEAD_DIM + column[None, :], mask=inside, other=0.0)
        if numbers.dtype.element_ty != TYPE:
            read = read.to(tl.float32).to(TYPE)
    elif CODEC == INT8:
        steps = tl.load(numbers + heads[:, None] * HEAD_DIM + column[None, :], mask=inside, other=0)
        scale = tl.load(scales + heads, mask=known, other=0.0).to(tl.float32)
        read = (steps.to(tl.float32) * scale[:, None]).to(TYPE)
    else:
        GROUPS: tl.constexpr = HEAD_DIM // SCALE_GROUP
        pairs = tl.load(
            numbers + heads[:, None] * (HEAD_DIM // 2) + (column // 2)[None, :], mask=inside, other=0
        )
        steps = (pairs.to(tl.int32) >> ((column % 2) * 4)[None, :]) & 15
        group = heads[:, None] * GROUPS + (column // SCALE_GROUP)[None, :]
        scale = tl.load(scales + group, mask=inside, other=0.0).to(tl.float32)
        low = tl.load(minima + group, mask=inside, other=0.0).to(tl.float32)
        read = (steps.to(tl.float32) * scale + low).to(TYPE)
    return read
