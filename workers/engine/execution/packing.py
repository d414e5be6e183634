"""The packing of a step plan into flat tensors. The plan is written as StepItem of plan.py writes its items.

plan      a 5+1!   b 0+4   c 9+1!   d 6+3~2!
packed    a5 | c9 | d6 d7 d8 | b0 b1 b2 b3     continued sequences before new ones, by length and then by position,
                                               so that attention finds rows that it can compute in one batch
sampled    0    1   2  3  4                    rows with logits to be sampled, in the order of the plan
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.id_tensor import id_tensor
from workers.engine.scheduler.plan import StepItem


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStep:
    """The tokens of one step as flat tensors."""

    tokens: Tensor
    """[tokens]."""
    positions: Tensor
    """[tokens]: the position of each token in its sequence."""
    sampled: Tensor
    """[sampled]: the rows of `tokens` to sample after, 1 + drafts of each item that samples, in plan order."""
    spans: tuple[AttentionSpan, ...]
    lora_rows: tuple[tuple[str, Tensor | None], ...]
    """The rows of each LoRA adapter in the step; None: all rows."""


def pack(items: Sequence[StepItem], device: torch.device, padding: Sequence[int] = ()) -> PackedStep:
    """Concatenate the tokens of the items; `padding` adds unused rows of so many tokens each."""
    tokens: list[int] = []
    positions: list[int] = []
    last_rows: dict[int, int] = {}
    lora_rows: dict[str, list[int]] = {}
    spans = []
    # A static batch ends as a whole: a row whose sequence has ended stays as padding of one token, and attends to
    # as many positions as the row that has the most.
    reach = max((item.start for item in items), default=0)
    starts = [item.start for item in items] + [reach if count == 1 else 0 for count in padding]
    counts = [item.count for item in items] + list(padding)
    forked = [item.draft_tree is not None for item in items] + [False for _ in padding]
    for place in sorted(
        range(len(counts)),
        key=lambda place: (not starts[place], counts[place], forked[place], starts[place]),
    ):
        if place >= len(items):
            start, count = starts[place], counts[place]
            tokens += [0] * count
            positions += range(start, start + count)
            # Block 0 belongs to no sequence: padding writes there, and no other row reads it.
            spans.append(AttentionSpan(start=start, count=count, blocks=[0] * (start + count)))
            continue
        item = items[place]
        end, tree = item.start + item.count, item.draft_tree
        tokens += item.sequence.tokens_and_drafts(item.start, end)
        if tree is None:
            positions += range(item.start, end)
        else:
            positions += (item.start, *(item.start + 1 + depth for depth in tree.depths))
        last_rows[place] = len(tokens) - 1
        if item.sequence.lora:
            lora_rows.setdefault(item.sequence.lora, []).extend(range(len(tokens) - item.count, len(tokens)))
        spans.append(
            AttentionSpan(start=item.start, count=item.count, blocks=item.sequence.blocks.ids, tree=tree)
        )
    sampled = [
        row
        for place, item in enumerate(items)
        if item.samples
        for row in range(last_rows[place] - item.drafts, last_rows[place] + 1)
    ]
    return PackedStep(
        tokens=id_tensor(tokens, device),
        positions=id_tensor(positions, device),
        sampled=id_tensor(sampled, device),
        spans=tuple(spans),
        lora_rows=tuple(
            (name, None if len(rows) == len(tokens) else id_tensor(rows, device))
            for name, rows in lora_rows.items()
        ),
    )
