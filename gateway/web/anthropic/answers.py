"""ChatCompletion completions to messages: whole answers, and the values that streams share with them."""

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
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

CUT, OUT_OF_CONTEXT = "max_tokens", "model_context_window_exceeded"
"""Of what is too long: for the client's bound, for what its context has left."""

UNSAID: Json = {"content": [], "stop_reason": CUT, "stop_sequence": None}
"""Of a message that was to warm a cache: the token that it took is not told, but counted."""


def message(chat: ChatCompletion, message_id: str, asked_stops: Collection[str], cut: str = CUT) -> Json:
    """The message of a whole answer. `cut`: why it may be too short. Raises WorkerError when there is none."""
    if not chat.choices or chat.choices[0].message is None:
        raise WorkerError
    choice = chat.choices[0]
    said = choice.message
    assert said is not None
    calls = said.tool_calls or []
    content: list[Json] = []
    if said.reasoning_text:
        content.append({"type": "thinking", "thinking": said.reasoning_text, "signature": ""})
    if said.has_text:
        content.append({"type": "text", "text": said.text, "citations": None})
    content += _tool_uses(calls)
    reason, stop = stopped(choice.finish_reason, choice.stop_text, asked_stops, cut, called=bool(calls))
    return opening(message_id, chat.model) | {
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage(chat.parsed_usage or TokenUsage(prompt_tokens=0)),
    }


def opening(message_id: str, model: str) -> Json:
    """What a message is before anything is said."""
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
    for at, call in enumerate(calls):
        try:
            given = msgspec.json.decode(call.function.arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            # Cut short by max_tokens, or no JSON at all: the client sees what there is.
            given = {"arguments": call.function.arguments}
        if not isinstance(given, dict):
            given = {"arguments": given}
        yield {
            "type": "tool_use",
            "id": call.id or f"toolu_{at}",
            "name": call.function.name or "",
            "input": given,
        }


def stopped(
    finish: str | None, stop_text: str | None, asked: Collection[str], cut: str, *, called: bool
) -> tuple[str | None, str | None]:
    """`stop_reason` and `stop_sequence`. A worker that stops on its own account does so at no sequence of ours."""
    if called and finish == "stop":
        return "tool_use", None  # engines say so of a call that was demanded
    if finish == "stop" and stop_text in asked:
        return "stop_sequence", stop_text
    if finish == "length":
        return cut, None
    return STOP_REASONS.get(finish or "", "end_turn"), None


def usage(counted: TokenUsage) -> Json:
    """`input_tokens` are those that were not read from a cache."""
    cached = counted.cached_tokens or 0
    return {
        "input_tokens": counted.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": counted.completion_tokens or 0,
    }


LIMITS = {
    f"x-ratelimit-{what}-{kind}": f"anthropic-ratelimit-{kind}-{what}"
    for what in ("limit", "remaining", "reset")
    for kind in ("requests", "tokens", "input-tokens", "output-tokens")
}
_PART = re.compile(r"([0-9.]+)(ms|[smhd])")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def headers(headers: dict[str, str], now: datetime) -> dict[str, str]:
    """Anthropic's names for what stands under OpenAI's: `request-id`, and resets as points in time (RFC 3339)."""
    renamed = {LIMITS.get(name, name): value for name, value in headers.items()}
    for name, value in renamed.items():
        if name.startswith("anthropic-ratelimit") and name.endswith("-reset"):
            renamed[name] = instant(now + timedelta(seconds=seconds(value)))
    renamed.pop("openai-processing-ms", None)
    if "x-request-id" in renamed:
        renamed["request-id"] = renamed["x-request-id"]
    return renamed


def seconds(duration: str) -> float:
    """Of 12ms, 1.5s, 6m0s."""
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration))


def instant(when: datetime) -> str:
    """As RFC 3339 writes it."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
