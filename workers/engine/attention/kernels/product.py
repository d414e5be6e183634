"""The product of two tiles, accumulated in float32."""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def product(left, right):
    """Return left @ right in float32.

    Triton's interpreter keeps bfloat16 numbers as their bits, and would multiply those: it gets them as float32,
    which changes no product.
    """
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    # "ieee": float32 is multiplied as float32, and not in the shorter format of tensor cores.
    return tl.dot(left, right, input_precision="ieee")
