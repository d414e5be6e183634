"""The interface of drafters, which propose the next tokens for speculative decoding.

    plan    scheduler:  count = drafter.draft_count(sequence, limit)   blocks for the drafts are allocated
    run     runner:     drafter.propose(items)                         drafts are put into sequence.drafts
                        the model computes tokens and drafts           `rejection_sampling` verifies the drafts
                        drafter.after_step(step)                       hidden states and tokens go to the drafter
    commit  scheduler:  accepted drafts become tokens, the others are dropped

A drafter may propose anything: a bad draft costs time and never changes an answer.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from workers.engine.draft_tree import DraftTree
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedStep:
    """A step that the model has computed and the scheduler has not committed yet."""

    items: Items[StepItem]
    hidden: Tensor
    """The hidden state before each sampling item's newest token, [sampling items, hidden], in the plan's order."""
    tokens: Items[tuple[int, ...]]
    """The tokens that those items yielded: accepted drafts and one token more."""


class Drafter(Protocol):
    """Proposes draft tokens for one engine; used only by the engine's thread."""

    cost: float
    """The time that making one draft token takes, as a share of a plain step."""

    @property
    def tree(self) -> DraftTree | None:
        """The tree that the drafts of a sequence form, of which a step may have the first levels; None: a chain."""
        ...

    def draft_count(self, sequence: Sequence, limit: int) -> int:
        """Return how many drafts, at most `limit`, this sequence will have in the step that is being planned.

        This touches no tensor. Drafts that are known already are put into `sequence.drafts` here, and the tree that
        they form into `sequence.draft_tree`.
        """
        ...

    def propose(self, items: Items[StepItem]) -> dict[Sequence, Tensor]:
        """Put `item.drafts` drafts into `drafts` of each item's sequence, and return the distributions behind them.

        The distributions are [drafts, vocab] float64, for the sequences with drafts that were sampled from them,
        each with a random number of its own. For all other sequences the drafts are a function of the text and of
        the random number of the token itself (see `rejection_sampling`), and the result has no entry.
        """
        ...

    def after_step(self, step: ComputedStep) -> None:
        """Record a computed step: what later drafts depend on, such as its hidden states or accepted drafts."""
        ...
