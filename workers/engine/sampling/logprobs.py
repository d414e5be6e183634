"""Log probabilities of sampled tokens by the model's own logits: before mask, penalties, temperature, as in vLLM.

They are read in two steps: the logits of rows with log probabilities are kept before the processors change them,
and looked up once the token is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.engine.sampling.sampling_row import SamplingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token's natural log probability, and those of the likeliest tokens at its position."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens and their log probabilities, best first."""


class LogprobReader:
    """The raw log probabilities of the rows that include them."""

    def __init__(self, logits: Tensor, rows: Sequence[SamplingRow]) -> None:
        """Copy the needed rows of `logits` [rows, vocab], which may be changed afterwards."""
        tops = {place: row.params.logprobs for place, row in enumerate(rows)}
        self._tops = {place: top for place, top in tops.items() if top is not None}
        self._at = {place: number for number, place in enumerate(self._tops)}
        if self._at:
            index = torch.tensor(list(self._at), device=logits.device)
            self._logprobs = logits[index].log_softmax(dim=-1)

    def read(self, places: Sequence[int], tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """Return one entry for each of `tokens`, sampled from the rows `places`; none if not requested."""
        return tuple(
            self._of(place, token) for place, token in zip(places, tokens, strict=True) if place in self._at
        )

    def _of(self, place: int, token: int) -> TokenLogprob:
        row = self._logprobs[self._at[place]]
        best = row.topk(min(self._tops[place], len(row)))
        return TokenLogprob(
            token=token,
            logprob=float(row[token]),
            top=tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)),
        )
