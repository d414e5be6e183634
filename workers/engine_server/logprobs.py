"""The JSON of log probabilities, in the two shapes that OpenAI has for them.

chat    {"content": [{"token": " the", "bytes": [32, ...], "logprob": -0.1, "top_logprobs": [...]}]}
text    {"tokens": [" the"], "token_logprobs": [-0.1], "top_logprobs": [{" the": -0.1}], "text_offset": [0]}
"""

from collections.abc import Sequence
from typing import Any

from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.tokenization.token_bytes import PieceTable

Json = dict[str, Any]

LOGPROB_MIN = -9999.0
"""What stands for a token that was impossible: JSON has no infinity. OpenAI's number, and vLLM's."""


def of_chat(logprobs: Sequence[TokenLogprob], pieces: PieceTable) -> Json:
    """Of some tokens of a chat."""
    return {
        "content": [
            {
                **_entry(one.token, one.logprob, pieces),
                "top_logprobs": [_entry(token, value, pieces) for token, value in one.top],
            }
            for one in logprobs
        ],
        "refusal": None,
    }


def of_text(logprobs: Sequence[TokenLogprob], pieces: PieceTable, offset: int) -> Json:
    """Of some tokens of a completion, the first of which begins at character `offset` of the answer."""
    texts = [_text(one.token, pieces) for one in logprobs]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(one.logprob, LOGPROB_MIN) for one in logprobs],
        # The token itself is among them, also where it is not among the likeliest.
        "top_logprobs": [
            {
                _text(token, pieces): max(value, LOGPROB_MIN)
                for token, value in (*one.top, (one.token, one.logprob))
            }
            for one in logprobs
        ],
        "text_offset": offsets,
    }


def text_length(logprobs: Sequence[TokenLogprob], pieces: PieceTable) -> int:
    """Characters of these tokens."""
    return sum(len(_text(one.token, pieces)) for one in logprobs)


def _entry(token: int, logprob: float, pieces: PieceTable) -> Json:
    return {
        "token": _text(token, pieces),
        "logprob": max(logprob, LOGPROB_MIN),
        "bytes": list(pieces.written(token)),
    }


def _text(token: int, pieces: PieceTable) -> str:
    return pieces.written(token).decode(errors="replace")
