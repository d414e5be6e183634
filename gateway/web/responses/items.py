"""Reads and shows the items of a conversation in the Responses API, and gives them ids."""

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest

Json = dict[str, Any]

_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "mcp_call": "mcp",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
}

REFERENCE = "item_reference"
"""The type of an item that only names another item: see references.py."""

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


def compaction_item(identity: str, summary: str) -> Json:
    """Return the item that replaces a conversation, with its summary."""
    return {
        "id": identity,
        "type": "compaction",
        "encrypted_content": encoded_text(summary),
    }


def encoded_text(text: str) -> str:
    """Return a text as `encrypted_content`: encoded, not encrypted, since it is the tenant's own."""
    return base64.b64encode(text.encode()).decode()


def decoded_text(content: str) -> str | None:
    """Return the text of an `encrypted_content`; None if another server made it."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def _unsupported(kind: str, where: str) -> BadRequest:
    return BadRequest(f"{where}: items of type {kind[:50]!r} are not supported.", param=f"{where}.type")
