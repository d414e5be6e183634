"""Answers of the Responses API, made from chat completions: response objects, output items and their parts."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.domain.errors import GatewayError, WorkerError
from gateway.domain.token_usage import TokenUsage
from gateway.web.openai.chat_completions import ChatChoice, ChatCompletion
from gateway.web.responses import wire
from gateway.web.responses.items import encoded_text, new_item_id
from gateway.web.responses.tools import ChatTools, ClientTool, input_text_of

Json = dict[str, Any]

ECHOED_FIELDS = (
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "top_logprobs",
    "user",
)
"""Fields of the request that the response repeats unchanged."""

FIELD_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""The names in the Responses API of fields of the chat completion request, for error messages."""

INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reason why a response is incomplete, by `finish_reason` of the chat completion."""


def new_response(
    identity: str,
    created: float,
    read: wire.ResponsesBody,
    tools: Sequence[wire.ResponsesTool],
    *,
    stored: bool,
) -> Json:
    """Return the response object of a request before it has any output.

    Args:
        identity: Id of the response.
        created: Unix time in seconds.
        read: The body of the request.
        tools: The tools that the model is offered.
        stored: Whether the response will be stored.
    """
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
        "tool_choice": read.tool_choice or "auto",
        "tools": msgspec.to_builtins(tools),
        "top_p": read.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": read.metadata or {},
        **{name: getattr(read, name) for name in ECHOED_FIELDS},
    }


def finished_response(
    response: Json, output: list[Json], finish_reason: str | None, usage: TokenUsage | None, now: float
) -> Json:
    """Return the response with its output, as completed or incomplete.

    Args:
        response: The response object without output.
        output: The output items.
        finish_reason: Why the chat completion ended.
        usage: The token counts of the worker, if it sent any.
        now: Unix time in seconds.
    """
    reason = INCOMPLETE_REASONS.get(finish_reason or "")
    return response | {
        "output": output,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "completed_at": None if reason else int(now),
        "usage": usage_object(usage) if usage is not None else None,
    }


def failed_response(response: Json, error: GatewayError) -> Json:
    """Return the response as failed, without output."""
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    message, _ = error.message_and_param(FIELD_NAMES)
    return response | {"status": "failed", "error": {"code": code, "message": message}}


def output_items(
    chat: ChatCompletion, response: str, tools: ChatTools, *, encodes_reasoning: bool = False
) -> tuple[list[Json], ChatChoice]:
    """Return the output items of a whole chat completion, and the choice that they come from.

    Args:
        chat: The chat completion.
        response: Id of the response.
        tools: The tools of the request.
        encodes_reasoning: Whether reasoning items have `encrypted_content`.

    Raises:
        WorkerError: The chat completion has no message.
    """
    if not chat.choices or chat.choices[0].message is None:
        raise WorkerError
    choice = chat.choices[0]
    message = choice.message
    assert message is not None
    output = []
    if message.reasoning_text:
        identity = new_item_id("reasoning", response)
        output.append(reasoning_item(identity, message.reasoning_text, encoded=encodes_reasoning))
    if message.has_text:
        refuses = message.refusal and not message.content
        part = refusal_part(message.text) if refuses else text_part(message.text, choice.token_logprobs)
        output.append(message_item(new_item_id("message", response), [part]))
    for index, call in enumerate(message.tool_calls or ()):
        tool = tools.find(call.function.name or "")
        identity = new_item_id(tool.item_type, response)
        output.append(
            tool_call_item(identity, call.id or f"call_{index}", tool, call.function.arguments or "")
        )
    output[-1:] = [ended_item(item, choice.finish_reason) for item in output[-1:]]
    return output, choice


def ended_item(item: Json, finish_reason: str | None) -> Json:
    """Return the last output item of an answer, marked as incomplete if the answer is incomplete."""
    return (
        item | {"status": "incomplete"} if finish_reason in INCOMPLETE_REASONS and "status" in item else item
    )


def message_item(identity: str, content: list[Json], status: str = "completed") -> Json:
    """Return a message item of the assistant."""
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(text: str, logprobs: list[Any] | None = None) -> Json:
    """Return the content part of a message that holds a text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def refusal_part(text: str) -> Json:
    """Return the content part of a message in which the model refuses."""
    return {"type": "refusal", "refusal": text}


def reasoning_item(identity: str, text: str, *, encoded: bool = False) -> Json:
    """Return a reasoning item; without a text it has no content yet.

    With `encoded` the item also has its text as `encrypted_content`, for clients that keep the conversation
    themselves and send it back.
    """
    return {
        "id": identity,
        "type": "reasoning",
        "summary": [],
        "content": [reasoning_part(text)] if text else [],
        **({"encrypted_content": encoded_text(text)} if encoded else {}),
    }


def reasoning_part(text: str) -> Json:
    """Return the content part of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def tool_call_item(
    identity: str, call_id: str, tool: ClientTool, arguments: str, status: str = "completed"
) -> Json:
    """Return the item of a tool call, of a function or of a tool that takes a text."""
    given = {"input": input_text_of(arguments)} if tool.takes_text else {"arguments": arguments}
    return {
        "id": identity,
        "type": tool.item_type,
        "status": status,
        "call_id": call_id,
        "name": tool.name,
        **({"namespace": tool.namespace} if tool.namespace is not None else {}),
        **given,
    }


def usage_object(usage: TokenUsage) -> Json:
    """Return token counts as the Responses API names them."""
    output = usage.completion_tokens or 0
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + output,
    }
