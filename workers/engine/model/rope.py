"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864): a pair of coordinates rotated by an angle.

    x = [ a | b ]   two halves of one head          a' = a cos - b sin
    angle[p, i] = p * frequency[i],  i < head_dim/2  b' = b cos + a sin

Tables are float32 whatever the model's dtype: in bfloat16 the angle of position 300 is already off by one step.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.engine.checkpoint.rope_spec import RopeSpec
from workers.engine.errors import ConfigInvalid


def frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Return the rotation frequency of each pair, [head_dim / 2] float32, in radians per position."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "yarn":
        keep = _yarn_keep(rope, head_dim)
        return keep * plain + (1 - keep) * (1.0 / (rope.factor * rope.theta**exponents))
    # llama3: pairs that rotate often in the original context are kept, slow ones stretched, those between blended.
    turns = rope.original_context * plain / (2 * math.pi)
    span = rope.high_frequency_factor - rope.low_frequency_factor
    keep = ((turns - rope.low_frequency_factor) / span).clamp(0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn_keep(rope: RopeSpec, head_dim: int) -> Tensor:
    """Return the share of its own frequency that each pair keeps, [head_dim / 2]: 1 for fast pairs, 0 for slow."""

    def pair(turns: float) -> float:
        """Return the pair, as a fraction, that rotates `turns` times in the original context (eq. 17)."""
        return head_dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    return 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeTable:
    """The cosine and sine of the angles of every position; both [context, head_dim / 2] float32."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def build(
        cls, rope: RopeSpec, *, head_dim: int, context_length: int, device: torch.device
    ) -> "RopeTable":
        """Compute the tables for positions 0 to context_length - 1. Raises ConfigInvalid if memory is too small."""
        try:
            positions = torch.arange(context_length, dtype=torch.float32)
            angles = torch.outer(positions, frequencies(rope, head_dim))
            cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
            return cls(cos=cos.to(device), sin=sin.to(device))
        except RuntimeError as err:
            raise ConfigInvalid(
                f"rotary tables of {context_length} positions do not fit into memory: set a smaller context length"
            ) from err

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows for `positions` [tokens], shaped [tokens, 1, head_dim / 2] to fit every head."""
        cos, sin = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        return cos.unsqueeze(1), sin.unsqueeze(1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `heads` [tokens, heads, head_dim] by the angles of their positions; the dtype stays the same."""
    a, b = heads.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(heads.dtype)
