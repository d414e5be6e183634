"""ChatCompletion completions to responses: whole answers, and the objects that streams share with them."""

from typing import Any

import msgspec

from gateway.domain.errors import GatewayError, WorkerError
from gateway.telemetry.record import Usage
from gateway.web.openai.chat_completions import ChatCompletion, ChatChoice
from gateway.web.responses import wire
from gateway.web.responses.items import new_id
from gateway.web.responses.tools import ClientTool, ChatTools, input_text_of

Json = dict[str, Any]

SAID_AGAIN = (
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "top_logprobs",
    "user",
)
"""As they were asked for."""

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""What fields of the chat that it becomes are called here."""

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def opening(identity: str, created: float, read: wire.ResponsesBody, *, stored: bool) -> Json:
    """What a response is before anything is said."""
    text: Json = {"format": {"type": "text"}}
    if read.text is not None and read.text.format is not None:
        form = msgspec.structs.asdict(read.text.format)
        text["format"] = {name: value for name, value in form.items() if value is not None}
    if read.text is not None and read.text.verbosity is not None:
        text["verbosity"] = read.text.verbosity
    return {
        "id": identity,
        "object": "response",
        "created_at": int(created),
        "status": "queued" if read.background else "in_progress",
        "background": bool(read.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": read.instructions,
        "max_output_tokens": read.max_output_tokens,
        "model": read.model,
        "output": [],
        "parallel_tool_calls": read.parallel_tool_calls is not False,
        "previous_response_id": read.previous_response_id,
        "reasoning": {
            "effort": read.reasoning.effort if read.reasoning else None,
            "summary": read.reasoning.summary if read.reasoning else None,
        },
        "store": stored,
        "temperature": read.temperature,
        "text": text,
        "tool_choice": _tool_choice(read),
        "tools": msgspec.to_builtins(read.tools or []),
        "top_p": read.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": read.metadata or {},
        **{name: getattr(read, name) for name in SAID_AGAIN},
    }


def ended(response: Json, output: list[Json], finish: str | None, counted: Usage | None, now: float) -> Json:
    """The same response with its output. `finish`: why the chat ended."""
    reason = INCOMPLETE.get(finish or "")
    return response | {
        "output": output,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "completed_at": None if reason else int(now),
        "usage": usage(counted) if counted is not None else None,
    }


def failed(response: Json, error: GatewayError) -> Json:
    """The same response, which will have no output."""
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    message, _ = error.called(NAMES)
    return response | {"status": "failed", "error": {"code": code, "message": message}}


def output_of(chat: ChatCompletion, response: str, tools: ChatTools) -> tuple[list[Json], ChatChoice]:
    """The items of a whole answer, and its choice. `response`: its id. Raises WorkerError when there is none."""
    if not chat.choices or chat.choices[0].message is None:
        raise WorkerError
    choice = chat.choices[0]
    said = choice.message
    assert said is not None
    output = []
    if said.reasoning_text:
        output.append(reasoning(new_id("reasoning", response), said.reasoning_text))
    if said.has_text:
        output.append(message(new_id("message", response), [text(said.text, choice.token_logprobs)]))
    for at, made in enumerate(said.tool_calls or ()):
        tool = tools.called(made.function.name or "")
        identity = new_id(tool.kind, response)
        output.append(call(identity, made.id or f"call_{at}", tool, made.function.arguments or ""))
    return output, choice


def message(identity: str, content: list[Json], status: str = "completed") -> Json:
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": content}


def text(said: str, logprobs: list[Any] | None = None) -> Json:
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": logprobs or []}


def reasoning(identity: str, said: str) -> Json:
    return {"id": identity, "type": "reasoning", "summary": [], "content": [thought(said)] if said else []}


def thought(said: str) -> Json:
    return {"type": "reasoning_text", "text": said}


def call(identity: str, call_id: str, tool: ClientTool, arguments: str, status: str = "completed") -> Json:
    """Of a function, or of a tool that takes a text."""
    given = {"input": input_text_of(arguments)} if tool.takes_text else {"arguments": arguments}
    return {
        "id": identity,
        "type": tool.kind,
        "status": status,
        "call_id": call_id,
        "name": tool.name,
        **({"namespace": tool.namespace} if tool.namespace is not None else {}),
        **given,
    }


def usage(counted: Usage) -> Json:
    output = counted.completion_tokens or 0
    return {
        "input_tokens": counted.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counted.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
        "total_tokens": counted.prompt_tokens + output,
    }


def _tool_choice(read: wire.ResponsesBody) -> str | Json:
    if isinstance(read.tool_choice, msgspec.Struct):
        choice: Json = msgspec.to_builtins(read.tool_choice)
        return choice
    return read.tool_choice or "auto"
