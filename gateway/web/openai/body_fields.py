"""The fields of OpenAI's inference requests that the gateway reads, and their decoding from JSON.

A body is split into its top-level fields, whose values stay raw JSON; beside them the fields of one struct are
decoded. Long bodies are decoded in steps, between which other threads run.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from gateway.concurrency.gil_yield import yield_gil
from gateway.domain.request import Surface
from gateway.web.bodies.body_limits import SHORT_BYTES_MAX, check_values
from gateway.web.bodies.long_id_lists import decode_fields
from gateway.web.bodies.long_strings import restore_strings, take_long_strings

CHOICES_MAX = 128
"""The most choices of one request (`n`, `best_of`)."""
UTF8_SLICE_BYTES = 32 * 1024
"""The bytes that are checked in one call, which holds the GIL until it returns."""
WHOLE_NUMBER_MAX = 2**31 - 1
LOGPROBS_MAX = 20
"""The most log probabilities per token: OpenAI's bound, and vLLM's default."""

# Zero output tokens pass, since OpenAI's document allows them; the worker may refuse them.
TokensMax: TypeAlias = Annotated[int, Meta(ge=0, le=WHOLE_NUMBER_MAX)]
Logprobs: TypeAlias = Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)]

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")


class StreamOptions(msgspec.Struct):
    """The `stream_options` of a request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class InferenceBody(msgspec.Struct):
    """The fields that the gateway reads of every inference request."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokensMax | None = None
    max_completion_tokens: TokensMax | None = None
    n: Annotated[int, Meta(ge=1, le=CHOICES_MAX)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=CHOICES_MAX)] | None = None
    logprobs: bool | Logprobs | None = None
    top_logprobs: Logprobs | None = None
    prompt_logprobs: bool | Logprobs | None = None


class ChatBody(InferenceBody):
    """The fields that the gateway reads of a chat completion request."""

    messages: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(InferenceBody):
    """The fields that the gateway reads of a completion request."""

    prompt: str | list[Any] | None = None


class EmbeddingBody(InferenceBody):
    """The fields that the gateway reads of an embedding request."""

    input: str | list[Any] | None = None
    messages: list[Any] | None = None


class TextsBody(InferenceBody):
    """The fields in which reranking, score, moderation and speech requests have their texts."""

    input: Any = None
    query: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    text_1: Any = None
    text_2: Any = None


_BODIES: Mapping[Surface, type[InferenceBody]] = {
    Surface.CHAT: ChatBody,
    Surface.COMPLETIONS: CompletionBody,
    Surface.EMBEDDINGS: EmbeddingBody,
    Surface.TOKENIZE: InferenceBody,
    Surface.DETOKENIZE: InferenceBody,
}


def body_type(surface: Surface) -> type[InferenceBody]:
    """Return the struct of the fields that the gateway reads of an API's bodies."""
    return _BODIES.get(surface, TextsBody)


class _RawPrompt(CompletionBody):
    """A completion request with a raw prompt: up to a million token ids, which are decoded in slices."""

    prompt: msgspec.Raw = _NULL  # type: ignore[assignment]


class _RawInput(EmbeddingBody):
    """An embedding request with a raw input, for the same reason."""

    input: msgspec.Raw = _NULL  # type: ignore[assignment]


_RAW_BODIES: Mapping[Surface, type[InferenceBody]] = {
    Surface.COMPLETIONS: _RawPrompt,
    Surface.EMBEDDINGS: _RawInput,
}
_RAW_FIELDS = {Surface.COMPLETIONS: "prompt", Surface.EMBEDDINGS: "input"}
_DECODERS: Mapping[Surface, "msgspec.json.Decoder[Any]"] = {
    surface: msgspec.json.Decoder(_RAW_BODIES.get(surface, body_type(surface))) for surface in Surface
}


def decode_short(surface: Surface, body: bytes) -> tuple[Any, dict[str, msgspec.Raw]]:
    """Return the decoded fields of a short body, and all of its fields as raw JSON."""
    # Raw values are not decoded here, and a worker may fail at bytes that are not UTF-8.
    if not body.isascii():
        check_utf8(body)
    # Also here: what other APIs' bodies become, with a stored conversation before it, was not checked on arrival.
    if len(body) > SHORT_BYTES_MAX:
        check_values(body)
    fields = _FIELDS.decode(body)
    return _DECODERS[surface].decode(body), fields


def decode_long(surface: Surface, body: bytes) -> tuple[Any, dict[str, msgspec.Raw]]:
    """Return what decode_short returns, for a long body; other threads run between the steps."""
    check_utf8(body)
    check_values(body)
    yield_gil()
    fields = decode_fields(body, _RAW_FIELDS[surface]) if surface in _RAW_FIELDS else _FIELDS.decode(body)
    yield_gil()
    read = _read_long(surface, body, fields)
    yield_gil()
    return read, fields


def check_utf8(body: bytes) -> None:
    """Raise UnicodeDecodeError unless the body is UTF-8."""
    if body.isascii():
        return
    check, view = getincrementaldecoder("utf-8")(), memoryview(body)
    try:
        for start in range(0, len(body), UTF8_SLICE_BYTES):
            check.decode(view[start : start + UTF8_SLICE_BYTES])
        check.decode(b"", final=True)
    except UnicodeDecodeError:
        # Decoded again from the beginning, so that the error names the position in the whole body.
        body.decode()


def _read_long(surface: Surface, body: bytes, fields: Mapping[str, msgspec.Raw]) -> Any:
    """Return the decoded fields of a long body, except its prompt, which would otherwise be decoded twice."""
    if surface is Surface.CHAT:
        return _decode_long_chat(body)
    raw = _RAW_FIELDS.get(surface)
    if raw is None or raw not in fields:
        return _DECODERS[surface].decode(body)
    known = body_type(surface).__struct_fields__
    others = {name: value for name, value in fields.items() if name in known and name != raw}
    read = _DECODERS[surface].decode(msgspec.json.encode(others))
    setattr(read, raw, fields[raw])
    return read


def _decode_long_chat(body: bytes) -> ChatBody:
    """Return the decoded fields of a long chat request, with very long strings decoded in slices."""
    decode: Callable[[bytes], ChatBody] = _DECODERS[Surface.CHAT].decode
    try:
        rest, strings = take_long_strings(body)
    except msgspec.DecodeError:
        return decode(body)  # Raises the error, with its position in the body.
    if strings:
        read = decode(rest)
        read.messages, count = restore_strings(read.messages, strings)
        if count == len(strings):
            return read
    return decode(body)  # Some of the strings are not in messages.
