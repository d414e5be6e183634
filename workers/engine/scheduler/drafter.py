"""The promise of whoever guesses.

    plan    scheduler:  count = drafter.ready(sequence, limit)     how many will come; blocks for them are taken
    run     runner:     drafter.propose(items)                     they are put into sequence.drafts
                        the model computes tokens and drafts       and `verify` says which stand
                        drafter.follow(step)                       so that it knows what the model knows
    commit  scheduler:  what stands becomes tokens, the rest is forgotten

A drafter may guess anything: a bad guess costs time and never changes an answer.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from workers.engine.scheduler.plan import Item
from workers.engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A step that the model has computed and the scheduler has not committed yet."""

    items: Items[Item]
    hidden: Tensor
    """The state that gave each sampling item's newest token, [sampling items, hidden], in the plan's order."""
    tokens: Items[tuple[int, ...]]
    """What those items gave: accepted drafts and one token more."""


class Drafter(Protocol):
    """Guesses for one engine; used by its thread alone."""

    cost: float
    """What making one guess takes, as a share of a plain step."""

    def ready(self, sequence: Sequence, limit: int) -> int:
        """How many guesses, at most `limit`, there will be for this sequence in the step that is being planned.

        No tensor is touched. Guesses that are known already go into `sequence.drafts` here.
        """
        ...

    def propose(self, items: Items[Item]) -> dict[Sequence, Tensor]:
        """See that each item's sequence has `item.drafts` guesses in `drafts`; their distributions where drawn.

        Returns [drafts, vocab] float64 for sequences whose guesses were drawn from these rows, each by a chance of
        its own. For all others the guesses are a function of text and chance of the token itself (see `verify`).
        """
        ...

    def follow(self, step: Computed) -> None:
        """The model has computed this step."""
        ...
