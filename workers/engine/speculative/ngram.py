"""Guess that the text goes on as it did before (prompt lookup, Saxena 2023; "ngram" in vLLM).

    ... the cat sat on the mat . and then the cat sat on
        ------- earliest place -------    ^^^^^^^^^^^^^^ the longest end of the text that stood there before
                           the mat . and   <- the guess

Good for what repeats its prompt: code, summaries, retrieval. It costs one look through the text and no model.
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
    """Where to read on: behind the earliest place at which the longest possible end of `tokens` stood before.

    Ends of `shortest` to `longest` tokens are tried. None when none of them stood anywhere.
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
    """Drafter that looks into the sequence's own tokens."""

    cost = 0.0

    def __init__(self, *, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        # A mirror of each sequence's tokens that numpy can search without copying it in every step.
        self._texts: WeakKeyDictionary[Sequence, array[int]] = WeakKeyDictionary()

    def draft_count(self, sequence: Sequence, limit: int) -> int:
        """As promised by Drafter; the guesses are made here, for they need no tensors."""
        tokens = sequence.tokens
        text = self._texts.setdefault(sequence, array("i"))
        text.extend(tokens[len(text) :])
        place = continuation(
            np.frombuffer(text, dtype=np.int32), shortest=self._shortest, longest=self._longest
        )
        drafts: list[int] = []
        if place is not None:
            for position in range(place, place + limit):
                # What stood there may reach the present end: a loop goes on as a loop.
                drafts.append(tokens[position] if position < len(tokens) else drafts[position - len(tokens)])
        sequence.drafts = drafts
        return len(drafts)

    def propose(self, items: Items[StepItem]) -> dict[Sequence, Tensor]:
        """Nothing is left to do."""
        return {}

    def after_step(self, step: ComputedStep) -> None:
        """The text is all there is to know."""
