"""Output items of a response under way, made from the pieces of a streamed chat completion.

Each class collects what its item contains, and returns the events of the item's beginning, pieces and end.
"""

from typing import Any

from gateway.web.openai import chat_completions
from gateway.web.responses import answers
from gateway.web.responses.items import new_item_id
from gateway.web.responses.tools import ClientTool

Json = dict[str, Any]
Events = list[tuple[str, Json]]
"""Events by their type, with the fields of each."""


class StreamedMessage:
    """A message item under way. It has one content part."""

    def __init__(self, output_index: int, response: str) -> None:
        self._id = new_item_id("message", response)
        self._position = {"item_id": self._id, "output_index": output_index, "content_index": 0}
        self._pieces: list[str] = []
        self._logprobs: list[Any] = []
        self._output_index = output_index

    def added(self) -> Events:
        """Return the events of the item's beginning."""
        item = answers.message_item(self._id, [], "in_progress")
        return [
            ("response.output_item.added", {"output_index": self._output_index, "item": item}),
            ("response.content_part.added", {**self._position, "part": answers.text_part("")}),
        ]

    def more(self, text: str, logprobs: list[Any]) -> Events:
        """Add a piece, and return its events."""
        self._pieces.append(text)
        self._logprobs += logprobs
        return [("response.output_text.delta", {**self._position, "delta": text, "logprobs": logprobs})]

    def done(self) -> tuple[Json, Events]:
        """Return the finished item, and the events of its end."""
        text = "".join(self._pieces)
        part = answers.text_part(text, self._logprobs)
        return answers.message_item(self._id, [part]), [
            ("response.output_text.done", {**self._position, "text": text, "logprobs": self._logprobs}),
            ("response.content_part.done", {**self._position, "part": part}),
        ]


class StreamedRefusal:
    """A message item under way in which the model refuses. It has one content part."""

    def __init__(self, output_index: int, response: str) -> None:
        self._id = new_item_id("message", response)
        self._position = {"item_id": self._id, "output_index": output_index, "content_index": 0}
        self._pieces: list[str] = []
        self._output_index = output_index

    def added(self) -> Events:
        """Return the events of the item's beginning."""
        item = answers.message_item(self._id, [], "in_progress")
        return [
            ("response.output_item.added", {"output_index": self._output_index, "item": item}),
            ("response.content_part.added", {**self._position, "part": answers.refusal_part("")}),
        ]

    def more(self, text: str) -> Events:
        """Add a piece, and return its events."""
        self._pieces.append(text)
        return [("response.refusal.delta", {**self._position, "delta": text})]

    def done(self) -> tuple[Json, Events]:
        """Return the finished item, and the events of its end."""
        text = "".join(self._pieces)
        part = answers.refusal_part(text)
        return answers.message_item(self._id, [part]), [
            ("response.refusal.done", {**self._position, "refusal": text}),
            ("response.content_part.done", {**self._position, "part": part}),
        ]


class StreamedReasoning:
    """A reasoning item under way. It has one content part."""

    def __init__(self, output_index: int, response: str, *, encoded: bool) -> None:
        self._id = new_item_id("reasoning", response)
        self._encoded = encoded
        self._position = {"item_id": self._id, "output_index": output_index, "content_index": 0}
        self._pieces: list[str] = []
        self._output_index = output_index

    def added(self) -> Events:
        """Return the events of the item's beginning."""
        item = answers.reasoning_item(self._id, "")
        return [
            ("response.output_item.added", {"output_index": self._output_index, "item": item}),
            ("response.content_part.added", {**self._position, "part": answers.reasoning_part("")}),
        ]

    def more(self, text: str) -> Events:
        """Add a piece, and return its events."""
        self._pieces.append(text)
        return [("response.reasoning_text.delta", {**self._position, "delta": text})]

    def done(self) -> tuple[Json, Events]:
        """Return the finished item, and the events of its end."""
        text = "".join(self._pieces)
        return answers.reasoning_item(self._id, text, encoded=self._encoded), [
            ("response.reasoning_text.done", {**self._position, "text": text}),
            ("response.content_part.done", {**self._position, "part": answers.reasoning_part(text)}),
        ]


class StreamedToolCall:
    """A tool call under way, of a function or of a tool that takes a text.

    The text is one JSON string within the arguments, so it can be sent only when all of it has arrived.
    """

    def __init__(
        self, output_index: int, call: chat_completions.ChatToolCall, response: str, tool: ClientTool
    ) -> None:
        self._id = new_item_id(tool.item_type, response)
        self._position = {"item_id": self._id, "output_index": output_index}
        self._call_id = call.id or f"call_{call.index}"
        self._tool = tool
        self._pieces: list[str] = []
        self._output_index = output_index

    def added(self) -> Events:
        """Return the events of the item's beginning."""
        item = answers.tool_call_item(self._id, self._call_id, self._tool, "", "in_progress")
        return [("response.output_item.added", {"output_index": self._output_index, "item": item})]

    def more(self, arguments: str) -> Events:
        """Add a piece, and return its events."""
        self._pieces.append(arguments)
        if self._tool.takes_text:
            return []
        return [("response.function_call_arguments.delta", {**self._position, "delta": arguments})]

    def done(self) -> tuple[Json, Events]:
        """Return the finished item, and the events of its end."""
        arguments = "".join(self._pieces)
        item = answers.tool_call_item(self._id, self._call_id, self._tool, arguments)
        if self._tool.takes_text:
            text = item["input"]
            return item, [
                ("response.custom_tool_call_input.delta", {**self._position, "delta": text}),
                ("response.custom_tool_call_input.done", {**self._position, "input": text}),
            ]
        done = {**self._position, "name": self._tool.name, "arguments": arguments}
        return item, [("response.function_call_arguments.done", done)]


StreamedItem = StreamedMessage | StreamedRefusal | StreamedReasoning | StreamedToolCall
"""An output item under way."""
