"""A stream of chat chunks to the events of a response.

    chat                                        events
      (status 200)                       ->       response.created, response.in_progress
      delta {"reasoning_content": ".."}  ->       output_item.added (reasoning), content_part.added,
                                                  reasoning_text.delta ..
      delta {"content": ".."}            ->       output_item.done, output_item.added (message), content_part.added,
                                                  output_text.delta ..
      delta {"tool_calls": [..]}         ->       .., output_item.added (function_call),
                                                  function_call_arguments.delta ..
      finish_reason, usage, end          ->       .., output_item.done, response.completed | response.incomplete

Every event has a number, one more than the one before. One item is open at a time; each is of one of the classes
below, which knows what it has said.
"""

from typing import Any

import msgspec

from gateway.domain.errors import StreamInterrupted
from gateway.relay.sse_payloads import Payloads
from gateway.telemetry.record import Usage
from gateway.web.openai import chat_completions
from gateway.web.responses import answers
from gateway.web.responses.items import new_id
from gateway.web.responses.tools import ClientTool, ChatTools

Json = dict[str, Any]
Events = list[tuple[str, Json]]


class StreamedMessage:
    """A message. Its part's place is the first."""

    def __init__(self, at: int, response: str) -> None:
        self._id = new_id("message", response)
        self._where = {"item_id": self._id, "output_index": at, "content_index": 0}
        self._said: list[str] = []
        self._logprobs: list[Any] = []
        self._at = at

    def added(self) -> Events:
        item = answers.message(self._id, [], "in_progress")
        return [
            ("response.output_item.added", {"output_index": self._at, "item": item}),
            ("response.content_part.added", {**self._where, "part": answers.text("")}),
        ]

    def more(self, text: str, logprobs: list[Any]) -> Events:
        self._said.append(text)
        self._logprobs += logprobs
        return [("response.output_text.delta", {**self._where, "delta": text, "logprobs": logprobs})]

    def done(self) -> tuple[Json, Events]:
        text = "".join(self._said)
        part = answers.text(text, self._logprobs)
        return answers.message(self._id, [part]), [
            ("response.output_text.done", {**self._where, "text": text, "logprobs": self._logprobs}),
            ("response.content_part.done", {**self._where, "part": part}),
        ]


class StreamedReasoning:
    """Reasoning. It has one part, as a message has."""

    def __init__(self, at: int, response: str) -> None:
        self._id = new_id("reasoning", response)
        self._where = {"item_id": self._id, "output_index": at, "content_index": 0}
        self._said: list[str] = []
        self._at = at

    def added(self) -> Events:
        item = answers.reasoning(self._id, "")
        return [
            ("response.output_item.added", {"output_index": self._at, "item": item}),
            ("response.content_part.added", {**self._where, "part": answers.thought("")}),
        ]

    def more(self, text: str) -> Events:
        self._said.append(text)
        return [("response.reasoning_text.delta", {**self._where, "delta": text})]

    def done(self) -> tuple[Json, Events]:
        text = "".join(self._said)
        return answers.reasoning(self._id, text), [
            ("response.reasoning_text.done", {**self._where, "text": text}),
            ("response.content_part.done", {**self._where, "part": answers.thought(text)}),
        ]


class StreamedToolCall:
    """A call of a function, or of a tool that takes a text, which is there when all of it has come."""

    def __init__(self, at: int, call: chat_completions.ChatToolCall, response: str, tool: ClientTool) -> None:
        self._id = new_id(tool.kind, response)
        self._where = {"item_id": self._id, "output_index": at}
        self._call_id = call.id or f"call_{call.index}"
        self._tool = tool
        self._said: list[str] = []
        self._at = at

    def added(self) -> Events:
        item = answers.call(self._id, self._call_id, self._tool, "", "in_progress")
        return [("response.output_item.added", {"output_index": self._at, "item": item})]

    def more(self, arguments: str) -> Events:
        self._said.append(arguments)
        if self._tool.takes_text:
            return []
        return [("response.function_call_arguments.delta", {**self._where, "delta": arguments})]

    def done(self) -> tuple[Json, Events]:
        arguments = "".join(self._said)
        item = answers.call(self._id, self._call_id, self._tool, arguments)
        if self._tool.takes_text:
            text = item["input"]
            return item, [
                ("response.custom_tool_call_input.delta", {**self._where, "delta": text}),
                ("response.custom_tool_call_input.done", {**self._where, "input": text}),
            ]
        done = {**self._where, "name": self._tool.name, "arguments": arguments}
        return item, [("response.function_call_arguments.done", done)]


