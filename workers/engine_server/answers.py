"""The JSON of answers: chat and text completions, whole and in chunks.

    chat     {"choices": [{"delta": {"role": "assistant", "content": ""}, ...}]}   first
             {"choices": [{"delta": {"content": "Hello"}, ...}]}                   each piece
             {"choices": [{"delta": {}, "finish_reason": "stop"}]}                 last
             {"choices": [], "usage": {...}}                                       only with include_usage
    text     the same with {"text": "Hello"} instead of a delta, and no first chunk

Every chunk says finish_reason, null until the last. With include_usage every other chunk has `"usage": null`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from workers.engine.engine import Output

Json = dict[str, Any]


def usage(output: Output) -> Json:
    """Token counts after `output`."""
    return {
        "prompt_tokens": output.prompt_tokens,
        "completion_tokens": output.completion_tokens,
        "total_tokens": output.prompt_tokens + output.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all chunks of one answer have in common."""

    rid: str
    model: str
    created: int
    include_usage: bool = False

    def chunk(self, prefix: str, kind: str, choices: list[Json]) -> Json:
        """One chunk or one whole answer, still without usage."""
        return {
            "id": f"{prefix}-{self.rid}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": choices,
        } | ({"usage": None} if self.include_usage else {})


class Answer(Protocol):
    """How one kind of answer is written."""

    def first(self) -> Json | None:
        """The chunk before any text, if there is one."""
        ...

    def piece(self, text: str) -> Json:
        """A chunk of text."""
        ...

    def last(self, finish: str) -> Json:
        """The chunk that ends the text."""
        ...

    def counts(self, output: Output) -> Json:
        """The chunk with the usage."""
        ...

    def whole(self, text: str, output: Output) -> Json:
        """Everything at once, for clients that do not stream."""
        ...


class ChatAnswer:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def first(self) -> Json | None:
        """As promised by Answer."""
        return self._delta({"role": "assistant", "content": ""})

    def piece(self, text: str) -> Json:
        """As promised by Answer."""
        return self._delta({"content": text})

    def last(self, finish: str) -> Json:
        """As promised by Answer."""
        return self._delta({}, finish)

    def counts(self, output: Output) -> Json:
        """As promised by Answer."""
        return self._chunk([]) | {"usage": usage(output)}

    def whole(self, text: str, output: Output) -> Json:
        """As promised by Answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": output.finish}
        return self._head.chunk("chatcmpl", "chat.completion", [choice]) | {"usage": usage(output)}

    def _delta(self, delta: Json, finish: str | None = None) -> Json:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head.chunk("chatcmpl", "chat.completion.chunk", choices)


class TextAnswer:
    """text_completion."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def first(self) -> Json | None:
        """As promised by Answer."""
        return None

    def piece(self, text: str) -> Json:
        """As promised by Answer."""
        return self._choice(text, None)

    def last(self, finish: str) -> Json:
        """As promised by Answer."""
        return self._choice("", finish)

    def counts(self, output: Output) -> Json:
        """As promised by Answer."""
        return self._chunk([]) | {"usage": usage(output)}

    def whole(self, text: str, output: Output) -> Json:
        """As promised by Answer."""
        return self._choice(text, output.finish) | {"usage": usage(output)}

    def _choice(self, text: str, finish: str | None) -> Json:
        return self._chunk([{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}])

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head.chunk("cmpl", "text_completion", choices)
