"""The distribution that each row's token is drawn from, computed from its logits.

    processors -> temperature -> top-k -> top-p -> min-p -> normalise

Top-p applies to what top-k has left, and min-p to what both have left, as in SGLang and transformers. A greedy row
has all its weight on one token. Speculative decoding verifies drafts with the same function: a draft is judged by
the very distribution that plain decoding would have drawn from, at that position, after that history.

Rows are grouped by whether they need a ranking, because ranking 150,000 tokens costs more than all other work
together. A row's result does not depend on the other rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.engine.sampling.processors import apply_processors
from workers.engine.sampling.sampling_row import SamplingRow

RANKED_FIRST = 1024
"""Likeliest tokens that are ranked first; all are ranked only where top-p does not end among these."""


def distribution(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Return the probabilities of each row, [rows, vocab] float64.

    `logits` [rows, vocab] float32 are overwritten.
    """
    apply_processors(logits, rows)
    result = torch.zeros_like(logits, dtype=torch.float64)
    result.scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
    for places in random_row_groups(rows):
        index = torch.tensor(places, device=logits.device)
        part = token_weights(logits[index], [rows[place] for place in places])
        result[index] = part / part.sum(dim=-1, keepdim=True)
    return result


def random_row_groups(rows: Sequence[SamplingRow]) -> list[list[int]]:
    """Return the indices of the rows that are not greedy: those without top-k and top-p, then those with."""
    open_rows = [
        place for place, row in enumerate(rows) if not (row.params.greedy or row.params.filters_by_rank)
    ]
    ranked_rows = [
        place for place, row in enumerate(rows) if not row.params.greedy and row.params.filters_by_rank
    ]
    return [places for places in (open_rows, ranked_rows) if places]


def token_weights(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Return the weights [rows, vocab] float64 of one group of `random_row_groups`, from processed logits."""
    # Double precision from here on: a cumulated sum of 150,000 floats loses the tail in single precision.
    scores = logits.double() / _column(logits, [row.params.temperature for row in rows])
    result = _ranked(scores, rows) if rows[0].params.filters_by_rank else scores.softmax(dim=-1)
    if any(row.params.min_p for row in rows):
        least = result.amax(dim=-1, keepdim=True) * _column(logits, [row.params.min_p for row in rows])
        result = result.masked_fill(result < least, 0.0)
    return result


def _ranked(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Return the softmax of the tokens that top-k and top-p keep; of equal scores the lower token ranks first."""
    vocab = scores.shape[-1]
    if vocab > RANKED_FIRST:
        cut, enough = _cut(scores, *_likeliest(scores), rows)
        if bool(enough.all()):
            return cut
    return _cut(scores, *scores.sort(dim=-1, descending=True, stable=True), rows)[0]


def _likeliest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best scores in order, and their tokens, both [rows, RANKED_FIRST]."""
    # topk orders equal scores arbitrarily, so the tokens are put in order first.
    tokens = scores.topk(RANKED_FIRST, dim=-1, sorted=False).indices.sort(dim=-1).values
    best, order = scores.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
    return best, tokens.gather(1, order)


def _cut(scores: Tensor, best: Tensor, tokens: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    """Return the weights [rows, vocab] of the kept tokens, and whether the `best` were enough to decide [rows]."""
    vocab, width = scores.shape[-1], best.shape[-1]
    rank = torch.arange(width, device=scores.device)
    top_k = _column(scores, [row.params.top_k if row.params.top_k > 0 else vocab for row in rows])
    likelihood = (best - best[:, :1]).exp().masked_fill(rank >= top_k, 0.0)
    everything = (scores - best[:, :1]).exp().sum(dim=-1, keepdim=True)
    total = torch.where(top_k <= width, likelihood.sum(dim=-1, keepdim=True), everything)
    likelihood = likelihood / total
    # A token is kept while the tokens ranked before it have less than top_p; the first one is always kept.
    before = likelihood.cumsum(dim=-1) - likelihood
    stays = (before < _column(scores, [row.params.top_p for row in rows])) | (rank == 0)
    likelihood = likelihood * stays
    # The last token kept must score better than the last one ranked: else tokens as good may not be among `best`.
    kept = (likelihood > 0).sum(dim=-1, keepdim=True)
    enough = best.gather(1, (kept - 1).clamp(min=0)) > best[:, -1:]
    enough &= (top_k <= width) | (top_k >= vocab)
    return torch.zeros_like(scores).scatter_(1, tokens, likelihood), enough


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
