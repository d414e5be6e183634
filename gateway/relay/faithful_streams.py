"""Faithful streams: the requests for which a stream carries everything that a whole answer would.

Every field of the request has to be one that leaves a stream complete (STREAMABLE_FIELDS); and only workers with
complete streams are sent such a request (`streams_whole` of their adapter).

Requests with tools are left out. Engines parse tool calls of a stream with another parser than those of a whole
text, and with other results: for a call that is cut off or is not JSON, and for the text beside a call.
"""

import re

from gateway.domain.request import InferenceRequest

STREAMABLE_FIELDS = frozenset(
    {
        "add_generation_prompt",
        "cache_control",
        "chat_template_kwargs",
        "continue_final_message",
        "ebnf",
        "frequency_penalty",
        "function_call",
        "functions",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "ignore_eos",
        "include_stop_str_in_output",
        "json_schema",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "min_p",
        "min_tokens",
        "model",
        "n",
        "no_stop_trim",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "regex",
        "repetition_penalty",
        "response_format",
        "safety_identifier",
        "seed",
        "separate_reasoning",
        "service_tier",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "store",
        "stream",
        "structured_outputs",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
    }
)
TOOLS = ("tools", "functions")
_NO_TOOLS = re.compile(rb"\s*(?:null|\[\s*\])\s*")


def has_faithful_stream(request: InferenceRequest) -> bool:
    """Return whether a stream of the answer would carry everything that the whole answer would."""
    fields = request.fields
    if not request.generates or not fields.keys() <= STREAMABLE_FIELDS:
        return False
    return not any(name in fields and not _NO_TOOLS.fullmatch(fields[name]) for name in TOOLS)
