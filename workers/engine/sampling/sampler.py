"""The sampler: from logits to tokens, with one draw by the inverse cumulative distribution.

    weights   .5   .3   .2           u = 0.65
    cumulated .5   .8   1.0          first one above u * total: the second token

A row's token depends on its logits and its SamplingRow only, never on what else is in the batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.engine.sampling.distribution import random_row_groups, token_weights
from workers.engine.sampling.processors import apply_processors
from workers.engine.sampling.sampling_row import SamplingRow


def sample_tokens(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Return one token for each row of `logits` [rows, vocab] float32, which are overwritten."""
    apply_processors(logits, rows)
    tokens = logits.argmax(dim=-1)
    for places in random_row_groups(rows):
        index = torch.tensor(places, device=logits.device)
        group = [rows[place] for place in places]
        tokens[index] = draw_tokens(token_weights(logits[index], group), [row.uniform for row in group])
    return [int(token) for token in tokens.tolist()]


def draw_tokens(weights: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Draw one token of each row, [rows]: the first with a cumulated weight above its uniform number * the total.

    Args:
        weights: [rows, vocab] float64, not necessarily normalised.
        uniforms: a random number in [0, 1) for each row.
    """
    cumulated = weights.cumsum(dim=-1)
    chance = torch.tensor(uniforms, dtype=torch.float64, device=weights.device)[:, None]
    # Rounding can lift the target to the total itself: then it is the last token that has any weight.
    last = (cumulated < cumulated[:, -1:]).sum(dim=-1, keepdim=True)
    target = chance * cumulated[:, -1:]
    return torch.searchsorted(cumulated, target, right=True).minimum(last).squeeze(1)
