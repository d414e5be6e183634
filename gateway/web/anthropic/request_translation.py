"""Requests of Anthropic's Messages API: a body is decoded and translated to a chat completion request.

    system, messages[] of blocks                     messages[]
      system text                          ->          system
      user [tool_result t1, text]          ->          tool t1, user
      assistant [thinking, text, tool_use] ->          assistant, with reasoning_content and tool_calls
      assistant [server_tool_use, result]  ->          assistant with tool_calls, tool: see server_tools.py
      system in the middle                 ->          part of the user's turn: many templates refuse it elsewhere
      assistant at the end                 ->          the same, with continue_final_message

Consecutive turns of one role are merged, as at Anthropic. Fields of engines alone pass unchanged.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import InferenceRequest, Surface
from gateway.web.anthropic import wire
from gateway.web.anthropic.server_tools import ServerToolResult, ServerToolUseBlock, readable
from gateway.web.anthropic.tools import tool_fields
from gateway.web.bodies.typed_bodies import decode_typed_body
from gateway.web.openai.inference_requests import decode_openai_request

BILLING = "x-anthropic-billing-header"
"""The first line of Claude Code's system prompt, which differs in each request. It is removed, because with it no
prefix of the prompt would ever be found in a cache."""

_MESSAGES = msgspec.json.Decoder(wire.MessagesBody)
_COUNT_TOKENS = msgspec.json.Decoder(wire.CountTokensBody)

Json = dict[str, Any]

_NOT_PASSED = wire.TRANSLATED_FIELDS | wire.IGNORED_FIELDS


class MessageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the Messages API, translated to a chat completion request."""

    chat: InferenceRequest
    stops: frozenset[str]
    """The stop sequences."""
    warms_cache: bool
    """Whether the request only warms the cache with its prompt, and gets no content."""
    omitted_tools: list[str]
    """Types of the tools that are left out."""


def decode_message_request(body: bytes) -> MessageRequest:
    """Return the request in a body of /v1/messages. Raises BadRequest that names the field."""
    read, fields = decode_typed_body(body, _MESSAGES)
    # Engines do not compute the prompt of a request for zero output tokens.
    chat = _chat(read, fields) | {"max_tokens": max(1, read.max_tokens)}
    tools, omitted_tools = tool_fields(read)
    chat |= tools
    if read.stop_sequences:
        chat["stop"] = read.stop_sequences
    if read.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if read.metadata is not None and read.metadata.user_id is not None:
        chat["user"] = read.metadata.user_id
    request = decode_openai_request(Surface.CHAT, msgspec.json.encode(chat))
    return MessageRequest(
        # As at Anthropic, since clients ask for more output than fits the context of most models here.
        chat=msgspec.structs.replace(request, accepts_shorter_answers=True),
        stops=frozenset(read.stop_sequences or ()),
        warms_cache=read.max_tokens == 0,
        omitted_tools=omitted_tools,
    )


def decode_count_request(body: bytes) -> InferenceRequest:
    """Return the request in a body of /v1/messages/count_tokens, which has no max_tokens. Raises BadRequest."""
    read, fields = decode_typed_body(body, _COUNT_TOKENS)
    return decode_openai_request(
        Surface.CHAT, msgspec.json.encode(_chat(read, fields) | tool_fields(read)[0])
    )


def _chat(read: wire.CountTokensBody, fields: Mapping[str, msgspec.Raw]) -> Json:
    """Return the fields of the chat request, without its tools and those that bound its answer."""
    chat: Json = {name: value for name, value in fields.items() if name not in _NOT_PASSED}
    chat |= {"model": read.model, "messages": _messages(read)}
    last = chat["messages"][-1] if read.messages else {"role": ""}
    if last["role"] == "assistant" and "tool_calls" not in last:
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    if read.mcp_servers:
        raise BadRequest(
            "mcp_servers: this gateway calls no MCP servers. Call them in the client, and offer their tools as "
            "functions.",
            param="mcp_servers",
        )
    config = read.output_config or wire.OutputConfig()
    form = config.format or read.output_format
    if form is not None:
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": form.schema, "strict": True},
        }
    if config.effort is not None:
        chat["reasoning_effort"] = config.effort
    thinking = read.thinking.type if read.thinking is not None else None
    if thinking in ("enabled", "disabled") and "chat_template_kwargs" not in chat:
        # `enable_thinking` is Qwen's name, `thinking` DeepSeek's; a template reads its own.
        wanted = thinking == "enabled"
        chat["chat_template_kwargs"] = {"enable_thinking": wanted, "thinking": wanted}
    return chat


