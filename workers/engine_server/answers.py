"""The JSON of answers: chat and text completions, whole and in chunks.

    chat     {"choices": [{"delta": {"role": "assistant", "content": ""}, ...}]}   first
             {"choices": [{"delta": {"content": "Hello"}, ...}]}                   each piece
             {"choices": [{"delta": {}, "finish_reason": "stop"}]}                 last
             {"choices": [], "usage": {...}}                                       only with include_usage
    text     the same with {"text": "Hello"} instead of a delta, and no first chunk

Every chunk says finish_reason, null until the last. With include_usage every other chunk has `"usage": null`.
Several choices come as they are made, each chunk with the index of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workers.engine.engine import Output

Json = dict[str, Any]


def usage(outputs: Sequence[Output], per_prompt: int) -> Json:
    """Token counts after the last outputs of all choices; a prompt counts once for all `per_prompt` of its own."""
    # The first of them has found what was cached before; the others find what the first has computed.
    firsts = outputs[::per_prompt]
    prompt_tokens = sum(output.prompt_tokens for output in firsts)
    completion_tokens = sum(output.completion_tokens for output in outputs)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(output.cached_tokens for output in firsts)},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all chunks of one answer have in common."""

    rid: str
    model: str
    created: int
    include_usage: bool = False
    per_prompt: int = 1
    """Choices of each prompt."""

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

    def first(self, index: int) -> Json | None:
        """The chunk before any text of a choice, if there is one."""
        ...

    def piece(self, index: int, text: str) -> Json:
        """A chunk of text."""
        ...

    def last(self, index: int, finish: str) -> Json:
        """The chunk that ends the text of a choice."""
        ...

    def counts(self, outputs: Sequence[Output]) -> Json:
        """The chunk with the usage."""
        ...

    def whole(self, texts: Sequence[str], outputs: Sequence[Output]) -> Json:
        """Everything at once, for clients that do not stream."""
        ...


class ChatAnswer:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def first(self, index: int) -> Json | None:
        """As promised by Answer."""
        return self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str) -> Json:
        """As promised by Answer."""
        return self._delta(index, {"content": text})

    def last(self, index: int, finish: str) -> Json:
        """As promised by Answer."""
        return self._delta(index, {}, finish)

    def counts(self, outputs: Sequence[Output]) -> Json:
        """As promised by Answer."""
        return self._chunk([]) | {"usage": usage(outputs, self._head.per_prompt)}

    def whole(self, texts: Sequence[str], outputs: Sequence[Output]) -> Json:
        """As promised by Answer."""
        choices: list[Json] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": output.finish,
            }
            for index, (text, output) in enumerate(zip(texts, outputs, strict=True))
        ]
        return self._head.chunk("chatcmpl", "chat.completion", choices) | {
            "usage": usage(outputs, self._head.per_prompt)
        }

    def _delta(self, index: int, delta: Json, finish: str | None = None) -> Json:
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}])

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head.chunk("chatcmpl", "chat.completion.chunk", choices)


class TextAnswer:
    """text_completion."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def first(self, index: int) -> Json | None:
        """As promised by Answer."""
        return None

    def piece(self, index: int, text: str) -> Json:
        """As promised by Answer."""
        return self._chunk([_text(index, text, None)])

    def last(self, index: int, finish: str) -> Json:
        """As promised by Answer."""
        return self._chunk([_text(index, "", finish)])

    def counts(self, outputs: Sequence[Output]) -> Json:
        """As promised by Answer."""
        return self._chunk([]) | {"usage": usage(outputs, self._head.per_prompt)}

    def whole(self, texts: Sequence[str], outputs: Sequence[Output]) -> Json:
        """As promised by Answer."""
        ended = enumerate(zip(texts, outputs, strict=True))
        return self._chunk([_text(index, text, output.finish) for index, (text, output) in ended]) | {
            "usage": usage(outputs, self._head.per_prompt)
        }

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head.chunk("cmpl", "text_completion", choices)


def _text(index: int, text: str, finish: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
