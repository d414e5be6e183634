"""A stream of chat chunks to the events of a message.

    chat                                        events
      (status 200)                       ->       message_start, ping
      delta {"reasoning_content": ".."}  ->       content_block_start (thinking), content_block_delta ..
      delta {"content": ".."}            ->       content_block_stop, content_block_start (text), ..
      delta {"tool_calls": [..]}         ->       content_block_stop, content_block_start (tool_use), ..
      finish_reason, usage, [DONE]       ->       content_block_stop, message_delta, message_stop

One block is open at a time. `message_start` has the prompt's tokens as the gateway counts them; `message_delta` has
the worker's own count.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from gateway.domain.errors import StreamInterrupted
from gateway.domain.token_usage import TokenUsage
from gateway.relay.sse_payloads import Payloads
from gateway.web.anthropic.answers import CUT, opening, stopped, usage
from gateway.web.openai import chat_completions

Json = dict[str, Any]

_STARTS: dict[str, Json] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": "", "citations": None},
}


class MessageEvents:
    """One stream. `asked_stops`: the stop sequences of the request. `cut`: why it may be too short. `mute`:
    nothing that is said is told.
    """

    def __init__(
        self,
        message_id: str,
        model: str,
        prompt_tokens: int,
        asked_stops: Collection[str],
        *,
        cut: str = CUT,
        mute: bool = False,
    ) -> None:
        self._message_id = message_id
        self._model = model
        self._counted = TokenUsage(prompt_tokens=prompt_tokens)
        self._asked_stops = asked_stops
        self._cut = cut
        self._mute = mute
        self._payloads = Payloads()
        self._open: str | None = None
        self._index = -1
        self._calls: dict[int, int] = {}  # a call's number to its block's
        self._finish: str | None = None
        self._stop_text: str | None = None

    def begin(self) -> bytes:
        message = opening(self._message_id, self._model) | {"usage": usage(self._counted)}
        return event("message_start", {"message": message}) + event("ping", {})

    def feed(self, data: bytes) -> bytes:
        """The events of so much more of the stream. Raises StreamInterrupted, WorkerError."""
        return b"".join(self._of(payload) for payload in self._payloads.feed(data))

    def end(self) -> bytes:
        """Raises StreamInterrupted if the answer had not ended."""
        if self._finish is None:
            raise StreamInterrupted
        called = bool(self._calls)
        reason, stop = stopped(self._finish, self._stop_text, self._asked_stops, self._cut, called=called)
        if self._mute:
            reason, stop = CUT, None
        delta = {"stop_reason": reason, "stop_sequence": stop}
        return (
            self._stop()
            + event("message_delta", {"delta": delta, "usage": usage(self._counted)})
            + event("message_stop", {})
        )

    def _of(self, payload: bytes) -> bytes:
        chunk = chat_completions.decode_chat_completion(payload)
        if chunk.error is not None:
            raise StreamInterrupted
        self._counted = chunk.parsed_usage or self._counted
        events = []
        # With usage in every chunk the last of them has no choices and ends nothing.
        for choice in chunk.choices[:1]:
            said = (choice.delta if not self._mute else None) or chat_completions.ChatMessage()
            if said.reasoning_text:
                events += [
                    self._in("thinking"),
                    self._delta("thinking_delta", "thinking", said.reasoning_text),
                ]
            if said.text:
                events += [self._in("text"), self._delta("text_delta", "text", said.text)]
            events += [self._call(call) for call in said.tool_calls or ()]
            if choice.finish_reason is not None:
                self._finish, self._stop_text = choice.finish_reason, choice.stop_text
        return b"".join(events)

    def _in(self, kind: str) -> bytes:
        """A block of this kind is the open one."""
        return b"" if self._open == kind else self._start(kind, _STARTS[kind])

    def _call(self, call: chat_completions.ChatToolCall) -> bytes:
        started = b""
        if call.index not in self._calls:
            block = {
                "type": "tool_use",
                "id": call.id or f"toolu_{call.index}",
                "name": call.function.name or "",
                "input": {},
            }
            started = self._start("tool_use", block)
            self._calls[call.index] = self._index
        if not call.function.arguments:
            return started
        more = {"type": "input_json_delta", "partial_json": call.function.arguments}
        return started + event("content_block_delta", {"index": self._calls[call.index], "delta": more})

    def _start(self, kind: str, block: Json) -> bytes:
        stopped_before = self._stop()
        self._open = kind
        self._index += 1
        return stopped_before + event("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        return event("content_block_delta", {"index": self._index, "delta": {"type": kind, name: text}})

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return event("content_block_stop", {"index": self._index})


def event(kind: str, fields: Json) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def error_event(body: bytes) -> bytes:
    """The last event of a message that cannot go on."""
    return b"event: error\ndata: " + body + b"\n\n"
