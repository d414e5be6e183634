"""Items of a conversation to the messages of a chat.

items                                       messages
  message user                       ->       user
  message developer, system          ->       system; leading ones become one, with the instructions before them
  reasoning, message, function_call  ->       one assistant turn, with reasoning_content and tool_calls
  custom_tool_call                   ->       the same: see tools.py
  function_call_output               ->       tool; its images and files are the user's next turn
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.web.responses import wire
from gateway.web.responses.tools import arguments_with_text, function_name

Json = dict[str, Any]

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_RESULTS = wire.FunctionCallOutputItem | wire.CustomToolCallOutputItem


REFERENCE = "item_reference"
"""In place of an item: see references.py."""

_MADE = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{16}")


def whole(given: str | Sequence[msgspec.Raw], response: str) -> list[Json]:
    """A request's own input as items that have a type and an id. Raises BadRequest that names the item.

    `response`: the id of what it is the input of.
    """
    if isinstance(given, str):
        return [
            {
                "type": "message",
                "id": new_id("message", response),
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
            raise BadRequest(f"input[{at}]: an item is an object.", param=f"input[{at}]") from err
        # A message may be sent without its type, and needs no id.
        kind = item.setdefault("type", "message")
        if kind == REFERENCE and isinstance(item.get("id"), str):
            items.append(item)
            continue
        if not isinstance(kind, str) or kind not in _PREFIXES:
            raise BadRequest(
                f"input[{at}]: items of type {str(kind)[:50]!r} are not supported.", param=f"input[{at}].type"
            )
        if not isinstance(item.get("id"), str):
            item["id"] = new_id(kind, response)
        items.append(item)
    return items


def shown(item: Json) -> Json:
    """An item of a request as the API tells it again: what may be left out is there, and a text is a part."""
    told = {"status": "completed", **({"summary": []} if item["type"] == "reasoning" else {}), **item}
    if item["type"] == "message" and isinstance(item["content"], str):
        of_the_model: Json = {"type": "output_text", "annotations": [], "logprobs": []}
        part = of_the_model if item["role"] == "assistant" else {"type": "input_text"}
        return told | {"content": [{**part, "text": item["content"]}]}
    for name in ("content", "output"):
        if isinstance(parts := item.get(name), list):
            told[name] = [{"detail": "auto", **p} if p["type"] == "input_image" else p for p in parts]
    return told


def new_id(kind: str, response: str) -> str:
    """An id for an item of that type, which says of which response."""
    return f"{_PREFIXES[kind]}_{response.removeprefix('resp_')}{secrets.token_hex(8)}"


def response_of(identity: str) -> str | None:
    """The response that an item's id names; None for an id that was not made here."""
    made = _MADE.fullmatch(identity)
    return f"resp_{made[1]}" if made is not None else None


def messages(items: Iterable[Json], instructions: str | None, own_from: int = 0) -> list[Json]:
    """The chat of these items. Raises BadRequest for what cannot be read; the request's own begin at `own_from`."""
    system = [instructions] if instructions else []
    turns: list[Json] = []
    shown: list[Json] = []
    for at, item in enumerate(items):
        try:
            read = msgspec.convert(item, wire.InputItem)
        except msgspec.ValidationError as err:
            where = f"input[{at - own_from}]"
            raise BadRequest(f"{where}: {err}.", param=where) from err
        if shown and not isinstance(read, _RESULTS):
            # Results that belong to one turn stand together.
            turns.append({"role": "user", "content": shown})
            shown = []
        match read:
            case wire.MessageItem(role="system" | "developer", content=content):
                parts = _parts(content)
                text = "\n".join(part["text"] for part in parts if part["type"] == "text")
                if any(part["type"] != "text" for part in parts):
                    where = f"input[{at - own_from}]"
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
                turn = _assistant(turns, anew="content")
                turn["content"] = _plain(_parts(content))
            case wire.FunctionCallItem() | wire.CustomToolCallItem():
                arguments = arguments_with_text(read.input) if isinstance(read, wire.CustomToolCallItem) else read.arguments
                call = {"name": function_name(read.name, read.namespace), "arguments": arguments}
                _assistant(turns).setdefault("tool_calls", []).append(
                    {"id": read.call_id, "type": "function", "function": call}
                )
            case (
                wire.FunctionCallOutputItem(call_id=call_id, output=output)
                | wire.CustomToolCallOutputItem(call_id=call_id, output=output)
            ):
                parts = _parts(output)
                texts = [part["text"] for part in parts if part["type"] == "text"]
                turns.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})
                shown += [part for part in parts if part["type"] != "text"]
            case wire.ReasoningItem():
                texts = [part.text for part in read.content or read.summary or ()]
                if texts:
                    _assistant(turns, anew="reasoning_content")["reasoning_content"] = "\n".join(texts)
    if shown:
        turns.append({"role": "user", "content": shown})
    first = [{"role": "system", "content": "\n".join(system)}] if system else []
    return first + [{"content": "", **turn} for turn in turns]


def _assistant(turns: list[Json], anew: str = "") -> Json:
    """The assistant's turn that goes on, or a new one: also where it has said already what comes `anew`."""
    if (
        not turns
        or turns[-1]["role"] != "assistant"
        or anew in turns[-1]
        or (anew and "tool_calls" in turns[-1])
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
        "Images are sent as data or by their URL, files as data; neither is known by an id.", param="input"
    )


def _plain(parts: list[Json]) -> str | list[Json]:
    """One text as text, which every template can read."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
