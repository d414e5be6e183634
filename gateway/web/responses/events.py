"""The event stream of a response, made from the chunks of a streamed chat completion.

    chat                                        events
      (status 200)                       ->       response.created, response.in_progress
      delta {"reasoning_content": ".."}  ->       output_item.added (reasoning), content_part.added,
                                                  reasoning_text.delta ..
      delta {"content": ".."}            ->       output_item.done, output_item.added (message), content_part.added,
                                                  output_text.delta ..
      delta {"refusal": ".."}            ->       .., refusal.delta ..
      delta {"tool_calls": [..]}         ->       .., output_item.added (function_call),
                                                  function_call_arguments.delta ..
      finish_reason, usage, end          ->       .., output_item.done, response.completed | response.incomplete

Events are numbered consecutively. One output item is open at a time: see streamed_items.py.
"""

from typing import Any

import msgspec

from gateway.domain.errors import StreamInterrupted
from gateway.domain.token_usage import TokenUsage
from gateway.relay.sse_payloads import SsePayloadReader
from gateway.web.openai import chat_completions
from gateway.web.responses.answers import ended_item
from gateway.web.responses.streamed_items import (
    Events,
    StreamedItem,
    StreamedMessage,
    StreamedReasoning,
    StreamedRefusal,
    StreamedToolCall,
)
from gateway.web.responses.tools import ChatTools

OUTPUT_BYTES_MAX = 8 * 1024**2
"""The most bytes of text, arguments and log probabilities in one response. All are kept, since the last event
repeats them; no model writes so much.
"""

Json = dict[str, Any]


class ResponseEvents:
    """Translates the stream of one chat completion to the events of a response."""

    def __init__(self, response: Json, tools: ChatTools, *, encodes_reasoning: bool = False) -> None:
        """Begin a stream.

        Args:
            response: The response object without output.
            tools: The tools of the request.
            encodes_reasoning: Whether reasoning items have `encrypted_content`.
        """
        self.response = response
        self._tools = tools
        self._encodes_reasoning = encodes_reasoning
        self.finish_reason: str | None = None
        """Why the chat completion ended; None until then."""
        self.usage: TokenUsage | None = None
        """The worker's token counts; None until they arrive."""
        self._id: str = response["id"]
        self._payloads = SsePayloadReader()
        self._number = 0
        self._open: StreamedItem | None = None
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
        """Return all remaining events except the last, and all output items.

        Raises StreamInterrupted if the chat completion has not ended.
        """
        if self.finish_reason is None:
            raise StreamInterrupted
        return self._encode(self._close_item()), self._output

    def last(self, response: Json) -> bytes:
        """Return the last event, which has the final state of the response."""
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
            if delta.content:
                events += self._add_text(delta.content, choice.token_logprobs)
            if delta.refusal:
                events += self._add_refusal(delta.refusal)
            for call in delta.tool_calls or ():
                events += self._add_call(call)
            self.finish_reason = choice.finish_reason or self.finish_reason
        return self._encode(events)

    def _count(self, delta: chat_completions.ChatMessage, more: int) -> None:
        """Count what a piece adds to the response. Raises StreamInterrupted beyond OUTPUT_BYTES_MAX."""
        calls = delta.tool_calls or ()
        arguments = sum(len(call.function.arguments or "") for call in calls)
        self._output_bytes += len(delta.content or "") + len(delta.refusal or "") + arguments + more
        self._output_bytes += len(delta.reasoning_text)
        if self._output_bytes > OUTPUT_BYTES_MAX:
            raise StreamInterrupted

    def _add_reasoning(self, text: str) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedReasoning):
            item = StreamedReasoning(self._next_index, self._id, encoded=self._encodes_reasoning)
            events = self._open_item(item)
        assert isinstance(self._open, StreamedReasoning)
        return events + self._open.more(text)

    def _add_text(self, text: str, logprobs: list[Any]) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedMessage):
            events = self._open_item(StreamedMessage(self._next_index, self._id))
        assert isinstance(self._open, StreamedMessage)
        return events + self._open.more(text, logprobs)

    def _add_refusal(self, text: str) -> Events:
        events: Events = []
        if not isinstance(self._open, StreamedRefusal):
            events = self._open_item(StreamedRefusal(self._next_index, self._id))
        assert isinstance(self._open, StreamedRefusal)
        return events + self._open.more(text)

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

    def _open_item(self, item: StreamedItem) -> Events:
        closed = self._close_item()
        self._open = item
        return closed + item.added()

    def _close_item(self) -> Events:
        if self._open is None:
            return []
        item, events = self._open.done()
        item = ended_item(item, self.finish_reason)
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
