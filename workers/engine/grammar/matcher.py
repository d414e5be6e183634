"""Where one answer stands in its grammar: which tokens may follow, and what followed.

    mask(row)        which tokens may come next          one bit each; an end only where the grammar may end
    advance(tokens)  they came                           stops at the first one that was not allowed
    rollback(n)      the last n did not come after all   drafts that were tried and rejected

The engine advances a matcher by every token that it keeps. Whoever tries drafts advances it further for a moment
and rolls back before the step ends (`masks_along`): between steps it stands behind the last kept token.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

_WORD = 32


class Matcher(Protocol):
    """One answer's place in its grammar. Used by one thread at a time, and never raises once it was made."""

    @property
    def vocab_size(self) -> int:
        """Tokens that a mask speaks of."""
        ...

    @property
    def done(self) -> bool:
        """Can no token follow any more? True after an end, when the grammar is complete, and after a failure."""
        ...

    def mask(self, row: Tensor) -> None:
        """Set the bits of the tokens that may follow in `row`, int32 [mask_words(vocab_size)] on the CPU.

        No bit is set where nothing may follow.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> int:
        """Take tokens; how many of them, from the first, were allowed and taken."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens that were taken."""
        ...


def mask_words(vocab_size: int) -> int:
    """32-bit words of a mask."""
    return -(-vocab_size // _WORD)


def masks_along(matcher: Matcher, drafts: Sequence[int] = ()) -> tuple[Tensor, int]:
    """A mask for each of `drafts` and for the token after them, [drafts + 1, words]; and how many are valid.

    The rows behind a draft that the grammar rules out are copies of the row that rules it out: it is rejected with
    certainty, so they decide nothing. The matcher stands afterwards where it stood before.
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
