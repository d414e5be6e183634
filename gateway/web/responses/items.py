"""Items of a conversation in the Responses API, and their translation to the messages of a chat.

items                                       messages
  message user                       ->       user
  message developer, system          ->       system; leading ones become one, with the instructions before them
  reasoning, message, function_call  ->       one assistant turn, with reasoning_content and tool_calls
  custom_tool_call                   ->       the same: see tools.py
  function_call_output               ->       tool; its images and files become the user's next turn
  compaction                         ->       user, with the summary of what came before
"""

import base64
import binascii
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.web.responses import wire
from gateway.web.responses.tools import arguments_with_text, function_name

Json = dict[str, Any]

_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
}
_RESULTS = wire.FunctionCallOutputItem | wire.CustomToolCallOutputItem


REFERENCE = "item_reference"
"""The type of an item that only names another item: see references.py."""

SUMMARY = "Summary of the conversation until here:\n"
"""The beginning of the message that stands for a compacted conversation."""

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{16}")


def input_items(given: str | Sequence[msgspec.Raw], owner: str, field: str = "input") -> list[Json]:
    """Return a request's own input as items that each have a type and an id.

    Args:
        given: A text, or items.
        owner: The id of the response that answers the input, or of the conversation that gets the items.
        field: The field of the request, for error messages.

    Raises:
        BadRequest: An item cannot be read.
    """
    if isinstance(given, str):
        return [
            {
                "type": "message",
                "id": new_item_id("message", owner),
                "status": "completed",
                "role": "user",
                "content": [{"type": "input_text", "text": given}],
            }
        ]
    items = []
    for at, raw in enumerate(given):
        try:
            item = msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.ValidationError as err:
            raise BadRequest(f"{field}[{at}]: an item is an object.", param=f"{field}[{at}]") from err
        # Clients may send a message without its type, and any item without an id.
        kind = item.setdefault("type", "message")
        if kind == REFERENCE and isinstance(item.get("id"), str):
            items.append(item)
            continue
        if not isinstance(kind, str) or kind not in _ID_PREFIXES:
            raise _unsupported(str(kind), f"{field}[{at}]")
        if not isinstance(item.get("id"), str):
            item["id"] = new_item_id(kind, owner)
        items.append(item)
    return items


def item_object(item: Json) -> Json:
    """Return an item of a request as the API shows it: with all optional fields, and texts as content parts."""
    if item["type"] == "compaction":
        return item
    shown = {"status": "completed", **({"summary": []} if item["type"] == "reasoning" else {}), **item}
    if item["type"] == "message" and isinstance(item["content"], str):
        assistant_part: Json = {"type": "output_text", "annotations": [], "logprobs": []}
        part = assistant_part if item["role"] == "assistant" else {"type": "input_text"}
        return shown | {"content": [{**part, "text": item["content"]}]}
    for name in ("content", "output"):
        if isinstance(parts := item.get(name), list):
            shown[name] = [{"detail": "auto", **p} if p["type"] == "input_image" else p for p in parts]
    return shown


def new_item_id(kind: str, owner: str) -> str:
    """Return a new id for an item of the given type, which contains the id of its response or conversation."""
    return f"{_ID_PREFIXES[kind]}_{owner.removeprefix('resp_').removeprefix('conv_')}{secrets.token_hex(8)}"


def response_id_of(item_id: str) -> str | None:
    """Return the response id in an item's id; None for an id that no gateway made."""
    found = _ITEM_ID.fullmatch(item_id)
    return f"resp_{found[1]}" if found is not None else None


