"""Linear layers of plain weights, and the promise that those of quantised ones keep too.

Linear    the weight as it is: anywhere, and where the memory is somebody else's too (a tied head)
Packed    the weight in a kernel's own order, and nowhere else: see `packed`
Stacked   several layers over the same input that cannot be one
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from workers.engine.model import packed_weights
from workers.engine.model.row_counts import linear


class Projection(Protocol):
    """A linear layer of any kind."""

    @property
    def num_bytes(self) -> int:
        """Memory of its weights, biases left out."""
        ...

    def __call__(self, rows: Tensor) -> Tensor:
        """y = x W^T + b: [rows, in] to [rows, out]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLinear:
    """y = x W^T + b, with weight [out, in] and, where the model has one, bias [out]."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """As promised by Projection."""
        return self.weight.nbytes

    def __call__(self, rows: Tensor) -> Tensor:
        """As promised by Projection."""
        return linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """The same with a weight that only its kernel can read."""

    weight: packed_weights.PackedFloat
    bias: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """As promised by Projection."""
        return self.weight.num_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        """As promised by Projection."""
        return self.weight.product(rows, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedLinear:
    """Layers over the same input that cannot be one: their results side by side."""

    parts: tuple[Projection, ...]

    @property
    def num_bytes(self) -> int:
        """As promised by Projection."""
        return sum(part.num_bytes for part in self.parts)

    def __call__(self, rows: Tensor) -> Tensor:
        """As promised by Projection."""
        return torch.cat([part(rows) for part in self.parts], dim=1)


def plain_linear(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """A layer over `weight` [out, in], which nobody else needs: as this machine multiplies it best."""
    if (found := packed_weights.PackedFloat.pack(weight)) is not None:
        return PackedLinear(weight=found, bias=bias)
    return PlainLinear(weight=weight, bias=bias)
