"""Linear layers whose weights take one byte or half of one.

    int8    w[o, i] = scale[o] * step[o, i]                             steps -127 .. 127, symmetric
    groups  w[o, i] = scale[o, g] * (step[o, i] - 8) + middle[o, g]     steps 0 .. 15, g = i // group
                                         - 128                          steps 0 .. 255, from GPTQ only

What is quantised here is rounded with scales as they are stored. Few rows go through a packed kernel, many through
unpacked weights (`packed`). The two differ in rounding, so in bfloat16 a token may differ between a small batch and
a large one; in float32 there is one way only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from workers.engine.config.engine_config import Quantization
from workers.engine.model import packed_weights
from workers.engine.model.linear import Projection, plain_linear
from workers.engine.model.row_counts import linear

GROUP = 64
_STEPS_INT8 = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Linear:
    """`steps` [out, in] int8, `scale` [out] in the type that the model computes in."""

    steps: Tensor
    scale: Tensor
    bias: Tensor | None = None

    @classmethod
    def quantise(cls, weight: Tensor, bias: Tensor | None) -> "Int8Linear":
        """The nearest steps to `weight` [out, in]."""
        scale = (weight.float().abs().amax(dim=1) / _STEPS_INT8).to(weight.dtype)
        steps = (weight.float() / _divisor(scale)[:, None]).round().clamp(-_STEPS_INT8, _STEPS_INT8)
        return cls(steps=steps.to(torch.int8), scale=scale, bias=bias)

    @property
    def num_bytes(self) -> int:
        """As promised by Projection."""
        return self.steps.nbytes + self.scale.nbytes

    def dequantised(self) -> Tensor:
        """The weight, [out, in]."""
        return self.steps.to(self.scale.dtype) * self.scale[:, None]

    def __call__(self, rows: Tensor) -> Tensor:
        """As promised by Projection."""
        few = len(rows) <= packed_weights.INT8_ROWS_MAX and packed_weights.has_int8(rows.device, rows.dtype)
        if few:
            product = packed_weights.int8_product(rows.contiguous(), self.steps, self.scale)
        elif rows.dtype == torch.float16:
            # Sums of unscaled steps can be larger than a float16.
            product = linear(rows, self.dequantised())
        else:
            product = linear(rows, self.steps.to(rows.dtype)) * self.scale
        return product if self.bias is None else product + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWeight:
    """A weight in groups along its inputs, as it is before it is packed.

    `steps` [out, in] uint8, `scale` and `middle` [out, in / group] float32. `order` [in] says which input each
    column belongs to, where that is not its own.
    """

    steps: Tensor
    scale: Tensor
    middle: Tensor
    bits: int
    order: Tensor | None = None

    @classmethod
    def quantise(cls, weight: Tensor) -> "GroupedWeight":
        """INT4 with the nearest steps to `weight` [out, in], in groups of 64 or what divides the inputs."""
        outputs, inputs = weight.shape
        cut = weight.float().view(outputs, -1, gcd(inputs, GROUP))
        low, high = cut.amin(dim=2), cut.amax(dim=2)
        # Rounded as they will be stored, so that the steps make up for it.
        scale = ((high - low) / 15).to(weight.dtype).float()
        middle = (low + 8 * scale).to(weight.dtype).float()
        steps = ((cut - middle[..., None]) / _divisor(scale)[..., None]).round().clamp(-8, 7) + 8
        return cls(steps=steps.to(torch.uint8).view(outputs, inputs), scale=scale, middle=middle, bits=4)

    @classmethod
    def stack(cls, parts: Sequence["GroupedWeight"]) -> "GroupedWeight | None":
        """Several over the same inputs, one under the other; None where they are not cut in the same way."""
        first = parts[0]
        if not all(first.is_cut_like(part) for part in parts):
            return None
        return cls(
            steps=torch.cat([part.steps for part in parts]),
            scale=torch.cat([part.scale for part in parts]),
            middle=torch.cat([part.middle for part in parts]),
            bits=first.bits,
            order=first.order,
        )

    def is_cut_like(self, other: "GroupedWeight") -> bool:
        """Have both the same groups of the same inputs?"""
        if (self.bits, self.scale.shape[1]) != (other.bits, other.scale.shape[1]):
            return False
        if self.order is None or other.order is None:
            return self.order is other.order
        return torch.equal(self.order, other.order)

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.steps.shape[1] // self.scale.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLinear:
    """`steps` are bytes [out, in], halves [out, in / 2] with even inputs in the low nibble, or in a kernel's order.

    `scale_and_middle` is [in / group, out, 2].
    """

    steps: Tensor | packed_weights.PackedInt4
    bits: int
    halves: bool
    scale_and_middle: Tensor
    order: Tensor | None
    bias: Tensor | None = None

    @classmethod
    def build(cls, groups: GroupedWeight, bias: Tensor | None, dtype: torch.dtype) -> "GroupedLinear":
        """Packed as this machine multiplies it best, for a model that computes in `dtype`."""
        steps: Tensor | packed_weights.PackedInt4 | None = None
        halves = groups.bits == 4 and groups.steps.shape[1] % 2 == 0
        if groups.bits == 4:
            steps = packed_weights.PackedInt4.pack(groups.steps, groups.group, dtype)
        if steps is None:
            steps = groups.steps[:, 0::2] | groups.steps[:, 1::2] << 4 if halves else groups.steps
        return cls(
            steps=steps,
            bits=groups.bits,
            halves=halves,
            scale_and_middle=torch.stack((groups.scale.t(), groups.middle.t()), dim=2).to(dtype),
            order=groups.order,
            bias=bias,
        )

    @property
    def num_bytes(self) -> int:
        """As promised by Projection."""
        steps = self.steps.packed if isinstance(self.steps, packed_weights.PackedInt4) else self.steps
        return steps.nbytes + self.scale_and_middle.nbytes

    def dequantised(self) -> Tensor:
        """The weight, [out, in], its columns in `order`."""
        if isinstance(self.steps, packed_weights.PackedInt4):
            steps = self.steps.unpack()
        elif self.halves:
            steps = torch.stack((self.steps & 15, self.steps >> 4), dim=2).flatten(1)
        else:
            steps = self.steps
        scale, middle = self.scale_and_middle.unbind(dim=2)
        cut = steps.view(len(steps), len(scale), -1).to(scale.dtype) - 2 ** (self.bits - 1)
        weight: Tensor = cut * scale.t()[..., None] + middle.t()[..., None]
        return weight.flatten(1)

    def __call__(self, rows: Tensor) -> Tensor:
        """As promised by Projection."""
        if self.order is not None:
            rows = rows.index_select(1, self.order)
        if isinstance(self.steps, packed_weights.PackedInt4) and len(rows) <= packed_weights.INT4_ROWS_MAX:
            group = rows.shape[1] // len(self.scale_and_middle)
            product = self.steps.product(rows.contiguous(), group, self.scale_and_middle)
        else:
            product = linear(rows, self.dequantised())
        return product if self.bias is None else product + self.bias


def build_projection(weight: Tensor, bias: Tensor | None, quantization: Quantization) -> Projection:
    """A layer over `weight` [out, in], quantised here if that is wanted."""
    match quantization:
        case "int8":
            return Int8Linear.quantise(weight, bias)
        case "int4":
            return GroupedLinear.build(GroupedWeight.quantise(weight), bias, weight.dtype)
    return plain_linear(weight, bias)


def _divisor(scale: Tensor) -> Tensor:
    """A scale of zero, where all weights are zero or the same, divides nothing."""
    wide = scale.float()
    return wide.masked_fill(wide == 0, 1.0)
