"""The JSON of answers: chat and text completions, whole and in chunks.

    chat     {"choices": [{"delta": {"role": "assistant", "content": ""}, ...}]}   first
             {"choices": [{"delta": {"content": "Hello"}, ...}]}                   each piece of text
             {"choices": [{"delta": {"tool_calls": [{"index": 0, ...}]}, ...}]}    each piece of a tool call
             {"choices": [{"delta": {}, "finish_reason": "stop"}]}                 last; `matched_stop`: at which
             {"choices": [], "usage": {...}}                                       only with include_usage
    text     the same with {"text": "Hello"} instead of a delta, and no first chunk

A tool call begins with its id and name, and then come its arguments, piece by piece. Every chunk says
finish_reason, null until the last. With include_usage every other chunk has `"usage": null`. Several choices come
as they are made, each chunk with the index of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workers.engine.request import Output
from workers.engine.tokenization.token_bytes import PieceTable
from workers.engine_server import logprobs
from workers.engine_server.choices import ChoiceDelta, ChoiceState, CompletedChoice
from workers.engine_server.tools.call_parser import CallDelta

Json = dict[str, Any]

UNFINISHED: Mapping[str, Any] = {"finish_reason": None}


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
class CompletionMetadata:
    """What all chunks of one answer have in common."""

    rid: str
    model: str
    created: int
    include_usage: bool = False
    per_prompt: int = 1
    """Choices of each prompt."""
    pieces: PieceTable
    """What tokens are, for who asks for log probabilities."""
    logprobs: bool = False
    echoes: Sequence[str] = ()
    """What stands before each choice's text, if anything."""

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


class CompletionFormatter(Protocol):
    """How one kind of answer is written."""

    def first(self, index: int) -> Json | None:
        """The chunk before anything that a choice says, if there is one."""
        ...

    def pieces(self, index: int, said: ChoiceDelta) -> Iterator[Json]:
        """The chunks of what was said."""
        ...

    def last(self, index: int, choice: ChoiceState) -> Json:
        """The chunk that ends a choice."""
        ...

    def counts(self, outputs: Sequence[Output]) -> Json:
        """The chunk with the usage."""
        ...

    def whole(self, choices: Sequence[CompletedChoice], outputs: Sequence[Output]) -> Json:
        """Everything at once, for clients that do not stream."""
        ...


class ChatCompletionFormatter:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, head: CompletionMetadata) -> None:
        self._head = head

    def first(self, index: int) -> Json | None:
        """As promised by CompletionFormatter."""
        return self._delta(index, {"role": "assistant", "content": ""})

    def pieces(self, index: int, said: ChoiceDelta) -> Iterator[Json]:
        """As promised by CompletionFormatter."""
        deltas: list[Json] = [{"content": said.text}] if said.text else []
        deltas += [{"tool_calls": [_call_delta(call)]} for call in said.calls]
        # Log probabilities go with the first chunk of what their tokens said, or with an empty one.
        for number, delta in enumerate(deltas or [{"content": ""}]):
            yield self._delta(index, delta, logprobs=None if number else self._logprobs(said))

    def last(self, index: int, choice: ChoiceState) -> Json:
        """As promised by CompletionFormatter."""
        return self._delta(index, {}, choice.ending)

    def counts(self, outputs: Sequence[Output]) -> Json:
        """As promised by CompletionFormatter."""
        return self._chunk([]) | {"usage": usage(outputs, self._head.per_prompt)}

    def whole(self, choices: Sequence[CompletedChoice], outputs: Sequence[Output]) -> Json:
        """As promised by CompletionFormatter."""
        answers: list[Json] = [
            {
                "index": index,
                "message": _message(whole),
                "logprobs": self._logprobs(whole),
                **whole.choice.ending,
            }
            for index, whole in enumerate(choices)
        ]
        return self._head.chunk("chatcmpl", "chat.completion", answers) | {
            "usage": usage(outputs, self._head.per_prompt)
        }

    def _delta(
        self, index: int, delta: Json, ending: Mapping[str, Any] = UNFINISHED, logprobs: Json | None = None
    ) -> Json:
        return self._chunk([{"index": index, "delta": delta, "logprobs": logprobs, **ending}])

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head.chunk("chatcmpl", "chat.completion.chunk", choices)

    def _logprobs(self, said: ChoiceDelta | CompletedChoice) -> Json | None:
        return logprobs.of_chat(said.logprobs, self._head.pieces) if self._head.logprobs else None


def _message(whole: CompletedChoice) -> Json:
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in whole.calls
    ]
    message: Json = {"role": "assistant", "content": whole.text, "refusal": None}
    return message | {"content": whole.text or None, "tool_calls": calls} if calls else message


def _call_delta(call: CallDelta) -> Json:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


class TextCompletionFormatter:
    """text_completion."""

    def __init__(self, head: CompletionMetadata) -> None:
        self._head = head
        self._offsets: dict[int, int] = {}
        """Of each choice, the characters that log probabilities were told of."""

    def first(self, index: int) -> Json | None:
        """As promised by CompletionFormatter."""
        return self._chunk([_text(index, self._head.echoes[index])]) if self._head.echoes else None

    def pieces(self, index: int, said: ChoiceDelta) -> Iterator[Json]:
        """As promised by CompletionFormatter."""
        yield self._chunk([_text(index, said.text, logprobs=self._logprobs(index, said))])

    def last(self, index: int, choice: ChoiceState) -> Json:
        """As promised by CompletionFormatter."""
        return self._chunk([_text(index, "", choice.ending)])

    def counts(self, outputs: Sequence[Output]) -> Json:
        """As promised by CompletionFormatter."""
        return self._chunk([]) | {"usage": usage(outputs, self._head.per_prompt)}

    def whole(self, choices: Sequence[CompletedChoice], outputs: Sequence[Output]) -> Json:
        """As promised by CompletionFormatter."""
        echoes = self._head.echoes or [""] * len(choices)
        texts = [
            _text(index, echo + whole.text, whole.choice.ending, self._logprobs(index, whole))
            for index, (echo, whole) in enumerate(zip(echoes, choices, strict=True))
        ]
        return self._chunk(texts) | {"usage": usage(outputs, self._head.per_prompt)}

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head.chunk("cmpl", "text_completion", choices)

    def _logprobs(self, index: int, said: ChoiceDelta | CompletedChoice) -> Json | None:
        if not self._head.logprobs:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + logprobs.text_length(said.logprobs, self._head.pieces)
        return logprobs.of_text(said.logprobs, self._head.pieces, offset)


def _text(
    index: int, text: str, ending: Mapping[str, Any] = UNFINISHED, logprobs: Json | None = None
) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, **ending}
