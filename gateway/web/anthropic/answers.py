"""Answers of Anthropic's Messages API, made from chat completions: message objects and usage."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from gateway.domain.errors import WorkerError
from gateway.domain.token_usage import TokenUsage
from gateway.web.openai.chat_completions import ChatCompletion, ChatToolCall

Json = dict[str, Any]

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

MAX_TOKENS, CONTEXT_EXCEEDED = "max_tokens", "model_context_window_exceeded"
"""`stop_reason` of an answer that reached the client's bound, or the end of the model's context."""

SIGNATURE = "unsigned"
"""The signature of thinking. Workers need none, but several clients send back only signed thinking."""

NO_CONTENT: Json = {"content": [], "stop_reason": MAX_TOKENS, "stop_sequence": None}
"""The answer to a request that only warms the cache: the generated token is counted, but not shown."""


def message_object(
    chat: ChatCompletion, message_id: str, asked_stops: Collection[str], length_reason: str = MAX_TOKENS
) -> Json:
    """Return the message of a whole chat completion. Raises WorkerError if the completion has no message.

    Args:
        chat: The chat completion.
        message_id: Id of the message.
        asked_stops: The stop sequences of the request.
        length_reason: `stop_reason` of an answer that reached its length limit.
    """
    if not chat.choices or chat.choices[0].message is None:
        raise WorkerError
    choice = chat.choices[0]
    message = choice.message
    assert message is not None
    calls = message.tool_calls or []
    content: list[Json] = []
    if message.reasoning_text:
        content.append({"type": "thinking", "thinking": message.reasoning_text, "signature": SIGNATURE})
    if message.has_text:
        content.append({"type": "text", "text": message.text})
    content += _tool_uses(calls)
    reason, stop = stop_fields(
        choice.finish_reason, choice.stop_text, asked_stops, length_reason, has_calls=bool(calls)
    )
    return new_message(message_id, chat.model) | {
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage_object(chat.parsed_usage or TokenUsage(prompt_tokens=0)),
    }


def new_message(message_id: str, model: str) -> Json:
    """Return a message that has no content yet."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _tool_uses(calls: Iterable[ChatToolCall]) -> Iterable[Json]:
    """Yield the content block of each tool call."""
    for index, call in enumerate(calls):
        try:
            given = msgspec.json.decode(call.function.arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            # Arguments that were cut short, or are not JSON, are passed to the client as they are.
            given = {"arguments": call.function.arguments}
        if not isinstance(given, dict):
            given = {"arguments": given}
        yield {
            "type": "tool_use",
            "id": call.id or f"toolu_{index}",
            "name": call.function.name or "",
            "input": given,
        }


def stop_fields(
    finish_reason: str | None,
    stop_text: str | None,
    asked_stops: Collection[str],
    length_reason: str,
    *,
    has_calls: bool,
) -> tuple[str | None, str | None]:
    """Return `stop_reason` and `stop_sequence` of a message.

    Args:
        finish_reason: Why the chat completion ended.
        stop_text: The stop string that the worker reports.
        asked_stops: The stop sequences of the request; a worker may have stop strings of its own.
        length_reason: `stop_reason` of an answer that reached its length limit.
        has_calls: Whether the answer has tool calls.
    """
    if has_calls and finish_reason == "stop":
        return "tool_use", None  # engines report `stop` for a call that `tool_choice` required
    if finish_reason == "stop" and stop_text in asked_stops:
        return "stop_sequence", stop_text
    if finish_reason == "length":
        return length_reason, None
    return STOP_REASONS.get(finish_reason or "", "end_turn"), None


def usage_object(usage: TokenUsage) -> Json:
    """Return token counts in the shape of the Messages API; `input_tokens` excludes cached tokens."""
    cached = usage.cached_tokens or 0
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens or 0,
    }
