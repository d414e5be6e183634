"""Linear layers with quantised weights of one byte, or half a byte, each.

    int8    w[o, i] = scale[o] * step[o, i]                             steps -127 .. 127, symmetric
    groups  w[o, i] = scale[o, g] * (step[o, i] - 8) + middle[o, g]     steps 0 .. 15, g = i // group
                                         - 128                          steps 0 .. 255, from GPTQ only

Weights are rounded with the scales as they are stored. Few rows are multiplied by a packed kernel, many by unpacked
weights (see `packed_weights`). The two differ in rounding, so in bfloat16 a token may differ between a small batch
and a large one; in float32 only unpacked weights are used.
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
"""Inputs that share an INT4 scale, where weights are quantised here."""
_STEPS_INT8 = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Linear:
    """A linear layer with symmetric INT8 weights, one scale for each output."""

    steps: Tensor
    """[out, in] int8."""
    scale: Tensor
    """[out], in the type that the model computes in."""
    bias: Tensor | None = None

    @classmethod
    def quantise(cls, weight: Tensor, bias: Tensor | None) -> "Int8Linear":
        """Return the layer with the nearest steps to `weight` [out, in]."""
        scale = (weight.float().abs().amax(dim=1) / _STEPS_INT8).to(weight.dtype)
        steps = (weight.float() / _divisor(scale)[:, None]).round().clamp(-_STEPS_INT8, _STEPS_INT8)
        return cls(steps=steps.to(torch.int8), scale=scale, bias=bias)

    @property
    def num_bytes(self) -> int:
        """The bytes of steps and scales."""
        return self.steps.nbytes + self.scale.nbytes

    def dequantised(self) -> Tensor:
        """Return the weight, [out, in]."""
        return self.steps.to(self.scale.dtype) * self.scale[:, None]

    def __call__(self, rows: Tensor) -> Tensor:
        """Return x W^T + b, [rows, out], for the inputs x [rows, in]."""
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
    """A weight quantised in groups along its inputs, before it is packed."""

    steps: Tensor
    """[out, in] uint8."""
    scale: Tensor
    """[out, in / group] float32."""
    middle: Tensor
    """[out, in / group] float32: the weight of the middle step, 8 of 16 or 128 of 256."""
    bits: int
    order: Tensor | None = None
    """[in]: the input that each column belongs to; None where column i belongs to input i."""

    @classmethod
    def quantise(cls, weight: Tensor) -> "GroupedWeight":
        """Quantise `weight` [out, in] to INT4, in groups of 64 or of the largest size that divides the inputs."""
        outputs, inputs = weight.shape
        cut = weight.float().view(outputs, -1, gcd(inputs, GROUP))
        low, high = cut.amin(dim=2), cut.amax(dim=2)
        # Rounded as they will be stored, so that the steps compensate for the rounding.
        scale = ((high - low) / 15).to(weight.dtype).float()
        middle = (low + 8 * scale).to(weight.dtype).float()
        steps = ((cut - middle[..., None]) / _divisor(scale)[..., None]).round().clamp(-8, 7) + 8
        return cls(steps=steps.to(torch.uint8).view(outputs, inputs), scale=scale, middle=middle, bits=4)

    @classmethod
    def stack(cls, parts: Sequence["GroupedWeight"]) -> "GroupedWeight | None":
        """Join the outputs of several weights over the same inputs; None where their groups differ."""
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
        """Return whether both weights have the same groups of the same inputs."""
        if (self.bits, self.scale.shape[1]) != (other.bits, other.scale.shape[1]):
            return False
        if self.order is None or other.order is None:
            return self.order is other.order
        return torch.equal(self.order, other.order)

    @property
    def group(self) -> int:
        """The number of inputs that share a scale."""
        return self.steps.shape[1] // self.scale.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLinear:
    """A linear layer with a weight that is quantised in groups along its inputs."""

    steps: Tensor | packed_weights.PackedInt4
    """Bytes [out, in], or halves [out, in / 2] with even inputs in the low nibble, or packed for a kernel."""
    bits: int
    halves: bool
    """Whether two steps share a byte, where `steps` is a tensor."""
    scale_and_middle: Tensor
    """[in / group, out, 2]."""
    order: Tensor | None
    """[in]: the input that each column of `steps` belongs to, as in GroupedWeight; None: in order."""
    bias: Tensor | None = None

    @classmethod
    def build(cls, groups: GroupedWeight, bias: Tensor | None, dtype: torch.dtype) -> "GroupedLinear":
        """Return the fastest layer on this machine, for a model that computes in `dtype`."""
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
        """The bytes of steps, scales and middles."""
        steps = self.steps.packed if isinstance(self.steps, packed_weights.PackedInt4) else self.steps
        return steps.nbytes + self.scale_and_middle.nbytes

    def dequantised(self) -> Tensor:
        """Return the weight, [out, in], its columns in `order`."""
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
        """Return x W^T + b, [rows, out], for the inputs x [rows, in]."""
        if self.order is not None:
            rows = rows.index_select(1, self.order)
        if isinstance(self.steps, packed_weights.PackedInt4) and len(rows) <= packed_weights.INT4_ROWS_MAX:
            group = rows.shape[1] // len(self.scale_and_middle)
            product = self.steps.product(rows.contiguous(), group, self.scale_and_middle)
        else:
            product = linear(rows, self.dequantised())
        return product if self.bias is None else product + self.bias


def build_projection(weight: Tensor, bias: Tensor | None, quantization: Quantization) -> Projection:
    """Return a layer over the unquantised `weight` [out, in], which `quantization` may quantise."""
    match quantization:
        case "int8":
            return Int8Linear.quantise(weight, bias)
        case "int4":
            return GroupedLinear.build(GroupedWeight.quantise(weight), bias, weight.dtype)
    return plain_linear(weight, bias)


def _divisor(scale: Tensor) -> Tensor:
    """Return the scale with 1 in place of 0: then all weights are zero or the same."""
    wide = scale.float()
    return wide.masked_fill(wide == 0, 1.0)
