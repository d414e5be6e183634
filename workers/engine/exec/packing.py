"""A plan as flat tensors.

plan      a 5+1!   b 0+4   c 9+1!
packed    a5 | c9 | b0 b1 b2 b3          spans of one token first: they form one batch in attention
sampled    0    1                        rows whose logits are wanted, in the order of the plan
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.engine.attention.base import Span
from workers.engine.sched.plan import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """`tokens` and `positions` [tokens], `sampled` [items that sample]; one span per item."""

    tokens: Tensor
    positions: Tensor
    sampled: Tensor
    spans: tuple[Span, ...]


def pack(items: Sequence[Item], device: torch.device) -> Packed:
    """Lay the items' tokens one after another."""
    tokens: list[int] = []
    positions: list[int] = []
    last_rows: dict[int, int] = {}
    spans = []
    for place in sorted(range(len(items)), key=lambda place: items[place].count > 1):
        item = items[place]
        end = item.start + item.count
        tokens += item.sequence.tokens[item.start : end]
        positions += range(item.start, end)
        last_rows[place] = len(tokens) - 1
        spans.append(Span(start=item.start, count=item.count, blocks=item.sequence.blocks.ids))
    sampled = [last_rows[place] for place, item in enumerate(items) if item.samples]
    return Packed(
        tokens=torch.tensor(tokens, device=device),
        positions=torch.tensor(positions, device=device),
        sampled=torch.tensor(sampled, dtype=torch.long, device=device),
        spans=tuple(spans),
    )
