"""The formats of numbers that a plan counts with: bytes of weights, and of the vectors of the KV cache."""

import math

KV_GROUP = 64
"""INT4 keys and values that share an fp16 scale and minimum; fewer where the head size is no multiple of it."""

KV_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
KV_DTYPES = (*KV_BYTES, "int8", "int4", "k8v4")
"""Types of keys and values; `k8v4` keeps keys in INT8 and values in INT4."""

WEIGHT_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
    "mxfp4": 0.5 + 1 / 32,
}
"""Bytes of a linear weight. INT4 as AWQ and GPTQ store it: 128 share an fp16 scale and a zero point of half a byte.
MXFP4: 32 share a scale of one byte. The scales of FP8 and INT8, one per channel or per block of 128 x 128, are less
than a thousandth and left out."""

EXPERTS_ONLY = ("mxfp4",)
"""Formats in which a checkpoint stores its experts alone; all other weights have 16 bits."""


def vector_bytes(numbers: int, dtype: str) -> int:
    """Return the bytes of one key or one value of `numbers` numbers.

    INT8 adds an fp16 scale, INT4 an fp16 scale and minimum for each group.
    """
    if dtype == "int8":
        return numbers + 2
    if dtype == "int4":
        group = numbers if numbers <= KV_GROUP else math.gcd(numbers, KV_GROUP)
        return numbers // 2 + 4 * (numbers // group)
    return numbers * KV_BYTES[dtype]


def key_and_value_bytes(numbers: int, dtype: str) -> int:
    """Return the bytes of a key and a value of one head. `k8v4` keeps keys in INT8 and values in INT4."""
    key, value = ("int8", "int4") if dtype == "k8v4" else (dtype, dtype)
    return vector_bytes(numbers, key) + vector_bytes(numbers, value)
