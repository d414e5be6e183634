"""The event stream of a message, made from the chunks of a streamed chat completion.

    chat                                        events
      (status 200)                       ->       message_start, ping
      delta {"reasoning_content": ".."}  ->       content_block_start (thinking), content_block_delta ..
                                                  and one with its signature
      delta {"content": ".."}            ->       content_block_stop, content_block_start (text), ..
      delta {"tool_calls": [..]}         ->       content_block_stop, content_block_start (tool_use), ..
      finish_reason, usage, [DONE]       ->       content_block_stop, message_delta, message_stop

One content block is open at a time. `message_start` has the prompt tokens as counted by the gateway,
`message_delta` as counted by the worker.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from gateway.domain.errors import StreamInterrupted
from gateway.domain.token_usage import TokenUsage
from gateway.relay.sse_payloads import SsePayloadReader
from gateway.web.anthropic.answers import MAX_TOKENS, SIGNATURE, new_message, stop_fields, usage_object
from gateway.web.openai import chat_completions

Json = dict[str, Any]

_EMPTY_BLOCKS: dict[str, Json] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


class MessageEvents:
    """Translates the stream of one chat completion to the events of a message."""

    def __init__(
        self,
        message_id: str,
        model: str,
        prompt_tokens: int,
        asked_stops: Collection[str],
        *,
        length_reason: str = MAX_TOKENS,
        omit_content: bool = False,
    ) -> None:
        """Begin a stream.

        Args:
            message_id: Id of the message.
            model: Name of the model, as the client gave it.
            prompt_tokens: Tokens of the prompt, as the gateway counts them.
            asked_stops: The stop sequences of the request.
            length_reason: `stop_reason` of an answer that reached its length limit.
            omit_content: Whether the content is left out, because the request only warms the cache.
        """
        self._message_id = message_id
        self._model = model
        self._usage = TokenUsage(prompt_tokens=prompt_tokens)
        self._asked_stops = asked_stops
        self._length_reason = length_reason
        self._omit_content = omit_content
        self._payloads = SsePayloadReader()
        self._open: str | None = None
        self._index = -1
        self._calls: dict[int, int] = {}  # index of a tool call -> index of its content block
        self._finish_reason: str | None = None
        self._stop_text: str | None = None

    def begin(self) -> bytes:
        """Return the first events."""
        message = new_message(self._message_id, self._model) | {"usage": usage_object(self._usage)}
        return event("message_start", {"message": message}) + event("ping", {})

    def feed(self, data: bytes) -> bytes:
        """Return the events of the next bytes of the stream.

        Raises StreamInterrupted, WorkerError, ContextExceeded.
        """
        return b"".join(self._chunk_events(payload) for payload in self._payloads.feed(data))

    def end(self) -> bytes:
        """Return the last events. Raises StreamInterrupted if the chat completion has not ended."""
        if self._finish_reason is None:
            raise StreamInterrupted
        reason, stop = stop_fields(
            self._finish_reason,
            self._stop_text,
            self._asked_stops,
            self._length_reason,
            has_calls=bool(self._calls),
        )
        if self._omit_content:
            reason, stop = MAX_TOKENS, None
        delta = {"stop_reason": reason, "stop_sequence": stop}
        return (
            self._close_block()
            + event("message_delta", {"delta": delta, "usage": usage_object(self._usage)})
            + event("message_stop", {})
        )

    def _chunk_events(self, payload: bytes) -> bytes:
        chunk = chat_completions.decode_chat_completion(payload)
        if chunk.error is not None:
            raise chat_completions.stream_failure(chunk.error)
        self._usage = chunk.parsed_usage or self._usage
        events = []
        # The last chunk has the usage and no choices.
        for choice in chunk.choices[:1]:
            delta = (choice.delta if not self._omit_content else None) or chat_completions.ChatMessage()
            if delta.reasoning_text:
                events += [
                    self._ensure_block("thinking"),
                    self._delta_event("thinking_delta", "thinking", delta.reasoning_text),
                ]
            if delta.text:
                events += [self._ensure_block("text"), self._delta_event("text_delta", "text", delta.text)]
            events += [self._call_events(call) for call in delta.tool_calls or ()]
            if choice.finish_reason is not None:
                self._finish_reason, self._stop_text = choice.finish_reason, choice.stop_text
        return b"".join(events)

    def _ensure_block(self, kind: str) -> bytes:
        """Return the events that make a block of this kind the open one."""
        return b"" if self._open == kind else self._open_block(kind, _EMPTY_BLOCKS[kind])

    def _call_events(self, call: chat_completions.ChatToolCall) -> bytes:
        started = b""
        if call.index not in self._calls:
            block = {
                "type": "tool_use",
                "id": call.id or f"toolu_{call.index}",
                "name": call.function.name or "",
                "input": {},
            }
            started = self._open_block("tool_use", block)
            self._calls[call.index] = self._index
        if not call.function.arguments:
            return started
        more = {"type": "input_json_delta", "partial_json": call.function.arguments}
        return started + event("content_block_delta", {"index": self._calls[call.index], "delta": more})

    def _open_block(self, kind: str, block: Json) -> bytes:
        closed = self._close_block()
        self._open = kind
        self._index += 1
        return closed + event("content_block_start", {"index": self._index, "content_block": block})

    def _delta_event(self, kind: str, name: str, text: str) -> bytes:
        return event("content_block_delta", {"index": self._index, "delta": {"type": kind, name: text}})

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta_event("signature_delta", "signature", SIGNATURE)
        self._open = None
        return signed + event("content_block_stop", {"index": self._index})


def event(kind: str, fields: Json) -> bytes:
    """Return one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def error_event(body: bytes) -> bytes:
    """Return the event of an error, which ends the stream of a message. `body` is the error as JSON."""
    return b"event: error\ndata: " + body + b"\n\n"
