"""The logit processors: grammar masks, penalties and biases, applied to logits before the temperature.

    grammar mask -> repetition -> frequency, presence -> logit bias -> min_tokens

Each processor changes only the rows that use it, all of them at once; a row that uses none costs nothing.
Repetition is that of Keskar et al. 2019 (CTRL, section 4.1), over prompt and output; frequency and presence are
OpenAI's, over the output alone, as in vLLM. The bias comes after the penalties, as in SGLang.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from workers.engine.id_tensor import id_tensor
from workers.engine.sampling.sampling_row import SamplingRow

_WORD = 32


def apply_processors(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Change `logits` [rows, vocab] float32 in place by the parameters of each row."""
    _apply(_mask, logits, rows, [row.allowed is not None for row in rows])
    _apply(_penalise, logits, rows, [row.params.has_penalties for row in rows])
    _apply(_bias, logits, rows, [bool(row.params.logit_bias) for row in rows])
    _apply(_forbid_end, logits, rows, [row.must_continue and bool(row.end_ids) for row in rows])


def _apply(
    change: Callable[[Tensor, Sequence[SamplingRow]], Tensor],
    logits: Tensor,
    rows: Sequence[SamplingRow],
    used: Sequence[bool],
) -> None:
    places = [place for place, uses in enumerate(used) if uses]
    if places:
        index = torch.tensor(places, device=logits.device)
        logits[index] = change(logits[index], [rows[place] for place in places])


def _mask(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    words = torch.stack([row.allowed for row in rows if row.allowed is not None]).to(logits.device)
    bits = words[:, :, None] >> torch.arange(_WORD, device=logits.device, dtype=torch.int32)
    allowed = (bits & 1).bool().flatten(1)[:, : logits.shape[-1]]
    return logits.masked_fill(~allowed, -torch.inf)


def _penalise(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    output = _counts(logits, [chain(row.tokens[row.num_prompt :], row.drafts) for row in rows])
    prompt = _counts(logits, [row.tokens[: row.num_prompt] for row in rows])
    repetition = _column(logits, [row.params.repetition_penalty for row in rows])
    # A penalty above 1 makes a token less likely, whether its logit is positive or negative.
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where((output + prompt) > 0, repeated, logits)
    logits = logits - _column(logits, [row.params.frequency_penalty for row in rows]) * output
    return logits - _column(logits, [row.params.presence_penalty for row in rows]) * (output > 0)


def _bias(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    places = [place for place, row in enumerate(rows) for _ in row.params.logit_bias]
    tokens = [token for row in rows for token in row.params.logit_bias]
    biases = [bias for row in rows for bias in row.params.logit_bias.values()]
    return logits.index_put(
        (_ids(logits, places), _ids(logits, tokens)), logits.new_tensor(biases), accumulate=True
    )


def _forbid_end(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    places = [place for place, row in enumerate(rows) for _ in row.end_ids]
    tokens = [token for row in rows for token in row.end_ids]
    endless = logits.index_put((_ids(logits, places), _ids(logits, tokens)), logits.new_tensor(-torch.inf))
    # Where a grammar allows only the end, the answer ends although min_tokens is not reached.
    return torch.where(endless.isneginf().all(dim=-1, keepdim=True), logits, endless)


def _counts(logits: Tensor, histories: Sequence[Iterable[int]]) -> Tensor:
    """Return how often each token is in each history, [rows, vocab]."""
    counts = torch.zeros_like(logits)
    for place, history in enumerate(histories):
        tokens = _ids(logits, history)
        counts[place].index_add_(0, tokens, torch.ones_like(tokens, dtype=logits.dtype))
    return counts


def _ids(logits: Tensor, values: Iterable[int]) -> Tensor:
    return id_tensor(values, logits.device)


def _column(logits: Tensor, values: Sequence[float]) -> Tensor:
    return logits.new_tensor(values)[:, None]
