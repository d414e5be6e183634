"""The interface by which the engine applies a grammar to one answer; GuidedMatcher of guidance.py implements it.

    mask(row)        which tokens may come next     one bit each; an end token only where the grammar may end
    advance(tokens)  consume tokens                 stops at the first one that is not allowed
    rollback(n)      undo the last n tokens         for drafts that were tried

The engine advances a matcher by every token that it keeps. To mask drafts, `masks_along` advances the matcher
further for a moment and rolls back before the step ends: between steps it is behind the last kept token.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

_WORD = 32


class Matcher(Protocol):
    """The position of one answer in its grammar; used by one thread at a time, and never raises an error."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens that a mask covers."""
        ...

    @property
    def done(self) -> bool:
        """Whether no token can follow any more: after an end token, at the grammar's end, and after a failure."""
        ...

    def mask(self, row: Tensor) -> None:
        """Set the bits of the tokens that may follow in `row`, int32 [mask_words(vocab_size)] on the CPU.

        No bit is set where nothing may follow.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens up to the first that is not allowed, and return how many were consumed."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens that were consumed."""
        ...


def mask_words(vocab_size: int) -> int:
    """Return the number of 32-bit words of a mask."""
    return -(-vocab_size // _WORD)


def masks_along(matcher: Matcher, drafts: Sequence[int] = ()) -> tuple[Tensor, int]:
    """Return a mask for each of `drafts` and for the token after them, and how many drafts the grammar allows.

    The masks are [drafts + 1, words]. Rows behind a draft that the grammar rules out are copies of the row that
    rules it out: that draft is rejected with certainty, so they decide nothing. The matcher's position does not
    change.
    """
    masks = torch.zeros(len(drafts) + 1, mask_words(matcher.vocab_size), dtype=torch.int32)
    matcher.mask(masks[0])
    valid = 0
    while valid < len(drafts) and not matcher.done and matcher.advance(drafts[valid : valid + 1]):
        valid += 1
        matcher.mask(masks[valid])
    matcher.rollback(valid)
    masks[valid + 1 :] = masks[valid]
    return masks, valid


def masks_in_tree(matcher: Matcher, drafts: Sequence[int], parents: Sequence[int]) -> Tensor:
    """Return a mask for the token after the last one and after each of `drafts`, [drafts + 1, words].

    `parents` has the number of the draft before each draft, or -1. Rows behind a draft that the grammar rules out
    are copies of the row that rules it out, as in `masks_along`. The matcher's position does not change.
    """
    masks = torch.zeros(len(drafts) + 1, mask_words(matcher.vocab_size), dtype=torch.int32)

    def fill(row: int) -> None:
        matcher.mask(masks[row])
        for number, parent in enumerate(parents):
            if parent == row - 1 and not matcher.done and matcher.advance(drafts[number : number + 1]):
                fill(number + 1)
                matcher.rollback(1)
                filled.add(number)

    filled: set[int] = set()
    fill(0)
    for number, parent in enumerate(parents):
        if number not in filled:
            masks[number + 1] = masks[parent + 1]
    return masks
