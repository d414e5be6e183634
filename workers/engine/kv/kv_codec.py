"""The codecs of the KV cache: number formats of stored keys and values, with quantisation to INT8 and INT4.

    plain   [ head_dim numbers ]                                 head_dim * itemsize bytes a head
    int8    [ head_dim x int8 | scale ]                          head_dim + 2
    int4    [ head_dim / 2 x two nibbles | scale, minimum .. ]   head_dim / 2 + 4 a group of 64

A scale, and a minimum, is a float16. INT8 is symmetric, with one scale for each token and head. INT4 is asymmetric,
in groups along the head: it has 16 steps only, so none of them may be spent where no value is. Quantised numbers
are decoded with the scale as rounded to float16, so encoding divides by the rounded scale too.
"""

from dataclasses import dataclass
from math import gcd
from typing import Protocol

import torch
from torch import Tensor

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import KvDtype

GROUP = 64
"""Numbers of a head that share an INT4 scale and minimum."""
_HALF_MAX = torch.finfo(torch.float16).max
_STEPS_INT8, _STEPS_INT4 = 127, 15


class SideCodec(Protocol):
    """The interface of a codec for one side, keys or values.

    It turns rows of heads [..., heads, head_dim] into stored parts and back; each part is [..., heads, its width].
    """

    @property
    def exact(self) -> bool:
        """Whether a row reads back exactly as it was written."""
        ...

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """Return the width and the type of each stored part of one head."""
        ...

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the parts to be stored."""
        ...

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Return the rows decoded from the parts, in `dtype`, the type that the model computes in."""
        ...


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """A codec that stores the numbers unquantised, perhaps in a smaller type."""

    dtype: torch.dtype
    exact: bool

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """Return one part: the numbers of a head."""
        return ((head_dim, self.dtype),)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the rows in the stored type."""
        return (rows.to(self.dtype),)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Return the rows in the type that the model computes in."""
        return parts[0].to(dtype)


@dataclass(frozen=True, slots=True)
class Int8Codec:
    """The symmetric INT8 codec: scale = max |x| / 127 for each token and head, x = scale * q."""

    exact: bool = False

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """Return two parts: the steps of a head, and their scale."""
        return (head_dim, torch.int8), (1, torch.float16)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the nearest steps and their scale."""
        rows = rows.float()
        scale = _half(rows.abs().amax(dim=-1, keepdim=True) / _STEPS_INT8)
        steps = (rows / _divisor(scale)).round().clamp(-_STEPS_INT8, _STEPS_INT8)
        return steps.to(torch.int8), scale

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Return the steps times their scale."""
        steps, scale = parts
        return (steps * scale.float()).to(dtype)


@dataclass(frozen=True, slots=True)
class Int4Codec:
    """The asymmetric INT4 codec: scale = (max - min) / 15 for each group, x = min + scale * q.

    Two steps share a byte, the one of the even place in the low nibble.
    """

    exact: bool = False

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """Return three parts: the packed steps of a head, and the scale and the minimum of each group."""
        groups = head_dim // scale_group(head_dim)
        return (head_dim // 2, torch.uint8), (groups, torch.float16), (groups, torch.float16)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the packed steps, the scales and the minima."""
        groups = _cut(rows.float(), scale_group(rows.shape[-1]))
        low = _half(groups.amin(dim=-1))
        scale = _half((groups.amax(dim=-1) - low) / _STEPS_INT4)
        above = groups - low.float()[..., None]
        steps = (above / _divisor(scale)[..., None]).round().clamp(0, _STEPS_INT4).to(torch.uint8)
        pairs = _cut(steps.flatten(-2), 2)
        return pairs[..., 0] | pairs[..., 1] << 4, scale, low

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Return each group's minimum plus its steps times its scale."""
        packed, scale, low = parts
        steps = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        groups = _cut(steps, steps.shape[-1] // scale.shape[-1]) * scale.float()[..., None]
        return (groups + low.float()[..., None]).flatten(-2).to(dtype)


@dataclass(frozen=True, slots=True)
class KVCodec:
    """The pair of codecs for keys and values. Keys are more sensitive: their errors pass through a softmax."""

    name: str
    key: SideCodec
    value: SideCodec

    def bytes_per_token(self, spec: ModelSpec) -> int:
        """Return the bytes of one token's keys and values over all layers."""
        parts = [*self.key.parts(spec.head_dim), *self.value.parts(spec.head_dim)]
        return spec.layers * spec.kv_heads * sum(width * dtype.itemsize for width, dtype in parts)


def kv_codec(name: KvDtype, dtype: torch.dtype) -> KVCodec:
    """Return the codec of the setting `name`, for a model that computes in `dtype`."""
    match name:
        case "int8":
            return KVCodec(name, Int8Codec(), Int8Codec())
        case "int4":
            return KVCodec(name, Int4Codec(), Int4Codec())
        case "k8v4":
            return KVCodec(name, Int8Codec(), Int4Codec())
    kept: torch.dtype = dtype if name == "auto" else getattr(torch, name)
    plain = PlainCodec(kept, exact=torch.promote_types(kept, dtype) == kept)
    return KVCodec(str(kept).removeprefix("torch."), plain, plain)


def scale_group(head_dim: int) -> int:
    """Return the group size: 64, or the largest that a head of another size can be cut into."""
    return head_dim if head_dim <= GROUP else gcd(head_dim, GROUP)


def _cut(rows: Tensor, width: int) -> Tensor:
    """Return the last axis cut into groups of `width`: [..., n * width] as [..., n, width]."""
    return rows.reshape(*rows.shape[:-1], -1, width)


def _half(values: Tensor) -> Tensor:
    return values.clamp(-_HALF_MAX, _HALF_MAX).to(torch.float16)


def _divisor(scale: Tensor) -> Tensor:
    """Return the scale as it will be read, with 1 in place of 0: then all values are the same."""
    wide = scale.float()
    return wide.masked_fill(wide == 0, 1.0)