class ResponseEvents:
    """One stream. `response`: as it is before anything is said. `tools`: those of the request."""

    def __init__(self, response: Json, tools: ChatTools) -> None:
        self.response = response
        self._tools = tools
        self.finish: str | None = None
        self.usage: Usage | None = None
        self._id: str = response["id"]
        self._payloads = Payloads()
        self._number = 0
        self._open: StreamedMessage | StreamedReasoning | StreamedToolCall | None = None
        self._call_index: int | None = None
        self._output: list[Json] = []

    def begin(self) -> bytes:
        opened = {"response": self.response}
        return self._written([("response.created", opened), ("response.in_progress", opened)])

    def queue(self) -> bytes:
        """Before it is anybody's turn to work on it."""
        opened = {"response": self.response}
        return self._written([("response.created", opened), ("response.queued", opened)])

    def progress(self, response: Json) -> bytes:
        """Somebody works on what was queued."""
        return self._written([("response.in_progress", {"response": response})])

    def feed(self, data: bytes) -> bytes:
        """The events of so much more of the stream. Raises StreamInterrupted, WorkerError."""
        return b"".join(self._of(payload) for payload in self._payloads.feed(data))

    def close(self) -> tuple[bytes, list[Json]]:
        """The events up to the last but one, and all output. Raises StreamInterrupted if it had not ended."""
        if self.finish is None:
            raise StreamInterrupted
        return self._written(self._closed()), self._output

    def last(self, response: Json) -> bytes:
        """The last event: how it has ended."""
        return self._written([(f"response.{response['status']}", {"response": response})])

    def _of(self, payload: bytes) -> bytes:
        chunk = chat_completions.decode_chat_completion(payload)
        if chunk.error is not None:
            raise StreamInterrupted
        self.usage = chunk.parsed_usage or self.usage
        events: Events = []
        for choice in chunk.choices[:1]:
            said = choice.delta or chat_completions.ChatMessage()
            if said.reasoning_text:
                events += self._thought(said.reasoning_text)
            if said.text:
                events += self._text(said.text, choice.token_logprobs)
            for call in said.tool_calls or ():
                events += self._called(call)
            self.finish = choice.finish_reason or self.finish
        return self._written(events)

    def _thought(self, text: str) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedReasoning):
            events = self._start(StreamedReasoning(self._next, self._id))
        assert isinstance(self._open, StreamedReasoning)
        return events + self._open.more(text)

    def _text(self, text: str, logprobs: list[Any]) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedMessage):
            events = self._start(StreamedMessage(self._next, self._id))
        assert isinstance(self._open, StreamedMessage)
        return events + self._open.more(text, logprobs)

    def _called(self, call: chat_completions.ChatToolCall) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedToolCall) or call.index != self._call_index:
            tool = self._tools.called(call.function.name or "")
            events = self._start(StreamedToolCall(self._next, call, self._id, tool))
            self._call_index = call.index
        assert isinstance(self._open, StreamedToolCall)
        return events + (self._open.more(call.function.arguments) if call.function.arguments else [])

    @property
    def _next(self) -> int:
        """The place of an item that begins now."""
        return len(self._output) + (self._open is not None)

    def _start(self, item: StreamedMessage | StreamedReasoning | StreamedToolCall) -> Events:
        closed = self._closed()
        self._open = item
        return closed + item.added()

    def _closed(self) -> Events:
        if self._open is None:
            return []
        item, events = self._open.done()
        at = len(self._output)
        self._output.append(item)
        self._open = None
        return [*events, ("response.output_item.done", {"output_index": at, "item": item})]

    def _written(self, events: Events) -> bytes:
        written = []
        for kind, fields in events:
            body = {"type": kind, "sequence_number": self._number, **fields}
            written.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(body)))
            self._number += 1
        return b"".join(written)
