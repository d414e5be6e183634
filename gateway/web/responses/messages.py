"""The items of a conversation in the Responses API, translated to the messages of a chat.

items                                       messages
  message user                       ->       user
  message developer, system          ->       system; leading ones become one, with the instructions before them
  reasoning, message, function_call  ->       one assistant turn, with reasoning_content and tool_calls
  custom_tool_call                   ->       the same: see tools.py
  local_shell_call                   ->       the same, as a function of this name
  function_call_output               ->       tool; its images and files become the user's next turn
  compaction                         ->       user, with the summary of what came before
  web_search_call and the like       ->       nothing: OpenAI's servers made the call, the answer follows
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.web.responses import wire
from gateway.web.responses.items import decoded_text
from gateway.web.responses.tools import arguments_with_text, function_name

Json = dict[str, Any]

SUMMARY = "Summary of the conversation until here:\n"
"""The beginning of the message that replaces a compacted conversation."""


def chat_messages(
    items: Iterable[Json], instructions: str | None, own_from: int = 0, field: str = "input"
) -> list[Json]:
    """Return these items as the messages of a chat.

    Args:
        items: All items of the conversation.
        instructions: A system message that comes before them.
        own_from: Index of the first item of the request's own input; errors count from there.
        field: The field of the request that has the input, for error messages.

    Raises:
        BadRequest: An item is malformed.
    """
    messages = _Messages(instructions)
    for at, item in enumerate(items):
        where = f"{field}[{at - own_from}]"
        try:
            messages.add(msgspec.convert(item, wire.InputItem), where)
        except msgspec.ValidationError as err:
            raise BadRequest(f"{where}: {err}.", param=where) from err
    return messages.finish()


class _Messages:
    """The messages so far, while items are added in order."""

    def __init__(self, instructions: str | None) -> None:
        self._system = [instructions] if instructions else []
        self._turns: list[Json] = []
        self._media: list[Json] = []
        """Images and files of tool results, shown to the model as the user's next turn."""

    def add(self, item: wire.InputItem, where: str) -> None:
        """Add an item as a message, or as a part of one. Raises BadRequest, which names `where`."""
        if isinstance(item, wire.HostedCallItem):
            return
        match item:
            case wire.FunctionCallOutputItem() | wire.CustomToolCallOutputItem():
                # All results of one turn come before the media of any of them.
                self._add_tool_result(item.call_id, _parts(item.output))
                return
            case wire.LocalShellCallOutputItem():
                self._add_tool_result(item.call_id or item.id, _parts(item.output))
                return
        self._add_media()
        match item:
            case wire.MessageItem(role="system" | "developer"):
                self._add_system(item, where)
            case wire.MessageItem(role="user"):
                self._add_user(_parts(item.content))
            case wire.MessageItem():
                self._assistant_turn(new_field="content")["content"] = _plain(_parts(item.content))
            case wire.FunctionCallItem():
                self._add_tool_call(item.call_id, function_name(item.name, item.namespace), item.arguments)
            case wire.CustomToolCallItem():
                arguments = arguments_with_text(item.input)
                self._add_tool_call(item.call_id, function_name(item.name, item.namespace), arguments)
            case wire.LocalShellCallItem():
                self._add_tool_call(item.call_id, "local_shell", msgspec.json.encode(item.action).decode())
            case wire.CompactionItem():
                self._turns.append({"role": "user", "content": _summary(item.encrypted_content, where)})
            case wire.ReasoningItem():
                if text := _reasoning(item):
                    self._assistant_turn(new_field="reasoning_content")["reasoning_content"] = text

    def finish(self) -> list[Json]:
        """Return all messages, the system message first; each has a content."""
        self._add_media()
        first = [{"role": "system", "content": "\n".join(self._system)}] if self._system else []
        return first + [{"content": "", **turn} for turn in self._turns]

    def _add_system(self, item: wire.MessageItem, where: str) -> None:
        parts = _parts(item.content)
        if any(part["type"] != "text" for part in parts):
            raise BadRequest(f"{where}: a message of role {item.role!r} is text.", param=where)
        text = "\n".join(part["text"] for part in parts)
        if self._turns:
            self._turns.append({"role": "system", "content": text})
        else:
            self._system.append(text)

    def _add_user(self, parts: list[Json]) -> None:
        if self._turns and self._turns[-1]["role"] == "user" and isinstance(self._turns[-1]["content"], list):
            self._turns[-1]["content"] += parts
        else:
            self._turns.append({"role": "user", "content": _plain(parts)})

    def _add_tool_call(self, call_id: str, name: str, arguments: str) -> None:
        calls = self._assistant_turn().setdefault("tool_calls", [])
        function = {"name": name, "arguments": arguments}
        calls.append({"id": call_id, "type": "function", "function": function})

    def _add_tool_result(self, call_id: str, parts: list[Json]) -> None:
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        self._turns.append({"role": "tool", "tool_call_id": call_id, "content": text})
        self._media += [part for part in parts if part["type"] != "text"]

    def _add_media(self) -> None:
        if self._media:
            self._turns.append({"role": "user", "content": self._media})
            self._media = []

    def _assistant_turn(self, new_field: str = "") -> Json:
        """Return the assistant's open turn; a new one if there is none, or if it has the new field already."""
        turns = self._turns
        if (
            not turns
            or turns[-1]["role"] != "assistant"
            or new_field in turns[-1]
            or (new_field and "tool_calls" in turns[-1])
        ):
            turns.append({"role": "assistant"})
        return turns[-1]


def _reasoning(item: wire.ReasoningItem) -> str:
    """Return the text of a reasoning item: its content, else its encoded text, else its summary."""
    if item.content:
        return "\n".join(part.text for part in item.content)
    if encoded := decoded_text(item.encrypted_content or ""):
        return encoded
    return "\n".join(part.text for part in item.summary or ())


def _summary(content: str, where: str) -> str:
    """Return the text of a compaction item. Raises BadRequest if another server made the item."""
    text = decoded_text(content)
    if text is None:
        raise BadRequest(
            f"{where}: this compaction was not made by this gateway.", param=f"{where}.encrypted_content"
        )
    return SUMMARY + text


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
