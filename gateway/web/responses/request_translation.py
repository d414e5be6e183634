"""Decodes requests of the Responses API, and translates them to chat completion requests."""

from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import InferenceRequest, Surface
from gateway.web.bodies.typed_bodies import decode_typed_body
from gateway.web.openai.inference_requests import decode_openai_request
from gateway.web.responses import wire
from gateway.web.responses.messages import chat_messages
from gateway.web.responses.tools import ChatTools

Json = dict[str, Any]

_NOT_PASSED = wire.TRANSLATED_FIELDS | wire.IGNORED_FIELDS

_BODY = msgspec.json.Decoder(wire.ResponsesBody)
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests log probabilities."""
ENCODED_REASONING = "reasoning.encrypted_content"
"""The value of `include` that requests reasoning in a form that the client can send back."""


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the Responses API, and the chat completion request that it becomes."""

    body: wire.ResponsesBody
    chat: InferenceRequest
    tools: ChatTools
    context: list[Json]
    """All items of the conversation, up to the request's own input."""
    own_from: int
    """Index in `context` of the first item of the request's own input."""

    @property
    def encodes_reasoning(self) -> bool:
        """Whether reasoning items have `encrypted_content`."""
        return ENCODED_REASONING in (self.body.include or ())


def decode_responses_body(body: bytes) -> tuple[wire.ResponsesBody, dict[str, msgspec.Raw]]:
    """Return the decoded body, and its fields as raw JSON. Raises BadRequest that names the field."""
    read, fields = decode_typed_body(body, _BODY)
    if read.prompt is not None:
        raise BadRequest("prompt is not supported; send the items themselves.", param="prompt")
    if read.conversation is not None and read.previous_response_id is not None:
        raise BadRequest(
            "A request has either a conversation or a previous_response_id.", param="previous_response_id"
        )
    return read, dict(fields)


def to_chat_request(
    read: wire.ResponsesBody, fields: dict[str, msgspec.Raw], previous: list[Json], own: list[Json]
) -> ResponseRequest:
    """Return the chat completion request that continues a conversation.

    Args:
        read: The decoded body.
        fields: The fields of the body as raw JSON; those that are not translated pass unchanged.
        previous: The items of the conversation before this request.
        own: The items of this request's own input.

    Raises:
        BadRequest: The conversation is empty, has nothing that a model reads, or an item that cannot be translated.
    """
    if not own and not previous:
        raise BadRequest("The request must have an input.", param="input")
    context = [*previous, *own]
    chat: Json = {name: value for name, value in fields.items() if name not in _NOT_PASSED}
    messages = chat_messages(context, read.instructions, len(previous))
    if not messages:
        raise BadRequest("The input has calls of hosted tools alone, which no model reads.", param="input")
    chat |= {"model": read.model, "messages": messages}
    if read.max_output_tokens is not None:
        chat["max_completion_tokens"] = read.max_output_tokens
    if read.stream or read.background:
        # A background response is always streamed by the worker, so that clients can follow it.
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if LOGPROBS in (read.include or ()):
        chat |= {"logprobs": True, "top_logprobs": fields.get("top_logprobs", 0)}
    tools = ChatTools(read.tools)
    chat |= tools.chat_fields(read.tool_choice) | _format_fields(read)
    if "tools" in chat and read.parallel_tool_calls is not None:
        chat["parallel_tool_calls"] = read.parallel_tool_calls
    request = decode_openai_request(Surface.CHAT, msgspec.json.encode(chat))
    return ResponseRequest(body=read, chat=request, tools=tools, context=context, own_from=len(previous))


def _format_fields(read: wire.ResponsesBody) -> Json:
    """Return the fields of the chat request that set the format of the answer."""
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
