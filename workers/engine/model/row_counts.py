"""Padding of matrix products to a few row counts, so that oneDNN makes few kernels.

oneDNN makes a kernel for every number of rows, and keeps a thousand of them and more. One takes
0.7 MB and half a millisecond to make (measured with torch 2.13, AVX-512), and the steps of an engine have every
number of rows up to its budget: hundreds of megabytes, and a new kernel in nearly every step. With rows of zeros
added up to the next number of

    1 2 3 ... 15 16    18 20 ... 32    36 40 ... 64    72 ... 128    144 ... 256    288 ... 512

there are 56 kernels for 512 rows, made once. Padding costs an eighth more rows at most, and none up to 16 rows, as
most decoding steps have.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 8
"""Row counts from one power of two to the next, for which products are computed."""


def padded_row_count(rows: int) -> int:
    """Return the next row count that products are computed for."""
    step = max(1, (1 << (rows - 1).bit_length()) // (2 * STEPS)) if rows > 1 else 1
    return -(-rows // step) * step


def with_padded_rows(product: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply `product` to `rows` [n, in] padded with zeros, and return its first n rows, [n, out].

    `product` must compute each row independently of the others.
    """
    count = rows.shape[0]
    missing = padded_row_count(count) - count
    return product(F.pad(rows, (0, 0, 0, missing)))[:count] if missing else product(rows)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows W^T + b, for `rows` [n, in] and `weight` [out, in]."""
    if rows.device.type == "cpu" and rows.dtype in (torch.bfloat16, torch.float16):
        return with_padded_rows(lambda padded: F.linear(padded, weight, bias), rows)
    # In float32 torch uses another library, which makes no kernels by shape.
    return F.linear(rows, weight, bias)
