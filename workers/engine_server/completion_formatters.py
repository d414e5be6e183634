"""The JSON of chat and text completions, as one object or in the chunks of a stream.

    chat     {"choices": [{"delta": {"role": "assistant", "content": ""}, ...}]}   first
             {"choices": [{"delta": {"content": "Hello"}, ...}]}                   each piece of text
             {"choices": [{"delta": {"tool_calls": [{"index": 0, ...}]}, ...}]}    each piece of a tool call
             {"choices": [{"delta": {}, "finish_reason": "stop"}]}                 last
             {"choices": [], "usage": {...}}                                       only with include_usage
    text     the same with {"text": "Hello"} instead of a delta, and no first chunk

A tool call begins with its id and name; its arguments follow piece by piece. Every chunk has `finish_reason`, which
is null until the last one. The last chunk also has `matched_stop` where a stop string ended the choice. With
include_usage every other chunk has `"usage": null`. The chunks of several choices are interleaved as they are
generated, each with the index of its choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workers.engine.request import Output
from workers.engine.tokenization.token_bytes import TokenBytes
from workers.engine_server.choices import ChoiceDelta, ChoiceState, CompletedChoice
from workers.engine_server.logprobs import chat_logprobs, completion_logprobs, text_length
from workers.engine_server.tools.call_parser import CallDelta

Json = dict[str, Any]

UNFINISHED: Mapping[str, Any] = {"finish_reason": None}


def usage(outputs: Sequence[Output], choices_per_prompt: int) -> Json:
    """Return the usage object: token counts from the last outputs of all choices.

    Each prompt counts once, however many choices it has.
    """
    # The first choice of a prompt reports what was cached before; the others read what the first has computed.
    firsts = outputs[::choices_per_prompt]
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
    """The fields and settings that all chunks of one completion have in common."""

    rid: str
    """The request's name; the completion's id is made from it."""
    model: str
    created: int
    """Unix seconds."""
    include_usage: bool = False
    choices_per_prompt: int = 1
    token_bytes: TokenBytes
    """The text and bytes of each token, for log probabilities."""
    logprobs: bool = False
    """Whether the client asked for log probabilities."""
    echoes: Sequence[str] = ()
    """The prompt's text before each choice's own text; empty where no echo was asked for."""

    def chunk(self, prefix: str, kind: str, choices: list[Json]) -> Json:
        """Return one chunk or one whole completion, still without its usage."""
        return {
            "id": f"{prefix}-{self.rid}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": choices,
        } | ({"usage": None} if self.include_usage else {})


class CompletionFormatter(Protocol):
    """The writer of one kind of completion: chat or text."""

    def first_chunk(self, index: int) -> Json | None:
        """Return the chunk that opens a choice, or None where this kind has no such chunk."""
        ...

    def delta_chunks(self, index: int, delta: ChoiceDelta) -> Iterator[Json]:
        """Yield the chunks for what one step added to a choice."""
        ...

    def last_chunk(self, index: int, choice: ChoiceState) -> Json:
        """Return the chunk that ends a choice."""
        ...

    def usage_chunk(self, outputs: Sequence[Output]) -> Json:
        """Return the chunk with the usage."""
        ...

    def whole(self, choices: Sequence[CompletedChoice], outputs: Sequence[Output]) -> Json:
        """Return the whole completion as one object, for clients that do not stream."""
        ...


class ChatCompletionFormatter:
    """Writes objects of the kinds chat.completion and chat.completion.chunk."""

    def __init__(self, metadata: CompletionMetadata) -> None:
        self._metadata = metadata

    def first_chunk(self, index: int) -> Json | None:
        """Return the chunk that names the assistant's role."""
        return self._delta(index, {"role": "assistant", "content": ""})

    def delta_chunks(self, index: int, delta: ChoiceDelta) -> Iterator[Json]:
        """Yield one chunk for the text and one for each piece of a tool call."""
        deltas: list[Json] = [{"content": delta.text}] if delta.text else []
        deltas += [{"tool_calls": [_call_delta(call)]} for call in delta.calls]
        # Log probabilities go with the first chunk that their tokens produced, or with an empty one.
        for number, fields in enumerate(deltas or [{"content": ""}]):
            yield self._delta(index, fields, logprobs=None if number else self._logprobs(delta))

    def last_chunk(self, index: int, choice: ChoiceState) -> Json:
        """Return an empty delta with the finish reason."""
        return self._delta(index, {}, choice.ending)

    def usage_chunk(self, outputs: Sequence[Output]) -> Json:
        """Return a chunk without choices that has the usage."""
        return self._chunk([]) | {"usage": usage(outputs, self._metadata.choices_per_prompt)}

    def whole(self, choices: Sequence[CompletedChoice], outputs: Sequence[Output]) -> Json:
        """Return the chat.completion object."""
        entries: list[Json] = [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": self._logprobs(choice),
                **choice.state.ending,
            }
            for index, choice in enumerate(choices)
        ]
        return self._metadata.chunk("chatcmpl", "chat.completion", entries) | {
            "usage": usage(outputs, self._metadata.choices_per_prompt)
        }

    def _delta(
        self, index: int, delta: Json, ending: Mapping[str, Any] = UNFINISHED, logprobs: Json | None = None
    ) -> Json:
        return self._chunk([{"index": index, "delta": delta, "logprobs": logprobs, **ending}])

    def _chunk(self, choices: list[Json]) -> Json:
        return self._metadata.chunk("chatcmpl", "chat.completion.chunk", choices)

    def _logprobs(self, part: ChoiceDelta | CompletedChoice) -> Json | None:
        return chat_logprobs(part.logprobs, self._metadata.token_bytes) if self._metadata.logprobs else None


