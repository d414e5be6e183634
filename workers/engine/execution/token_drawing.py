"""The drawing of a step's tokens: one at each sampled position, verified where the position follows a draft.

Without drafts every token is drawn by `sample_tokens` of workers/engine/sampling/sampler.py.

drafts that were drawn at random     accepted by the distribution that they were drawn from   `_accept_by_chance`
all others                           accepted where plain decoding draws the same token       `_accept_equal`
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate, compress

import torch
from torch import Tensor

from workers.engine.execution.step_sampling_rows import draw_uniforms
from workers.engine.sampling.distribution import distribution
from workers.engine.sampling.random_numbers import RandomStream
from workers.engine.sampling.rejection_sampling import count_agreed, verify_drafts
from workers.engine.sampling.sampler import sample_tokens
from workers.engine.sampling.sampling_row import SamplingRow
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ItemTokens:
    """The tokens that one item yielded, and the rows of the item that they were drawn from."""

    tokens: Tokens
    rows: Items[int]


def draw_step_tokens(
    items: Items[StepItem],
    wanted: Items[SamplingRow],
    logits: Tensor,
    draft_distributions: dict[Sequence, Tensor],
) -> list[ItemTokens]:
    """Draw the next tokens of each item that samples, and return them in the order of the items.

    Args:
        items: The items that sample.
        wanted: The parameters of each sampled position: 1 + drafts rows for each item.
        logits: [rows, vocabulary], a row for each sampled position.
        draft_distributions: The distributions of the drafts that were drawn at random, by sequence.
    """
    if not draft_distributions:
        return _accept_equal(items, wanted, logits)
    is_random = [item.sequence in draft_distributions for item in items]
    rows_at_random = [
        random for item, random in zip(items, is_random, strict=True) for _ in range(1 + item.drafts)
    ]
    places = torch.tensor(rows_at_random, device=logits.device)
    others, rows_of_others = [not random for random in is_random], [not random for random in rows_at_random]
    of_random = iter(
        _accept_by_chance(
            [*compress(items, is_random)],
            [*compress(wanted, rows_at_random)],
            logits[places],
            draft_distributions,
        )
    )
    of_others = iter(
        _accept_equal([*compress(items, others)], [*compress(wanted, rows_of_others)], logits[~places])
    )
    return [next(of_random if random else of_others) for random in is_random]


def _accept_equal(items: Items[StepItem], wanted: Items[SamplingRow], logits: Tensor) -> list[ItemTokens]:
    """Return the tokens of items with drafts that are accepted where plain decoding draws the same token."""
    drawn = sample_tokens(logits, wanted) if items else []
    results = []
    for first, item in zip(first_rows(items), items, strict=True):
        here = drawn[first : first + 1 + item.drafts]
        rows: Items[int]
        if item.draft_tree is None:
            rows = range(count_agreed(item.sequence.drafts[: item.drafts], here[:-1]) + 1)
        else:
            rows = [0, *(number + 1 for number in item.draft_tree.accepted_path(item.sequence.drafts, here))]
        results.append(ItemTokens(tuple(here[row] for row in rows), rows))
    return results


def _accept_by_chance(
    items: Items[StepItem],
    wanted: Items[SamplingRow],
    logits: Tensor,
    draft_distributions: dict[Sequence, Tensor],
) -> list[ItemTokens]:
    """Return the tokens of items with drafts that are accepted by the distributions that they came from."""
    p = distribution(logits, wanted)
    nothing = p.new_zeros(1, p.shape[-1])
    verified = verify_drafts(
        p,
        torch.cat([part for item in items for part in (draft_distributions[item.sequence], nothing)]),
        [item.sequence.drafts[: item.drafts] for item in items],
        [draw_uniforms(item.sequence, item.drafts, RandomStream.ACCEPT) for item in items],
        [draw_uniforms(item.sequence, item.drafts + 1, RandomStream.RESAMPLE) for item in items],
    )
    return [ItemTokens(tokens, range(len(tokens))) for tokens in verified]


def first_rows(items: Items[StepItem]) -> list[int]:
    """Return the index of each item's first row among all sampled rows."""
    return list(accumulate((1 + item.drafts for item in items[:-1]), initial=0)) if items else []


def newest_rows(items: Items[StepItem], results: Items[ItemTokens]) -> list[int]:
    """Return the index of the row that each item's last token was drawn from, among all sampled rows."""
    return [first + drawn.rows[-1] for first, drawn in zip(first_rows(items), results, strict=True)]
