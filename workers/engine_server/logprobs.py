"""The JSON of log probabilities, in the two shapes that OpenAI has for them.

chat    {"content": [{"token": " the", "bytes": [32, ...], "logprob": -0.1, "top_logprobs": [...]}]}
text    {"tokens": [" the"], "token_logprobs": [-0.1], "top_logprobs": [{" the": -0.1}], "text_offset": [0]}
"""

from collections.abc import Sequence
from typing import Any

from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.tokenization.token_bytes import TokenBytes

Json = dict[str, Any]

LOGPROB_MIN = -9999.0
"""The log probability written for a token that was impossible, because JSON has no infinity: OpenAI and vLLM write
the same number."""


def chat_logprobs(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> Json:
    """Return the log probabilities of some tokens in the shape of a chat completion."""
    return {
        "content": [
            {
                **_entry(one.token, one.logprob, token_bytes),
                "top_logprobs": [_entry(token, value, token_bytes) for token, value in one.top],
            }
            for one in logprobs
        ],
        "refusal": None,
    }


def completion_logprobs(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes, offset: int) -> Json:
    """Return the log probabilities of some tokens in the shape of a text completion.

    Args:
        logprobs: One entry for each token.
        token_bytes: The text of each token of the vocabulary.
        offset: The character of the answer at which the first of the tokens begins.
    """
    texts = [_text(one.token, token_bytes) for one in logprobs]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(one.logprob, LOGPROB_MIN) for one in logprobs],
        # The sampled token is included even where it is not one of the most likely tokens.
        "top_logprobs": [
            {
                _text(token, token_bytes): max(value, LOGPROB_MIN)
                for token, value in (*one.top, (one.token, one.logprob))
            }
            for one in logprobs
        ],
        "text_offset": offsets,
    }


def text_length(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> int:
    """Return how many characters these tokens have."""
    return sum(len(_text(one.token, token_bytes)) for one in logprobs)


def _entry(token: int, logprob: float, token_bytes: TokenBytes) -> Json:
    return {
        "token": _text(token, token_bytes),
        "logprob": max(logprob, LOGPROB_MIN),
        "bytes": list(token_bytes.written_bytes(token)),
    }


def _text(token: int, token_bytes: TokenBytes) -> str:
    return token_bytes.written_bytes(token).decode(errors="replace")
