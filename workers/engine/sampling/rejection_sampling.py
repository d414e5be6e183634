"""Which guesses stand, so that what comes out is distributed exactly as if nobody had guessed.

p[j] is the distribution that plain decoding would draw from after j guesses (after penalties, masks, temperature,
top-k and all else); q[j] is the one that guess j was drawn from. Speculative sampling (Leviathan et al. 2023,
algorithm 1; Chen et al. 2023, theorem 1), guess by guess:

    accept d with probability min(1, p(d) / q(d))
    the first that is rejected is replaced by a draw from  (p - q)+ / sum (p - q)+      the residual
    if all are accepted, one more is drawn from p                                       the bonus

    p(x) = min(p, q)(x)  +  (p - q)+(x)         what q offers too much of is thrown away, what it offers
           accepted         resampled           too little of comes from the residual

The bonus is the residual of a q that is zero, so both are one case here. Each decision has a chance of its own: one
number that both rejects a guess and draws its replacement would tie the two together.

**Guesses that were not drawn** by a chance of their own have a q of 1 at the guess. Then the rule says: accept
with probability p(d), else draw from p without d. Drawing x from p and accepting if x = d is the same, and better:
x is the very token that plain decoding draws with the same seed. So greedy requests, requests with a seed, and all
guesses of n-grams and heads are verified by `agreed`, and give the same tokens with and without speculation.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.engine.sampling.sampler import draw_tokens


def count_agreed(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """How many guesses, from the first, are what was drawn at their place."""
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
    """The tokens of each sequence: its accepted guesses and one more, for guesses that were drawn from q.

    p, q      [rows, vocab] float64; a sequence with k drafts has k + 1 rows, in the last of which q is zero
    drafts    k of each sequence
    accept    k chances in [0, 1) of each, one to judge each draft by
    final     k + 1 chances of each, one for each place at which the last token may come to stand
    """
    column = torch.tensor([[token] for guesses in drafts for token in (*guesses, 0)], device=p.device)
    wanted, offered = p.gather(1, column).flatten().tolist(), q.gather(1, column).flatten().tolist()
    accepted, lasts, chances = [], [], []
    first = 0
    for guesses, judges, draws in zip(drafts, accept, final, strict=True):
        count = 0
        while count < len(guesses) and judges[count] * offered[first + count] < wanted[first + count]:
            count += 1
        accepted.append(guesses[:count])
        lasts.append(first + count)
        chances.append(draws[count])
        first += len(guesses) + 1
    at = torch.tensor(lasts, device=p.device)
    tokens = draw_tokens(residual_weights(p.index_select(0, at), q.index_select(0, at)), chances).tolist()
    return [(*guesses, token) for guesses, token in zip(accepted, tokens, strict=True)]


def residual_weights(p: Tensor, q: Tensor) -> Tensor:
    """Weights [rows, vocab] of what p has more than q."""
    more = (p - q).clamp(min=0.0)
    # Only rounding can reject a guess although p nowhere exceeds q; then the two are equal but for that.
    return torch.where(more.sum(dim=-1, keepdim=True) > 0, more, p)