def chat_messages(
    items: Iterable[Json], instructions: str | None, own_from: int = 0, field: str = "input"
) -> list[Json]:
    """Return the messages of the chat that these items are.

    Args:
        items: All items of the conversation.
        instructions: A system message that comes before them.
        own_from: Index of the first item of the request's own input; errors count from there.
        field: The field of the request that has the input, for error messages.

    Raises:
        BadRequest: An item is malformed.
    """
    system = [instructions] if instructions else []
    turns: list[Json] = []
    media: list[Json] = []  # of tool results, shown to the model as the user's next turn
    for at, item in enumerate(items):
        try:
            read = msgspec.convert(item, wire.InputItem)
        except msgspec.ValidationError as err:
            where = f"{field}[{at - own_from}]"
            raise BadRequest(f"{where}: {err}.", param=where) from err
        if media and not isinstance(read, _RESULTS):
            # All results of one turn come before the media of any of them.
            turns.append({"role": "user", "content": media})
            media = []
        match read:
            case wire.MessageItem(role="system" | "developer", content=content):
                parts = _parts(content)
                text = "\n".join(part["text"] for part in parts if part["type"] == "text")
                if any(part["type"] != "text" for part in parts):
                    where = f"{field}[{at - own_from}]"
                    raise BadRequest(f"{where}: a message of role {read.role!r} is text.", param=where)
                if turns:
                    turns.append({"role": "system", "content": text})
                else:
                    system.append(text)
            case wire.MessageItem(role="user", content=content):
                if turns and turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                    turns[-1]["content"] += _parts(content)
                else:
                    turns.append({"role": "user", "content": _plain(_parts(content))})
            case wire.MessageItem(content=content):
                turn = _assistant_turn(turns, new_field="content")
                turn["content"] = _plain(_parts(content))
            case wire.FunctionCallItem() | wire.CustomToolCallItem():
                arguments = (
                    arguments_with_text(read.input)
                    if isinstance(read, wire.CustomToolCallItem)
                    else read.arguments
                )
                call = {"name": function_name(read.name, read.namespace), "arguments": arguments}
                _assistant_turn(turns).setdefault("tool_calls", []).append(
                    {"id": read.call_id, "type": "function", "function": call}
                )
            case (
                wire.FunctionCallOutputItem(call_id=call_id, output=output)
                | wire.CustomToolCallOutputItem(call_id=call_id, output=output)
            ):
                parts = _parts(output)
                texts = [part["text"] for part in parts if part["type"] == "text"]
                turns.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})
                media += [part for part in parts if part["type"] != "text"]
            case wire.CompactionItem(encrypted_content=content):
                turns.append({"role": "user", "content": _summary(content, f"{field}[{at - own_from}]")})
            case wire.ReasoningItem():
                encoded = decoded_text(read.encrypted_content or "")
                texts = [part.text for part in read.content or ()] or (
                    [encoded] if encoded else [part.text for part in read.summary or ()]
                )
                if texts:
                    _assistant_turn(turns, new_field="reasoning_content")["reasoning_content"] = "\n".join(
                        texts
                    )
    if media:
        turns.append({"role": "user", "content": media})
    first = [{"role": "system", "content": "\n".join(system)}] if system else []
    return first + [{"content": "", **turn} for turn in turns]


def compaction_item(identity: str, summary: str) -> Json:
    """Return the item that stands for a conversation, with its summary."""
    return {
        "id": identity,
        "type": "compaction",
        "encrypted_content": encoded_text(summary),
    }


def encoded_text(text: str) -> str:
    """Return a text as `encrypted_content`: encoded, not encrypted, since it is the tenant's own."""
    return base64.b64encode(text.encode()).decode()


def decoded_text(content: str) -> str | None:
    """Return the text of an `encrypted_content`; None for one of another server."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def _summary(content: str, where: str) -> str:
    """Return the text that a compaction item stands for. Raises BadRequest for one of another server."""
    text = decoded_text(content)
    if text is None:
        raise BadRequest(
            f"{where}: this compaction was not made by this gateway.", param=f"{where}.encrypted_content"
        )
    return SUMMARY + text


def _unsupported(kind: str, where: str) -> BadRequest:
    text = f"{where}: items of type {kind[:50]!r} are not supported."
    if kind.startswith("mcp_"):
        text += (
            " This gateway calls no MCP servers. Call them in the client, and offer their tools as functions."
        )
    return BadRequest(text, param=f"{where}.type")


def _assistant_turn(turns: list[Json], new_field: str = "") -> Json:
    """Return the assistant's open turn; a new one if there is none, or if it has the new field already."""
    if (
        not turns
        or turns[-1]["role"] != "assistant"
        or new_field in turns[-1]
        or (new_field and "tool_calls" in turns[-1])
    ):
        turns.append({"role": "assistant"})
    return turns[-1]


def _parts(content: str | Sequence[wire.ContentPart]) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part) for part in content]


def _part(part: wire.ContentPart) -> Json:
    match part:
        case wire.InputTextPart(text=text) | wire.OutputTextPart(text=text) | wire.RefusalPart(refusal=text):
            return {"type": "text", "text": text}
        case wire.InputImagePart(image_url=str(url), detail=detail):
            return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}
        case wire.InputFilePart(file_data=str(data), filename=name):
            return {"type": "file", "file": {"file_data": data, "filename": name or "file"}}
    raise BadRequest(
        "Images must be sent as data or by URL, files as data; file ids are not supported.", param="input"
    )


def _plain(parts: list[Json]) -> str | list[Json]:
    """Return a single text as a string, which every chat template can read; other parts unchanged."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
