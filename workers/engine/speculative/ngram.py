"""Drafts by prompt lookup: the tokens that followed the end of the text before (Saxena 2023; "ngram" in vLLM).

    ... the cat sat on the mat . and then the cat sat on
        ------- earliest match -------    ^^^^^^^^^^^^^^ the longest suffix of the text that occurred before
                           the mat . and   <- the drafts

This works well for answers that repeat their prompt: code, summaries, retrieval. It costs one search of the text
and no model.
"""

from array import array
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from workers.engine.scheduler.drafter import ComputedStep
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence


def continuation(tokens: NDArray[np.int32], *, shortest: int, longest: int) -> int | None:
    """Return the position after the first occurrence of the longest suffix of `tokens` that occurred before.

    Suffixes of `shortest` to `longest` tokens are tried. The result is None when none of them occurred before.
    """
    if len(tokens) <= shortest:
        return None
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    length = 1 if len(ends) else 0
    while length and length < longest:
        longer = ends[ends >= length]
        longer = longer[tokens[longer - length] == tokens[-1 - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    return int(ends[0]) + 1 if length >= shortest else None


class NgramDrafter:
    """A drafter that looks up the last tokens of a sequence in its earlier ones."""

    cost = 0.0
    tree = None

    def __init__(self, *, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        # A copy of each sequence's tokens that numpy can search without a conversion in every step.
        self._texts: WeakKeyDictionary[Sequence, array[int]] = WeakKeyDictionary()

    def draft_count(self, sequence: Sequence, limit: int) -> int:
        """Put the drafts into the sequence, and return how many there are; this needs no tensor."""
        tokens = sequence.tokens
        text = self._texts.setdefault(sequence, array("i"))
        text.extend(tokens[len(text) :])
        start = continuation(
            np.frombuffer(text, dtype=np.int32), shortest=self._shortest, longest=self._longest
        )
        drafts: list[int] = []
        if start is not None:
            for position in range(start, start + limit):
                # The earlier occurrence may reach the present end: then the drafts repeat themselves.
                drafts.append(tokens[position] if position < len(tokens) else drafts[position - len(tokens)])
        sequence.drafts = drafts
        return len(drafts)

    def propose(self, items: Items[StepItem]) -> dict[Sequence, Tensor]:
        """Return nothing: the drafts were made by `draft_count`."""
        return {}

    def after_step(self, step: ComputedStep) -> None:
        """Do nothing: the drafts depend only on the text."""