def _messages(read: wire.CountTokensBody) -> list[Json]:
    messages: list[Json] = []
    system = [read.system] if isinstance(read.system, str) else [block.text for block in read.system or ()]
    system = [text for text in system if text and not text.startswith(BILLING)]
    if system:
        messages.append({"role": "system", "content": "\n".join(system)})
    for index, message in enumerate(read.messages):
        blocks = _blocks(message.content)
        if message.role == "assistant":
            _add_assistant(messages, blocks, f"messages[{index}]")
        else:
            if message.role == "system":
                blocks = [
                    b for b in blocks if not (isinstance(b, wire.TextBlock) and b.text.startswith(BILLING))
                ]
            _add_user(messages, blocks, f"messages[{index}]")
    return [{**message, "content": _plain(message["content"])} for message in messages]


def _add_user(messages: list[Json], blocks: Sequence[wire.ContentBlock], where: str) -> None:
    parts: list[Json] = []
    for block in blocks:
        if isinstance(block, wire.ToolResultBlock):
            inner = [part for b in _blocks(block.content or "") for part in _parts(b, where)]
            texts = [part["text"] for part in inner if part["type"] == "text"]
            messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": "\n".join(texts)})
            # In chat completions a tool message is only text, so its images become part of the user's turn.
            parts += [part for part in inner if part["type"] != "text"]
        else:
            parts += _parts(block, where)
    if not parts and any(isinstance(block, wire.ToolResultBlock) for block in blocks):
        return
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"] += parts
    else:
        messages.append({"role": "user", "content": parts})


def _add_assistant(messages: list[Json], blocks: Sequence[wire.ContentBlock], where: str) -> None:
    _assistant_turn(messages)
    answered = {block.tool_use_id for block in blocks if isinstance(block, ServerToolResult)}
    asked: set[str] = set()
    for block in blocks:
        if isinstance(block, ServerToolResult):
            if block.tool_use_id in asked:  # Else the call would be in no message.
                content = msgspec.json.encode(readable(block.content)).decode()
                messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
            continue
        if isinstance(block, ServerToolUseBlock) and block.id not in answered:
            continue
        turn = _assistant_turn(messages)
        if isinstance(block, wire.ToolUseBlock | ServerToolUseBlock):
            asked.add(block.id)
            function = {"name": block.name, "arguments": bytes(block.input).decode()}
            turn.setdefault("tool_calls", []).append(
                {"id": block.id, "type": "function", "function": function}
            )
        elif isinstance(block, wire.ThinkingBlock):
            turn["reasoning_content"] = turn.get("reasoning_content", "") + block.thinking
        elif not isinstance(block, wire.RedactedThinkingBlock):
            turn["content"] += _parts(block, where)


def _assistant_turn(messages: list[Json]) -> Json:
    """Return the assistant's open turn; a new one if the last message is another's."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _blocks(content: str | Iterable[Any]) -> list[Any]:
    if isinstance(content, str):
        return [wire.TextBlock(text=content)] if content else []
    return list(content)


def _parts(block: wire.ContentBlock, where: str) -> list[Json]:
    """Return a content block as content parts of chat completions. Raises BadRequest for a misplaced block."""
    match block:
        case wire.TextBlock(text=text):
            return [_text(text)]
        case wire.ImageBlock(source=wire.UrlSource(url=url)):
            return [{"type": "image_url", "image_url": {"url": url}}]
        case wire.ImageBlock(source=wire.Base64Source() as source):
            return [{"type": "image_url", "image_url": {"url": _data_url(source)}}]
        case wire.DocumentBlock(source=wire.TextSource(data=data)):
            return [_text("\n".join([*_heading(block), data]))]
        case wire.DocumentBlock(source=wire.ContentSource(content=content)):
            heading = [_text(text) for text in _heading(block)]
            return heading + [part for inner in _blocks(content) for part in _parts(inner, where)]
        case wire.DocumentBlock(source=wire.Base64Source() as source, title=title, context=context):
            file = {"filename": title or "document", "file_data": _data_url(source)}
            return [*([_text(context)] if context else ()), {"type": "file", "file": file}]
        case wire.SearchResultBlock(source=source, title=title, content=content):
            return [_text("\n".join([title, source, *(inner.text for inner in content)]))]
    kind = block.__struct_config__.tag
    raise BadRequest(f"{where}: a block of type {kind!r} is not allowed in this role's turn.", param=where)


def _heading(document: wire.DocumentBlock) -> list[str]:
    """Return the title and the context of a document, which come before its text."""
    return [text for text in (document.title, document.context) if text]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _data_url(source: wire.Base64Source) -> str:
    return f"data:{source.media_type};base64,{source.data}"


def _plain(content: str | list[Json] | None) -> str | list[Json] | None:
    """Return a single text as a string, which every chat template can read; other content unchanged."""
    if not isinstance(content, list):
        return content
    if not content:
        return ""
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content