def _message(choice: CompletedChoice) -> Json:
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.calls
    ]
    message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
    return message | {"content": choice.text or None, "tool_calls": calls} if calls else message


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
    """Writes objects of the kind text_completion."""

    def __init__(self, metadata: CompletionMetadata) -> None:
        self._metadata = metadata
        self._offsets: dict[int, int] = {}
        """Of each choice, the number of characters covered by the log probabilities written so far."""

    def first_chunk(self, index: int) -> Json | None:
        """Return a chunk with the echoed prompt, or None without echo."""
        echoes = self._metadata.echoes
        return self._chunk([_text(index, echoes[index])]) if echoes else None

    def delta_chunks(self, index: int, delta: ChoiceDelta) -> Iterator[Json]:
        """Yield one chunk with the text."""
        yield self._chunk([_text(index, delta.text, logprobs=self._logprobs(index, delta))])

    def last_chunk(self, index: int, choice: ChoiceState) -> Json:
        """Return an empty text with the finish reason."""
        return self._chunk([_text(index, "", choice.ending)])

    def usage_chunk(self, outputs: Sequence[Output]) -> Json:
        """Return a chunk without choices that has the usage."""
        return self._chunk([]) | {"usage": usage(outputs, self._metadata.choices_per_prompt)}

    def whole(self, choices: Sequence[CompletedChoice], outputs: Sequence[Output]) -> Json:
        """Return the whole text_completion object."""
        echoes = self._metadata.echoes or [""] * len(choices)
        texts = [
            _text(index, echo + choice.text, choice.state.ending, self._logprobs(index, choice))
            for index, (echo, choice) in enumerate(zip(echoes, choices, strict=True))
        ]
        return self._chunk(texts) | {"usage": usage(outputs, self._metadata.choices_per_prompt)}

    def _chunk(self, choices: list[Json]) -> Json:
        return self._metadata.chunk("cmpl", "text_completion", choices)

    def _logprobs(self, index: int, part: ChoiceDelta | CompletedChoice) -> Json | None:
        if not self._metadata.logprobs:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + text_length(part.logprobs, self._metadata.token_bytes)
        return completion_logprobs(part.logprobs, self._metadata.token_bytes, offset)


def _text(
    index: int, text: str, ending: Mapping[str, Any] = UNFINISHED, logprobs: Json | None = None
) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, **ending}
