"""A body of the Responses API to a chat request."""

from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import InferenceRequest, Surface
from gateway.web.bodies import typed_bodies
from gateway.web.openai import inference_requests
from gateway.web.responses import items, wire
from gateway.web.responses.tools import ChatTools

Json = dict[str, Any]

_BODY = msgspec.json.Decoder(wire.ResponsesBody)
LOGPROBS = "message.output_text.logprobs"


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`context`: all items of the conversation; this request's own begin at `own_from`."""

    body: wire.ResponsesBody
    chat: InferenceRequest
    tools: ChatTools
    context: list[Json]
    own_from: int


def read_body(body: bytes) -> tuple[wire.ResponsesBody, dict[str, msgspec.Raw]]:
    """The body, and its fields as they came. Raises BadRequest that names the field."""
    read, fields = typed_bodies.read(body, _BODY)
    for name in ("conversation", "prompt"):
        if getattr(read, name) is not None:
            raise BadRequest(f"{name} is not supported; send the items themselves.", param=name)
    return read, dict(fields)


def chat_request(
    read: wire.ResponsesBody, fields: dict[str, msgspec.Raw], before: list[Json], own: list[Json]
) -> ResponseRequest:
    """The chat that goes on after these items with the request's own. Raises BadRequest."""
    if not own and not before:
        raise BadRequest("The request must have an input.", param="input")
    context = [*before, *own]
    chat: Json = {name: value for name, value in fields.items() if name not in wire.TRANSLATED_FIELDS}
    chat |= {"model": read.model, "messages": items.messages(context, read.instructions, len(before))}
    if read.max_output_tokens is not None:
        chat["max_completion_tokens"] = read.max_output_tokens
    if read.stream or read.background:
        # In the background it is read as it comes, so that others can follow.
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if LOGPROBS in (read.include or ()):
        chat |= {"logprobs": True, "top_logprobs": fields.get("top_logprobs", 0)}
    tools = ChatTools(read.tools)
    chat |= tools.chat(read.tool_choice) | _shape(read)
    if "tools" in chat and read.parallel_tool_calls is not None:
        chat["parallel_tool_calls"] = read.parallel_tool_calls
    request = inference_requests.decode_request(Surface.CHAT, msgspec.json.encode(chat))
    return ResponseRequest(body=read, chat=request, tools=tools, context=context, own_from=len(before))


def _shape(read: wire.ResponsesBody) -> Json:
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
