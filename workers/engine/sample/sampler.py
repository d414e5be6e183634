"""Logits to tokens: temperature, top-k, top-p, then one draw by inverse cumulative distribution.

    weights   .5   .3   .2           u = 0.65
    cumulated .5   .8   1.0          first one above u * total: the second token

A row's token depends on its logits and its own Draw only. Rows are therefore grouped by what they need: a row that
needs no sorting is never sorted because its neighbour does, for the two orders map the same u to different tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How to draw one row. `uniform` is its chance in [0, 1); temperature None means greedy; top_k 0 keeps all."""

    temperature: float | None
    top_k: int = 0
    top_p: float = 1.0
    uniform: float = 0.0

    @property
    def filters(self) -> bool:
        """Are some tokens ruled out?"""
        return self.top_k > 0 or self.top_p < 1.0


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row of `logits` [rows, vocab] float32."""
    tokens = logits.argmax(dim=-1)
    open_rows = [row for row, draw in enumerate(draws) if draw.temperature is not None and not draw.filters]
    cut_rows = [row for row, draw in enumerate(draws) if draw.temperature is not None and draw.filters]
    for rows, draw_rows in ((open_rows, _draw_open), (cut_rows, _draw_filtered)):
        if rows:
            index = torch.tensor(rows, device=logits.device)
            chosen = [draws[row] for row in rows]
            tokens[index] = draw_rows(_scaled(logits[index], chosen), chosen)
    return [int(token) for token in tokens.tolist()]


def _scaled(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    # Double from here on: a cumulated sum of 150,000 floats loses the tail in single precision.
    return logits.double() / _column(logits, [draw.temperature or 1.0 for draw in draws])


def _draw_open(scores: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Every token is possible: cumulate in the vocabulary's own order."""
    return _pick(scores.softmax(dim=-1), draws).squeeze(1)


def _draw_filtered(scores: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Top-k first, then top-p over what it left, as the big engines do."""
    vocab = scores.shape[-1]
    # Stable: among equal scores the lower token id ranks first, on every machine.
    scores, order = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=scores.device)
    kept = _column(scores, [draw.top_k or vocab for draw in draws])
    weights = scores.masked_fill(rank >= kept, -torch.inf).softmax(dim=-1)
    # A token stays while what stands before it is less than top_p; the first one always stays.
    before = weights.cumsum(dim=-1) - weights
    weights = weights * ((before < _column(scores, [draw.top_p for draw in draws])) | (rank == 0))
    return order.gather(1, _pick(weights, draws)).squeeze(1)


def _pick(weights: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Index [rows, 1] of the first cumulated weight above uniform * total."""
    cumulated = weights.cumsum(dim=-1)
    target = _column(weights, [draw.uniform for draw in draws]) * cumulated[:, -1:]
    # Rounding can lift the target to the total itself: then it is the last token that has any weight.
    last = (cumulated < cumulated[:, -1:]).sum(dim=-1, keepdim=True)
    return torch.searchsorted(cumulated, target, right=True).minimum(last)


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
