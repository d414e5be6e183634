"""The event stream of a response, made from the chunks of a streamed chat completion.

    chat                                        events
      (status 200)                       ->       response.created, response.in_progress
      delta {"reasoning_content": ".."}  ->       output_item.added (reasoning), content_part.added,
                                                  reasoning_text.delta ..
      delta {"content": ".."}            ->       output_item.done, output_item.added (message), content_part.added,
                                                  output_text.delta ..
      delta {"tool_calls": [..]}         ->       .., output_item.added (function_call),
                                                  function_call_arguments.delta ..
      finish_reason, usage, end          ->       .., output_item.done, response.completed | response.incomplete

Every event has a number, one more than the event before. One output item is open at a time; each is of one of the
Streamed classes below, which collects what the item contains.
"""

from typing import Any

import msgspec

from gateway.domain.errors import StreamInterrupted
from gateway.domain.token_usage import TokenUsage
from gateway.relay.sse_payloads import SsePayloadReader
from gateway.web.openai import chat_completions
from gateway.web.responses import answers
from gateway.web.responses.items import new_item_id
from gateway.web.responses.tools import ChatTools, ClientTool

OUTPUT_BYTES_MAX = 8 * 1024**2
"""Text, arguments and log probabilities of one response. All of them are kept, since the last event has them again;
no model writes so much.
"""

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


class StreamedReasoning:
    """A reasoning item under way. It has one content part."""

    def __init__(self, output_index: int, response: str) -> None:
        self._id = new_item_id("reasoning", response)
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
        return answers.reasoning_item(self._id, text), [
            ("response.reasoning_text.done", {**self._position, "text": text}),
            ("response.content_part.done", {**self._position, "part": answers.reasoning_part(text)}),
        ]


class StreamedToolCall:
    """A tool call under way, of a function or of a tool that takes a text.

    The text of the latter is one JSON string of the arguments: it can be sent only when all of it has arrived.
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


class ResponseEvents:
    """Translates the stream of one chat completion to the events of a response."""

    def __init__(self, response: Json, tools: ChatTools) -> None:
        """Begin a stream.

        Args:
            response: The response object without output.
            tools: The tools of the request.
        """
        self.response = response
        self._tools = tools
        self.finish_reason: str | None = None
        """Why the chat completion ended; None until it has."""
        self.usage: TokenUsage | None = None
        """The worker's token counts, once they have arrived."""
        self._id: str = response["id"]
        self._payloads = SsePayloadReader()
        self._number = 0
        self._open: StreamedMessage | StreamedReasoning | StreamedToolCall | None = None
        self._call_index: int | None = None
        self._output: list[Json] = []
        self._output_bytes = 0

    def begin(self) -> bytes:
        """Return the events of a response that starts in progress."""
        opened = {"response": self.response}
        return self._encode([("response.created", opened), ("response.in_progress", opened)])

    def queued(self) -> bytes:
        """Return the events of a background response that waits for its turn."""
        opened = {"response": self.response}
        return self._encode([("response.created", opened), ("response.queued", opened)])

    def in_progress(self, response: Json) -> bytes:
        """Return the event of a queued response that is now in progress."""
        return self._encode([("response.in_progress", {"response": response})])

    def feed(self, data: bytes) -> bytes:
        """Return the events of the next bytes of the stream.

        Raises StreamInterrupted also for a response of more than OUTPUT_BYTES_MAX, WorkerError, ContextExceeded.
        """
        return b"".join(self._chunk_events(payload) for payload in self._payloads.feed(data))

    def close(self) -> tuple[bytes, list[Json]]:
        """Return the events up to the last but one, and all output items.

        Raises StreamInterrupted if the chat completion has not ended.
        """
        if self.finish_reason is None:
            raise StreamInterrupted
        return self._encode(self._close_item()), self._output

    def last(self, response: Json) -> bytes:
        """Return the last event, which says how the response has ended."""
        return self._encode([(f"response.{response['status']}", {"response": response})])

    def _chunk_events(self, payload: bytes) -> bytes:
        chunk = chat_completions.decode_chat_completion(payload)
        if chunk.error is not None:
            raise chat_completions.stream_failure(chunk.error)
        self.usage = chunk.parsed_usage or self.usage
        events: Events = []
        for choice in chunk.choices[:1]:
            delta = choice.delta or chat_completions.ChatMessage()
            self._count(delta, len(payload) if choice.token_logprobs else 0)
            if delta.reasoning_text:
                events += self._add_reasoning(delta.reasoning_text)
            if delta.text:
                events += self._add_text(delta.text, choice.token_logprobs)
            for call in delta.tool_calls or ():
                events += self._add_call(call)
            self.finish_reason = choice.finish_reason or self.finish_reason
        return self._encode(events)

    def _count(self, delta: chat_completions.ChatMessage, more: int) -> None:
        """Count what a piece adds to the response. Raises StreamInterrupted beyond OUTPUT_BYTES_MAX."""
        calls = delta.tool_calls or ()
        arguments = sum(len(call.function.arguments or "") for call in calls)
        self._output_bytes += len(delta.text or "") + len(delta.reasoning_text or "") + arguments + more
        if self._output_bytes > OUTPUT_BYTES_MAX:
            raise StreamInterrupted

    def _add_reasoning(self, text: str) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedReasoning):
            events = self._open_item(StreamedReasoning(self._next_index, self._id))
        assert isinstance(self._open, StreamedReasoning)
        return events + self._open.more(text)

    def _add_text(self, text: str, logprobs: list[Any]) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedMessage):
            events = self._open_item(StreamedMessage(self._next_index, self._id))
        assert isinstance(self._open, StreamedMessage)
        return events + self._open.more(text, logprobs)

    def _add_call(self, call: chat_completions.ChatToolCall) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedToolCall) or call.index != self._call_index:
            tool = self._tools.find(call.function.name or "")
            events = self._open_item(StreamedToolCall(self._next_index, call, self._id, tool))
            self._call_index = call.index
        assert isinstance(self._open, StreamedToolCall)
        return events + (self._open.more(call.function.arguments) if call.function.arguments else [])

    @property
    def _next_index(self) -> int:
        """The output index of an item that begins now."""
        return len(self._output) + (self._open is not None)

    def _open_item(self, item: StreamedMessage | StreamedReasoning | StreamedToolCall) -> Events:
        closed = self._close_item()
        self._open = item
        return closed + item.added()

    def _close_item(self) -> Events:
        if self._open is None:
            return []
        item, events = self._open.done()
        at = len(self._output)
        self._output.append(item)
        self._open = None
        return [*events, ("response.output_item.done", {"output_index": at, "item": item})]

    def _encode(self, events: Events) -> bytes:
        written = []
        for kind, fields in events:
            body = {"type": kind, "sequence_number": self._number, **fields}
            written.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(body)))
            self._number += 1
        return b"".join(written)
