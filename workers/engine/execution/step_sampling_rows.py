"""The sampling rows of a step: how to draw a token at each position that is sampled."""

from collections.abc import Iterable

from torch import Tensor

from workers.engine.grammar.matcher import masks_along, masks_in_tree
from workers.engine.sampling.random_numbers import RandomStream, uniform
from workers.engine.sampling.sampling_row import SamplingRow
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence


def sampling_rows(items: Iterable[StepItem]) -> list[SamplingRow]:
    """Return the sampling rows of the items in their order, 1 + drafts of each."""
    return [row for item in items for row in _rows_of(item)]


def sampling_row_after_drafts(sequence: Sequence) -> SamplingRow:
    """Return the sampling row of the position after the sequence's tokens and all of its drafts."""
    # A draft that the grammar rules out would only be rejected.
    masks = masks_along(sequence.matcher, sequence.drafts)[0] if sequence.matcher else None
    return _row(sequence, sequence.drafts, None if masks is None else masks[-1])


def draw_uniform(sequence: Sequence, ahead: int, stream: RandomStream) -> float:
    """Return the sequence's random number for the position after `ahead` drafts; preemption does not change it."""
    return uniform(sequence.seed, len(sequence.tokens) + ahead, stream)


def draw_uniforms(sequence: Sequence, count: int, stream: RandomStream) -> list[float]:
    """Return the sequence's random numbers for the `count` positions after its tokens."""
    return [draw_uniform(sequence, ahead, stream) for ahead in range(count)]


def _rows_of(item: StepItem) -> list[SamplingRow]:
    sequence, drafts, tree = item.sequence, item.sequence.drafts[: item.drafts], item.draft_tree
    masks: Tensor | None = None
    if tree is None:
        before = [drafts[:ahead] for ahead in range(1 + len(drafts))]
        if sequence.matcher:
            masks = masks_along(sequence.matcher, drafts)[0]
    else:
        before = [[], *([drafts[number] for number in path] for path in tree.paths)]
        if sequence.matcher:
            masks = masks_in_tree(sequence.matcher, drafts, tree.parents)
    return [_row(sequence, path, None if masks is None else masks[row]) for row, path in enumerate(before)]


def _row(sequence: Sequence, drafts: list[int], allowed: Tensor | None) -> SamplingRow:
    return SamplingRow(
        params=sequence.params,
        tokens=sequence.tokens,
        num_prompt=sequence.num_prompt,
        drafts=drafts,
        end_ids=sequence.stop_ids,
        allowed=allowed,
        uniform=0.0 if sequence.params.greedy else draw_uniform(sequence, len(drafts), RandomStream.TOKEN),
    )
