"""ATen's kernels for packed weights, and when they are faster. Only this file calls their private names.

Measured on one core of a Zen 4 with torch 2.13, [2048, 1024], milliseconds of processor time:

    rows                     1      8     16     32     64    512
    bfloat16                 0.2   0.3   0.4    0.8    1.4   10.2
    int8  packed             0.1   0.5   0.9    1.8    3.6   28.0
    int8  cast and multiply  0.6   0.6   0.8    1.0    1.7   10.8
    int4  packed             0.1   0.4   0.8    1.6    3.2   24.9
    int4  unpack, multiply   2.0   2.2   2.4    2.6    3.3   12.3

Packed kernels read less, so they are faster while memory is the limit: for few rows. They are vectorised for
bfloat16 alone; in float32 and float16 they take ten times as long as unpacking does, so they are not used there.
Nor are they used on CUDA, where they were not tried.

Plain float32 weights gain as well when they are stored in the order in which oneDNN reads them: then it need not
reorder them for every product, as a general one (MKL here) does. Measured on one core of an AVX2 machine with torch
2.13, milliseconds:

    rows                                   1      2      5      8     16     32    128
    [4096, 768]                          1.0    2.3    2.9    3.2    4.5    6.0   12.2
    [4096, 768] packed                   1.1    1.4    1.5    1.8    2.7    3.8   11.5
    [768, 2048]                          0.4    0.8    1.0    1.3    1.4    2.2    5.9
    [768, 2048] packed                   0.6    0.7    0.8    1.0    1.5    2.0    6.4

Wide matrices are the ones to pack: they gain most with the row counts of decoding batches and verified drafts, and
lose next to nothing with one row. In bfloat16 this was not tried.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.engine.model.row_counts import with_padded_rows

INT8_ROWS_MAX = 8
"""Rows up to which the INT8 kernel is faster than unpacking."""
INT4_ROWS_MAX = 48
"""Rows up to which the INT4 kernel is faster than unpacking."""
INT4_GROUPS = (32, 64, 128, 256)
"""Group sizes that the INT4 kernel supports."""
FLOAT_ROWS = 128
"""Rows that float32 weights are packed for; any number works. Of 16 to 512 this was the best for one row."""
FLOAT_WIDTH = 2
"""A matrix is wide, and packed, when it has at least so many times as many outputs as inputs."""

_aten = torch.ops.aten
_mkldnn = torch.ops.mkldnn


def has_int8(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the INT8 kernel exists, and is vectorised for this device and type."""
    return device.type == "cpu" and dtype == torch.bfloat16 and hasattr(_aten, "_weight_int8pack_mm")


def int8_product(rows: Tensor, steps: Tensor, scale: Tensor) -> Tensor:
    """Return `rows` [n, in] times (`steps` [out, in] int8 * `scale` [out]) transposed, [n, out]."""
    product: Tensor = _aten._weight_int8pack_mm(rows, steps, scale)
    return product


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFloat:
    """A float32 weight [out, in], in an order that oneDNN chooses by the processor."""

    packed: Tensor
    """The opaque tensor: it has neither strides nor a size in bytes."""
    num_bytes: int
    """The bytes of the weight before packing; the kernel's order may pad it to whole blocks of some rows."""

    @classmethod
    def pack(cls, weight: Tensor) -> "PackedFloat | None":
        """Pack `weight` [out, in]; return None where that is not faster, or the kernel is missing."""
        outputs, inputs = weight.shape
        if not (
            outputs >= FLOAT_WIDTH * inputs
            and weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and hasattr(_mkldnn, "_reorder_linear_weight")
            and hasattr(_mkldnn, "_linear_pointwise")
        ):
            return None
        try:
            packed = _mkldnn._reorder_linear_weight(weight.contiguous(), FLOAT_ROWS)
        except RuntimeError:
            # Torch was built without oneDNN, or for another processor.
            return None
        return cls(packed=packed, num_bytes=weight.nbytes)

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Return `rows` [n, in] times the weight transposed, plus `bias` [out]; [n, out]."""
        return with_padded_rows(
            lambda padded: _mkldnn._linear_pointwise(padded, self.packed, bias, "none", [], ""), rows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedInt4:
    """INT4 steps 0 to 15 in the kernel's own order, [out, in / 2], which depends on the processor.

    `width` rows are interleaved. They have width / 2 bytes for each input: byte d has row d in its low nibble, and
    row d + width / 2 in its high one.
    """

    packed: Tensor
    width: int
    """Rows that are interleaved: 64 with AVX-512, 32 with AVX2."""

    @classmethod
    def pack(cls, steps: Tensor, group: int, dtype: torch.dtype) -> "PackedInt4 | None":
        """Pack `steps` [out, in] uint8; return None where the kernel is missing, slow, or refuses this shape."""
        outputs, inputs = steps.shape
        if not (
            steps.device.type == "cpu"
            and dtype == torch.bfloat16
            and hasattr(_aten, "_weight_int4pack_mm_for_cpu")
            and group in INT4_GROUPS
            and inputs % group == 0
        ):
            return None
        for width in (64, 32):
            if outputs % width:
                continue
            packed = _aten._convert_weight_to_int4pack_for_cpu(steps.to(torch.int32), 2)
            made = cls(packed=packed, width=width)
            # Torch does not document the order: packed steps are used only where they read back unchanged.
            if torch.equal(made.unpack(), steps):
                return made
        return None

    def product(self, rows: Tensor, group: int, scale_and_middle: Tensor) -> Tensor:
        """Return `rows` [n, in] times ((steps - 8) * scale + middle) transposed, [n, out].

        `scale_and_middle` is [in / group, out, 2].
        """
        product: Tensor = _aten._weight_int4pack_mm_for_cpu(rows, self.packed, group, scale_and_middle)
        return product

    def unpack(self) -> Tensor:
        """Return the steps, [out, in] uint8."""
        outputs, half_inputs = self.packed.shape
        pairs = self.packed.view(outputs // self.width, 2 * half_inputs, self.width // 2)
        both = torch.cat((pairs & 15, pairs >> 4), dim=2)
        return both.transpose(1, 2).reshape(outputs, 2 * half_inputs)
