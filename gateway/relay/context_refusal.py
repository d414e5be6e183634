"""Recognises an engine's refusal of a request that does not fit its context.

Clients shorten their conversation when they read OpenAI's code `context_length_exceeded` or Anthropic's words.
Engines send neither: each has texts of its own, which PATTERNS lists with the numbers in them.
"""

import re
from collections.abc import Collection

from gateway.domain.errors import ContextExceeded

CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""Codes and types that always mean such a refusal: OpenAI's own, and llama.cpp's type."""

PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # vLLM, which does not count the tokens of a text that has far too many characters
        r"maximum context length is (?P<context>\d+) tokens.*requested (?P<answer>\d+) output tokens and your "
        r"prompt contains \d+ characters",
        r"passed \d+ input characters and requested (?P<answer>\d+) output tokens.*context length is only "
        r"(?P<context>\d+) tokens",
        r"max_\w*tokens=(?P<answer>\d+) ?cannot be greater than max_model_len=\D*(?P<context>\d+)",
        r"maximum context length is (?P<context>\d+) tokens.*requested (?P<answer>\d+) output tokens and your "
        r"prompt contains (?:at least )?(?P<prompt>\d+)",
        r"maximum context length is (?P<context>\d+) tokens.*has (?P<prompt>\d+) input tokens \((?P<answer>\d+) >",
        r"maximum context length is (?P<context>\d+) tokens.*?(?:has|resulted in) (?P<prompt>\d+) (?:input )?"
        r"tokens",
        # vLLM before 0.9, and llama-cpp-python
        r"maximum context length is (?P<context>\d+) tokens.*\((?P<prompt>\d+) (?:tokens )?in (?:the|your) "
        r"(?:messages|prompt)[,;] (?P<answer>\d+) (?:tokens )?(?:in|for) the completion",
        r"passed (?P<prompt>\d+) input tokens and requested (?P<answer>\d+) output tokens.*context length is only "
        r"(?P<context>\d+) tokens",
        r"prompt \(length (?P<prompt>\d+)\) is longer than the maximum model length of (?P<context>\d+)",
        r"max_tokens must be at least 1, got -\d+",
        # SGLang
        r"input \((?P<prompt>\d+) tokens\) is longer than the model's context length \((?P<context>\d+) tokens\)",
        r"exceeds the model's maximum context length of (?P<context>\d+) tokens.*: (?P<prompt>\d+) tokens from the "
        r"input messages and (?P<answer>\d+) tokens for the completion",
        r"input length \((?P<prompt>\d+) tokens\) exceeds the maximum allowed length \((?P<context>\d+) tokens\)",
        # llama.cpp, and llama-cpp-python
        r"request \((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<context>\d+) tokens\)",
        r"exceeds the available context size",
        r"requested tokens \((?P<prompt>\d+)\) exceed context window of (?P<context>\d+)",
        # TGI
        r"inputs` tokens \+ `max_new_tokens` must be <= (?P<context>\d+)\. Given: (?P<prompt>\d+) `inputs` tokens "
        r"and (?P<answer>\d+)",
        r"inputs` must have less than (?P<context>\d+) tokens\. Given: (?P<prompt>\d+)",
        # TensorRT-LLM
        r"sum of prompt length \((?P<prompt>\d+)(?:\.\d+)?\), query length \(\d+(?:\.\d+)?\).* should not exceed "
        r"max_num_tokens \((?P<context>\d+)\)",
        r"default_max_tokens`? \(-?\d+\) should be greater than 0.*max_seq_len \((?P<context>\d+)\) - "
        r"`?splited_prompt_len`? \((?P<prompt>\d+)\)",
        r"prompt length \((?P<prompt>\d+)\) exceeds maximum input length \((?P<context>\d+)\)",
        # Ollama
        r"input length exceeds the context length",
        r"prompt too long; exceeded (?:max )?context length",
        # Others, in OpenAI's words
        r"maximum context length is (?P<context>\d+) tokens",
        r"exceeds (?:the )?model's (?:maximum )?context length",
    )
)
"""The texts of engines, the most specific first: tokens of the prompt, of the answer, of the context."""


def context_refusal(
    message: str, codes: Collection[str | int | None] = (), param: str | None = None
) -> ContextExceeded | None:
    """Return the error for a worker's refusal because of the context; None for any other refusal.

    Args:
        message: The worker's words.
        codes: The worker's code and type of the error.
        param: The request field that the worker names.
    """
    found = next((match for pattern in PATTERNS if (match := pattern.search(message))), None)
    if found is None and CODES.isdisjoint(codes):
        return None
    numbers = {name: int(text) for name, text in found.groupdict().items() if text} if found else {}
    return ContextExceeded(
        message,
        param=param,
        prompt_tokens=numbers.get("prompt"),
        output_tokens=numbers.get("answer"),
        context_length=numbers.get("context"),
    )
