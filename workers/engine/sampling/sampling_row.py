"""One row of logits, and all that decides which token it becomes.

    tokens   [ prompt ........ | output .... ]      num_prompt says where the output begins
    drafts                                   [ d0 d1 ]

The row gives the token that comes after tokens and drafts. A sequence that speculates has one row for each draft
and one more, each with the drafts before it: so every processor sees the history that plain decoding would see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.engine.sampling.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """`uniform` is its chance in [0, 1); the tokens in `end_ids` would end the sequence."""

    params: SamplingParams
    tokens: Sequence[int] = ()
    num_prompt: int = 0
    drafts: Sequence[int] = ()
    end_ids: frozenset[int] = frozenset()
    allowed: Tensor | None = None
    """A grammar's bit mask, int32 [ceil(vocab / 32)], least significant bit first; None allows all."""
    uniform: float = 0.0

    @property
    def num_generated(self) -> int:
        """Tokens of the output so far, drafts among them."""
        return len(self.tokens) - self.num_prompt + len(self.drafts)

    @property
    def must_continue(self) -> bool:
        """Is it too early to end?"""
        return self.num_generated < self.params.min_tokens
