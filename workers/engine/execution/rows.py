"""How the tokens of a sequence are to be drawn, at each place that is sampled."""

from collections.abc import Iterable

from torch import Tensor

from workers.engine.grammar.matcher import masks_along
from workers.engine.sampling.random_numbers import RandomStream, uniform
from workers.engine.sampling.sampling_row import SamplingRow
from workers.engine.scheduler.plan import Item
from workers.engine.scheduler.sequence import Sequence


def rows(items: Iterable[Item]) -> list[SamplingRow]:
    """One for each sampled row of these items, in their order: 1 + drafts of each."""
    return [row for item in items for row in _rows_of(item.sequence, item.drafts)]


def sampling_row_after_drafts(sequence: Sequence) -> SamplingRow:
    """How to draw the token behind the sequence's tokens and all of its drafts."""
    # A guess that the grammar rules out would only be rejected.
    masks = masks_along(sequence.matcher, sequence.drafts)[0] if sequence.matcher else None
    return _row(sequence, len(sequence.drafts), None if masks is None else masks[-1])


def draw_uniform(sequence: Sequence, ahead: int, stream: RandomStream) -> float:
    """The sequence's number for the position behind `ahead` drafts: the same before and after a preemption."""
    return uniform(sequence.seed, len(sequence.tokens) + ahead, stream)


def draw_uniforms(sequence: Sequence, count: int, stream: RandomStream) -> list[float]:
    """Its numbers for the `count` positions behind its tokens."""
    return [draw_uniform(sequence, ahead, stream) for ahead in range(count)]


def _rows_of(sequence: Sequence, drafts: int) -> list[SamplingRow]:
    masks = masks_along(sequence.matcher, sequence.drafts[:drafts])[0] if sequence.matcher else None
    return [_row(sequence, ahead, None if masks is None else masks[ahead]) for ahead in range(1 + drafts)]


def _row(sequence: Sequence, ahead: int, allowed: Tensor | None) -> SamplingRow:
    return SamplingRow(
        params=sequence.params,
        tokens=sequence.tokens,
        num_prompt=sequence.num_prompt,
        drafts=sequence.drafts[:ahead],
        end_ids=sequence.stop_ids,
        allowed=allowed,
        uniform=0.0 if sequence.params.greedy else draw_uniform(sequence, ahead, RandomStream.TOKEN),
    )
