"""Linear layers with unquantised weights, and the interface that the quantised ones implement too.

PlainLinear     the weight in row-major order: on any device, and where its memory is shared (a tied head)
PackedLinear    the weight only in the order of a oneDNN kernel; see `packed_weights`
StackedLinear   several layers over the same input that cannot be joined to one
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from workers.engine.model import packed_weights
from workers.engine.model.row_counts import linear


class Projection(Protocol):
    """The interface of a linear layer of any kind."""

    @property
    def num_bytes(self) -> int:
        """The bytes of the weights, without biases."""
        ...

    def __call__(self, rows: Tensor) -> Tensor:
        """Return x W^T + b, [rows, out], for the inputs x [rows, in]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLinear:
    """A linear layer with a row-major weight: y = x W^T + b."""

    weight: Tensor
    """[out, in]."""
    bias: Tensor | None = None
    """[out], where the model has one."""

    @property
    def num_bytes(self) -> int:
        """The bytes of the weight."""
        return self.weight.nbytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Return x W^T + b, [rows, out], for the inputs x [rows, in]."""
        return linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """A linear layer with a weight that only its kernel can read: y = x W^T + b."""

    weight: packed_weights.PackedFloat
    bias: Tensor | None = None
    """[out], where the model has one."""

    @property
    def num_bytes(self) -> int:
        """The bytes of the weight before it was packed."""
        return self.weight.num_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Return x W^T + b, [rows, out], for the inputs x [rows, in]."""
        return self.weight.product(rows, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedLinear:
    """Several linear layers over the same input, with their results concatenated."""

    parts: tuple[Projection, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of all weights."""
        return sum(part.num_bytes for part in self.parts)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the concatenated results, [rows, out], for the inputs [rows, in]."""
        return torch.cat([part(rows) for part in self.parts], dim=1)


def plain_linear(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """Return the fastest layer on this machine for `weight` [out, in], the memory of which is not shared."""
    if (found := packed_weights.PackedFloat.pack(weight)) is not None:
        return PackedLinear(weight=found, bias=bias)
    return PlainLinear(weight=weight, bias=bias)
