"""Puts a whole answer together from its stream.

A client that wants its answer in one piece gets it so; the worker may send a stream all the same. Its first token
then shows when the prompt is computed, which makes room in the worker's window for the next request, where a whole
answer would take that room until its last token.

    chunk   {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}     pieces of texts are joined
            {"choices": [{"index": 0, "delta": {"content": "lo"}}]}      lists are continued, or merged by `index`
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}     of other values the last one holds
            {"choices": [], "usage": {...}}
    whole   {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": {...}}

Not every server reports why an answer ended. A stream that ends with `[DONE]` is complete: its `finish_reason` is
null then, as it is for a client that streams. A stream without either has broken off.

Unknown fields are merged by the same rules, and empty fields that streams leave out are filled in from the shape of
the worker's whole answers (gateway/fleet/response_shape.py). faithful_streams.py decides for which requests a
stream is requested.
"""

from typing import Any

import msgspec

from gateway.domain.errors import RefusedByWorker, StreamInterrupted
from gateway.domain.request import Surface
from gateway.fleet.response_shape import ObjectShape
from gateway.relay.chunk_template import ChunkTemplate, chunk_template, only_text_field
from gateway.relay.long_answer import LONG_BYTES
from gateway.relay.long_texts import LongTexts
from gateway.relay.worker_errors import read_error

CONSTANT_TEXTS = frozenset({"role", "id", "type", "name"})
"""Texts that are not joined: they are whole in the first chunk, or in each."""


FINAL_TEXTS = frozenset({"finish_reason", "stop_reason", "matched_stop"})
"""Texts that are not joined: the last one holds."""

UNJOINED_TEXTS = CONSTANT_TEXTS | FINAL_TEXTS

DEPTH_MAX = 32
"""Levels of nesting of a chunk."""

VALUES_MAX = 100_000
"""Values of one chunk, commas and brackets in texts included: decoding more would stall the event loop."""

INDEXED_MAX = 128
"""Items of a list in which a piece is looked for by its `index`: no answer has more tool calls."""

VALUE_BYTES = 64
"""Memory of a value in an answer beside its text, as Python's objects: rounded up for most."""


class StreamAggregator:
    """Joins the chunks of one stream into the whole answer."""

    def __init__(self, surface: Surface, shape: ObjectShape | None = None) -> None:
        """Create an aggregator.

        Args:
            surface: The API: chat or text completions.
            shape: The shape of the worker's whole answers, if it is known.
        """
        self._chat = surface is Surface.CHAT
        self._shape = shape
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self.bytes_kept = 0
        """The memory that the chunks so far take, about."""
        self.long_texts: LongTexts | None = None
        """The long texts for which `body` has left marks; None if it has none."""
        self._template: ChunkTemplate | None = None  # of the chunk before
        self._text = _TextPieces()  # the text that a chunk of this template continues

    def add(self, payload: bytes) -> None:
        """Merge the next chunk.

        Raises StreamInterrupted for a malformed one, RefusedByWorker for an error that is the client's mistake.
        """
        if self._template is not None:
            piece = self._template.text_of(payload)
            if piece is not None:
                self._text.append(piece)
                self.bytes_kept += len(piece) + VALUE_BYTES
                return
        if len(payload) > VALUES_MAX and sum(map(payload.count, (b"{", b"[", b","))) > VALUES_MAX:
            raise StreamInterrupted
        try:
            chunk = msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise StreamInterrupted from err
        if chunk.get("error") is not None or chunk.get("object") == "error":
            raise self._failure(chunk, payload)
        choices = chunk.pop("choices", None)
        for name, value in chunk.items():
            if value is not None or name not in self._head:
                self._head[name] = value
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or not isinstance(choice.get("index", 0), int):
                raise StreamInterrupted
            into = self._choices.setdefault(choice.get("index", 0), {})
            self.bytes_kept += _merge(into, choice, DEPTH_MAX)
        self._template = self._template_of(payload, choices)

    def _template_of(self, payload: bytes, choices: Any) -> ChunkTemplate | None:
        """Return the template of a chunk that was merged, and keep the text that it continues."""
        if not isinstance(choices, list) or len(choices) != 1:
            return None
        choice = choices[0]
        name = only_text_field(choice, chat=self._chat, unjoined=UNJOINED_TEXTS)
        if name is None:
            return None
        merged = self._choices[choice.get("index", 0)]
        added, merged = (choice["delta"], merged["delta"]) if self._chat else (choice, merged)
        if not isinstance(merged.get(name), _TextPieces):
            return None
        self._text = merged[name]
        return chunk_template(payload, name, added[name])

    def body(self, *, done: bool) -> bytes:
        """Return the whole answer, of a long one without `long_texts`.

        Raises StreamInterrupted if a choice has not ended. `done`: whether the stream ended with `[DONE]`.
        """
        if self.bytes_kept > LONG_BYTES:
            self.long_texts = LongTexts()
        choices = [
            _finished(
                _joined(self._choices[index], self.long_texts),
                chat=self._chat,
                has_shape=self._shape is not None,
            )
            for index in sorted(self._choices)
        ]
        if not choices or not (done or all(choice.get("finish_reason") for choice in choices)):
            raise StreamInterrupted
        for choice in choices:
            choice.setdefault("finish_reason", None)
        usage = {"usage": self._head.pop("usage")} if "usage" in self._head else {}
        whole = {**self._head, "choices": choices, **usage}
        if self._chat:
            whole["object"] = "chat.completion"
        return msgspec.json.encode(self._shape.filled(whole) if self._shape is not None else whole)

    def _failure(self, chunk: dict[str, Any], payload: bytes) -> StreamInterrupted | RefusedByWorker:
        """Return the error that a chunk reports; engines may find a mistake only after the stream has begun."""
        error = chunk.get("error")
        code = error.get("code") if isinstance(error, dict) else chunk.get("code")
        if not self._choices and type(code) is int and 400 <= code < 500:
            reported = read_error(payload)
            if (too_long := reported.context_refusal) is not None:
                return too_long
            message = reported.message or "The worker refused the request."
            return RefusedByWorker(code, message, param=reported.param)
        return StreamInterrupted()


