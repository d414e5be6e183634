"""How one side of the KV cache, keys or values, is kept in memory.

    plain   [ head_dim numbers ]                                 head_dim * itemsize bytes a head
    int8    [ head_dim x int8 | scale ]                          head_dim + 2
    int4    [ head_dim / 2 x two nibbles | scale, minimum .. ]   head_dim / 2 + 4 a group of 64

A scale, and a minimum, is a float16. INT8 is symmetric, one scale for each token and head. INT4 is asymmetric in
groups along the head: it has 16 steps only, so none of them may be spent where no value is. What is quantised is
decoded with the rounded scale, so encoding asks the rounded one too.
"""

from dataclasses import dataclass
from math import gcd
from typing import Protocol

import torch
from torch import Tensor

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import KvDtype

GROUP = 64
_HALF_MAX = torch.finfo(torch.float16).max
_STEPS_INT8, _STEPS_INT4 = 127, 15


class SideCodec(Protocol):
    """Rows of heads [..., heads, head_dim] to parts and back; every part is [..., heads, its width]."""

    @property
    def exact(self) -> bool:
        """Does a row read back as it was written?"""
        ...

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """Width and type of each part of one head."""
        ...

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The parts to be kept."""
        ...

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """The rows as they are read, in the type that the model computes in."""
        ...


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """Numbers as they are, perhaps in a smaller type."""

    dtype: torch.dtype
    exact: bool

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """As promised by Codec."""
        return ((head_dim, self.dtype),)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """As promised by Codec."""
        return (rows.to(self.dtype),)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """As promised by Codec."""
        return parts[0].to(dtype)


@dataclass(frozen=True, slots=True)
class Int8Codec:
    """scale = max |x| / 127; x = scale * q."""

    exact: bool = False

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """As promised by Codec."""
        return (head_dim, torch.int8), (1, torch.float16)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """As promised by Codec."""
        rows = rows.float()
        scale = _half(rows.abs().amax(dim=-1, keepdim=True) / _STEPS_INT8)
        steps = (rows / _divisor(scale)).round().clamp(-_STEPS_INT8, _STEPS_INT8)
        return steps.to(torch.int8), scale

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """As promised by Codec."""
        steps, scale = parts
        return (steps * scale.float()).to(dtype)


@dataclass(frozen=True, slots=True)
class Int4Codec:
    """scale = (max - min) / 15; x = min + scale * q; even places in the low nibble."""

    exact: bool = False

    def parts(self, head_dim: int) -> tuple[tuple[int, torch.dtype], ...]:
        """As promised by Codec."""
        groups = head_dim // _group(head_dim)
        return (head_dim // 2, torch.uint8), (groups, torch.float16), (groups, torch.float16)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """As promised by Codec."""
        groups = _cut(rows.float(), _group(rows.shape[-1]))
        low = _half(groups.amin(dim=-1))
        scale = _half((groups.amax(dim=-1) - low) / _STEPS_INT4)
        above = groups - low.float()[..., None]
        steps = (above / _divisor(scale)[..., None]).round().clamp(0, _STEPS_INT4).to(torch.uint8)
        pairs = _cut(steps.flatten(-2), 2)
        return pairs[..., 0] | pairs[..., 1] << 4, scale, low

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """As promised by Codec."""
        packed, scale, low = parts
        steps = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        groups = _cut(steps, steps.shape[-1] // scale.shape[-1]) * scale.float()[..., None]
        return (groups + low.float()[..., None]).flatten(-2).to(dtype)


@dataclass(frozen=True, slots=True)
class KVCodec:
    """How keys and how values are kept. Keys are the sensitive side: their errors pass through a softmax."""

    name: str
    key: SideCodec
    value: SideCodec

    def bytes_per_token(self, spec: ModelSpec) -> int:
        """Memory of one token's keys and values over all layers."""
        parts = [*self.key.parts(spec.head_dim), *self.value.parts(spec.head_dim)]
        return spec.layers * spec.kv_heads * sum(width * dtype.itemsize for width, dtype in parts)


def kv_codec(name: KvDtype, dtype: torch.dtype) -> KVCodec:
    """The codec of that name, for a model that computes in `dtype`."""
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


def _group(head_dim: int) -> int:
    """Groups of 64, or the largest that a head of another size can be cut into."""
    return head_dim if head_dim <= GROUP else gcd(head_dim, GROUP)


def _cut(rows: Tensor, width: int) -> Tensor:
    """The last axis in groups of `width`: [..., n * width] as [..., n, width]."""
    return rows.reshape(*rows.shape[:-1], -1, width)


def _half(values: Tensor) -> Tensor:
    return values.clamp(-_HALF_MAX, _HALF_MAX).to(torch.float16)


def _divisor(scale: Tensor) -> Tensor:
    """The scale as it will be read; a zero one, of values that are all the same, divides nothing."""
    wide = scale.float()
    return wide.masked_fill(wide == 0, 1.0)
