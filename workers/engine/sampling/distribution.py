"""From logits to the probabilities that a token is drawn from, one row each.

    processors -> temperature -> top-k -> top-p -> min-p -> normalise

Top-p counts what top-k has left, and min-p what both have left, as in SGLang and transformers. A greedy row has all
its weight on one token. This is also what speculation compares: a draft is judged by the very distribution that
plain decoding would have drawn from, at that place, after that history.

Rows are grouped by what they need, for ranking 150,000 tokens costs more than everything else together. A row's
result does not depend on its neighbours.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.engine.sampling.processors import apply_processors
from workers.engine.sampling.sampling_row import SamplingRow

RANKED_FIRST = 1024
"""Likeliest tokens to look at before ranking all of them: mostly top-p ends among them."""


def distribution(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Probabilities [rows, vocab] float64, each row's sum 1. `logits` [rows, vocab] float32 are used up."""
    apply_processors(logits, rows)
    result = torch.zeros_like(logits, dtype=torch.float64)
    result.scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
    for places in random_row_groups(rows):
        index = torch.tensor(places, device=logits.device)
        part = token_weights(logits[index], [rows[place] for place in places])
        result[index] = part / part.sum(dim=-1, keepdim=True)
    return result


def random_row_groups(rows: Sequence[SamplingRow]) -> list[list[int]]:
    """Places of the rows that are not greedy, in groups of equal cost."""
    open_rows = [
        place for place, row in enumerate(rows) if not (row.params.greedy or row.params.filters_by_rank)
    ]
    ranked_rows = [
        place for place, row in enumerate(rows) if not row.params.greedy and row.params.filters_by_rank
    ]
    return [places for places in (open_rows, ranked_rows) if places]


def token_weights(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Weights [rows, vocab] float64 of one group of `drawn`, from processed logits."""
    # Double from here on: a cumulated sum of 150,000 floats loses the tail in single precision.
    scores = logits.double() / _column(logits, [row.params.temperature for row in rows])
    result = _ranked(scores, rows) if rows[0].params.filters_by_rank else scores.softmax(dim=-1)
    if any(row.params.min_p for row in rows):
        least = result.amax(dim=-1, keepdim=True) * _column(logits, [row.params.min_p for row in rows])
        result = result.masked_fill(result < least, 0.0)
    return result


def _ranked(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Softmax of what top-k and top-p keep; of equal scores the lower token ranks first, on every machine."""
    vocab = scores.shape[-1]
    if vocab > RANKED_FIRST:
        cut, enough = _cut(scores, *_likeliest(scores), rows)
        if bool(enough.all()):
            return cut
    return _cut(scores, *scores.sort(dim=-1, descending=True, stable=True), rows)[0]


def _likeliest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best scores in order, and their tokens, both [rows, RANKED_FIRST]."""
    # The selection's own order among equals is arbitrary, so they are put into the order of their tokens first.
    tokens = scores.topk(RANKED_FIRST, dim=-1, sorted=False).indices.sort(dim=-1).values
    best, order = scores.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
    return best, tokens.gather(1, order)


def _cut(scores: Tensor, best: Tensor, tokens: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    """Weights [rows, vocab] of what stays of the `best`, and whether they were enough to decide it [rows]."""
    vocab, width = scores.shape[-1], best.shape[-1]
    rank = torch.arange(width, device=scores.device)
    top_k = _column(scores, [row.params.top_k if row.params.top_k > 0 else vocab for row in rows])
    likelihood = (best - best[:, :1]).exp().masked_fill(rank >= top_k, 0.0)
    everything = (scores - best[:, :1]).exp().sum(dim=-1, keepdim=True)
    total = torch.where(top_k <= width, likelihood.sum(dim=-1, keepdim=True), everything)
    likelihood = likelihood / total
    # A token stays while what stands before it is less than top_p; the first one always stays.
    before = likelihood.cumsum(dim=-1) - likelihood
    stays = (before < _column(scores, [row.params.top_p for row in rows])) | (rank == 0)
    likelihood = likelihood * stays
    # The last one that stays must be better than the last one seen: else there may be others as good, not seen.
    kept = (likelihood > 0).sum(dim=-1, keepdim=True)
    enough = best.gather(1, (kept - 1).clamp(min=0)) > best[:, -1:]
    enough &= (top_k <= width) | (top_k >= vocab)
    return torch.zeros_like(scores).scatter_(1, tokens, likelihood), enough


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