class _TextPieces(list[str]):
    """The pieces of a text that is not complete; they are joined once."""


def _merge(into: dict[str, Any], more: dict[str, Any], depth: int) -> int:
    """Merge an object of a chunk into what came before, and return roughly how much memory it takes.

    Raises StreamInterrupted for too deep a nesting, and for too many items with an `index`.
    """
    if depth == 0:
        raise StreamInterrupted
    size = 0
    for name, value in more.items():
        before = into.get(name)
        if before is None:
            into[name], added = _mergeable(name, value, depth)
            size += added + VALUE_BYTES
        elif value is None or name == "index":
            continue
        elif isinstance(before, _TextPieces) and isinstance(value, str):
            before.append(value)
            size += len(value) + VALUE_BYTES
        elif isinstance(before, dict) and isinstance(value, dict):
            size += _merge(before, value, depth - 1)
        elif isinstance(before, list) and isinstance(value, list):
            size += _continue(before, value, depth)
        elif name not in CONSTANT_TEXTS or not isinstance(value, str):
            into[name] = value
            size += _size(value, depth)
    return size


def _mergeable(name: str, value: Any, depth: int) -> tuple[Any, int]:
    """Return a value in the form into which more can be merged, and its memory."""
    if isinstance(value, str):
        return _TextPieces([value]) if name not in UNJOINED_TEXTS else value, len(value)
    if isinstance(value, dict):
        merged: dict[str, Any] = {}
        return merged, _merge(merged, value, depth - 1)
    if isinstance(value, list):
        items: list[Any] = []
        return items, _continue(items, value, depth)
    return value, 0


def _continue(items: list[Any], more: list[Any], depth: int) -> int:
    """Add the items of a list, and return their memory.

    An item with an `index`, as pieces of tool calls have, is merged into that one.
    """
    size = 0
    for item in more:
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(index, int):
            items.append(item)
            size += _size(item, depth)
            continue
        if len(items) > INDEXED_MAX:
            raise StreamInterrupted
        known = next((one for one in items if isinstance(one, dict) and one.get("index") == index), None)
        if known is None:
            items.append(known := {})
        size += _merge(known, item, depth - 1)
    return size


def _size(value: Any, depth: int) -> int:
    """Return the memory of a decoded value, about. Raises StreamInterrupted for too deep a nesting."""
    if depth == 0:
        raise StreamInterrupted
    if isinstance(value, str):
        return VALUE_BYTES + len(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return VALUE_BYTES + sum([_size(inner, depth - 1) for inner in value])
    return VALUE_BYTES


def _finished(whole: dict[str, Any], *, chat: bool, has_shape: bool) -> dict[str, Any]:
    """Return a choice, whose texts are joined, as it is in a whole answer.

    `has_shape`: whether the shape of the worker's answers is known, by which `refusal: null` is in them or not.
    """
    if not chat:
        return whole
    empty: dict[str, Any] = {} if has_shape else {"refusal": None}
    message = {"role": "assistant", "content": None, **empty, **(whole.pop("delta", None) or {})}
    calls = message.get("tool_calls")
    if calls:
        calls.sort(key=lambda call: call.get("index", 0))
        for call in calls:
            call.pop("index", None)
        message["content"] = message["content"] or None
    if isinstance(message.get("reasoning"), str):
        # The content of an answer that is reasoning alone is null in vLLM; its stream begins with an empty text.
        message["content"] = message["content"] or None
    return {"index": whole.pop("index", 0), "message": message, **whole}


def _joined(value: Any, long_texts: LongTexts | None) -> Any:
    """Return a merged value with the pieces of its texts joined, or marks of `long_texts` for them."""
    if isinstance(value, _TextPieces):
        return "".join(value) if long_texts is None else long_texts.marked(value)
    if isinstance(value, dict):
        return {name: _joined(inner, long_texts) for name, inner in value.items()}
    if isinstance(value, list):
        return [_joined(inner, long_texts) for inner in value]
    return value
