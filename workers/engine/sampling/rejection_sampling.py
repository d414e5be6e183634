"""Rejection sampling of draft tokens: the accepted ones are distributed exactly as in plain decoding.

p[j] is the distribution that plain decoding would draw from after j drafts (after penalties, masks, temperature,
top-k and all else); q[j] is the one that draft j was drawn from. Speculative sampling (Leviathan et al. 2023,
algorithm 1; Chen et al. 2023, theorem 1), draft by draft:

    accept d with probability min(1, p(d) / q(d))
    the first that is rejected is replaced by a draw from  (p - q)+ / sum (p - q)+      the residual
    if all are accepted, one more is drawn from p                                       the bonus

    p(x) = min(p, q)(x)  +  (p - q)+(x)         the excess of q over p is rejected, the excess of p over q
           accepted         resampled           comes from the residual

The bonus is the residual of a q that is zero, so both are one case here. Each decision has a random number of its
own: one number that both rejects a draft and draws its replacement would correlate the two.

**Drafts that were not drawn at random** have a q of 1 at the draft. Then the rule is: accept with probability
p(d), else draw from p without d. Drawing x from p and accepting if x = d is the same, and better: x is the very
token that plain decoding draws with the same seed. So the drafts of greedy requests, of requests with a seed, of
n-gram lookup and of Medusa heads are compared with what was drawn, by `count_agreed` (a tree of drafts by
`accepted_path` of draft_tree.py), and give the same tokens with and without speculation.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.engine.sampling.sampler import draw_tokens


def count_agreed(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """Return how many drafts, from the first one on, equal the tokens drawn at their positions."""
    count = 0
    while count < len(drafts) and drafts[count] == drawn[count]:
        count += 1
    return count


def verify_drafts(
    p: Tensor,
    q: Tensor,
    drafts: Sequence[Sequence[int]],
    accept: Sequence[Sequence[float]],
    final: Sequence[Sequence[float]],
) -> list[tuple[int, ...]]:
    """Return the tokens of each sequence, its accepted drafts and one more, for drafts that were drawn from q.

    Args:
        p: [rows, vocab] float64; a sequence with k drafts has k + 1 rows.
        q: [rows, vocab] float64; the last row of each sequence is zero.
        drafts: the k drafts of each sequence.
        accept: k random numbers in [0, 1) for each sequence, one to decide about each draft.
        final: k + 1 random numbers for each sequence, one for each position that the last token may have.
    """
    column = torch.tensor([[token] for proposed in drafts for token in (*proposed, 0)], device=p.device)
    wanted, offered = p.gather(1, column).flatten().tolist(), q.gather(1, column).flatten().tolist()
    accepted, lasts, chances = [], [], []
    first = 0
    for proposed, judges, draws in zip(drafts, accept, final, strict=True):
        count = 0
        while count < len(proposed) and judges[count] * offered[first + count] < wanted[first + count]:
            count += 1
        accepted.append(proposed[:count])
        lasts.append(first + count)
        chances.append(draws[count])
        first += len(proposed) + 1
    at = torch.tensor(lasts, device=p.device)
    tokens = draw_tokens(residual_weights(p.index_select(0, at), q.index_select(0, at)), chances).tolist()
    return [(*proposed, token) for proposed, token in zip(accepted, tokens, strict=True)]


def residual_weights(p: Tensor, q: Tensor) -> Tensor:
    """Return the weights [rows, vocab] of the excess of p over q."""
    more = (p - q).clamp(min=0.0)
    # Only rounding can reject a draft although p nowhere exceeds q; then the two are equal but for rounding.
    return torch.where(more.sum(dim=-1, keepdim=True) > 0, more, p)
