"""One row of a sampling batch: the parameters that, with the logits, decide which token is sampled.

    tokens   [ prompt ........ | output .... ]      num_prompt: where the output begins
    drafts                                   [ d0 d1 ]

The token sampled for a row comes after its tokens and drafts. A sequence with drafts has one row for each draft
and one more, each with the drafts before it: so every processor gets the history of plain decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.engine.sampling.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """The parameters that, with the logits, decide which token is sampled at one position of one sequence."""

    params: SamplingParams
    tokens: Sequence[int] = ()
    """Prompt and output so far."""
    num_prompt: int = 0
    """How many of `tokens` are the prompt."""
    drafts: Sequence[int] = ()
    """The draft tokens between `tokens` and this position."""
    end_ids: frozenset[int] = frozenset()
    """Tokens that would end the sequence."""
    allowed: Tensor | None = None
    """A grammar's bit mask, int32 [ceil(vocab / 32)], least significant bit first; None allows all."""
    uniform: float = 0.0
    """The random number in [0, 1) that draws the token."""

    @property
    def num_generated(self) -> int:
        """The number of output tokens before this position, drafts included."""
        return len(self.tokens) - self.num_prompt + len(self.drafts)

    @property
    def must_continue(self) -> bool:
        """Whether `min_tokens` does not allow the sequence to end here."""
        return self.num_generated < self.params.min_tokens
