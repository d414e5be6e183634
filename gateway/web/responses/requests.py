"""A body of the Responses API to a chat request."""

from typing import Any

import msgspec

from gateway.errors import BadRequest
from gateway.request import InferenceRequest, Surface
from gateway.web import json_bodies, openai
from gateway.web.responses import items, wire

Json = dict[str, Any]

_BODY = msgspec.json.Decoder(wire.Body)
LOGPROBS = "message.output_text.logprobs"


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`context`: all items of the conversation; this request's own begin at `own_from`."""

    body: wire.Body
    chat: InferenceRequest
    context: list[Json]
    own_from: int


def read_body(body: bytes) -> tuple[wire.Body, dict[str, msgspec.Raw]]:
    """The body, and its fields as they came. Raises BadRequest that names the field."""
    read, fields = json_bodies.read(body, _BODY)
    for name in ("conversation", "prompt"):
        if getattr(read, name) is not None:
            raise BadRequest(f"{name} is not supported; send the items themselves.", param=name)
    return read, dict(fields)


def chat_request(
    read: wire.Body, fields: dict[str, msgspec.Raw], before: list[Json], own: list[Json]
) -> ResponseRequest:
    """The chat that goes on after these items with the request's own. Raises BadRequest."""
    if not own and not before:
        raise BadRequest("The request must have an input.", param="input")
    context = [*before, *own]
    chat: Json = {name: value for name, value in fields.items() if name not in wire.OWN}
    chat |= {"model": read.model, "messages": items.messages(context, read.instructions, len(before))}
    if read.max_output_tokens is not None:
        chat["max_completion_tokens"] = read.max_output_tokens
    if read.stream or read.background:
        # In the background it is read as it comes, so that others can follow.
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if LOGPROBS in (read.include or ()):
        chat |= {"logprobs": True, "top_logprobs": fields.get("top_logprobs", 0)}
    chat |= _tools(read) | _shape(read)
    request = openai.decode(Surface.CHAT, msgspec.json.encode(chat))
    return ResponseRequest(body=read, chat=request, context=context, own_from=len(before))


def _tools(read: wire.Body) -> Json:
    if not read.tools:
        return {}
    tools, choice = read.tools, read.tool_choice
    chat: Json = {}
    if isinstance(choice, wire.AllowedTools):
        # No engine has this; one that does not know of the others cannot call them.
        tools, choice = _allowed(tools, choice), choice.mode
    if isinstance(choice, wire.FunctionChoice):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        chat["tool_choice"] = choice
    chat["tools"] = [_tool(tool) for tool in tools]
    if read.parallel_tool_calls is not None:
        chat["parallel_tool_calls"] = read.parallel_tool_calls
    return chat


def _allowed(tools: list[wire.FunctionTool], choice: wire.AllowedTools) -> list[wire.FunctionTool]:
    names = {tool.name for tool in choice.tools}
    if not names or not names <= {tool.name for tool in tools}:
        raise BadRequest(
            "tool_choice allows tools that are not in tools, or none.", param="tool_choice.tools"
        )
    return [tool for tool in tools if tool.name in names]


def _tool(tool: wire.FunctionTool) -> Json:
    function: Json = {
        "name": tool.name,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    more = {"description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": function | {k: v for k, v in more.items() if v is not None}}


def _shape(read: wire.Body) -> Json:
    """What the answer has to look like."""
    chat: Json = {}
    form = read.text.format if read.text is not None else None
    if form is not None and form.type == "json_schema":
        if form.schema is None:
            raise BadRequest("text.format must have a schema.", param="text.format.schema")
        schema: Json = {"name": form.name or "answer", "schema": form.schema}
        schema |= {"description": form.description, "strict": form.strict}
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {name: value for name, value in schema.items() if value is not None},
        }
    elif form is not None and form.type == "json_object":
        chat["response_format"] = {"type": "json_object"}
    if read.text is not None and read.text.verbosity is not None:
        chat["verbosity"] = read.text.verbosity
    if read.reasoning is not None and read.reasoning.effort is not None:
        chat["reasoning_effort"] = read.reasoning.effort
    return chat
