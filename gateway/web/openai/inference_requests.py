"""Decodes requests of OpenAI's inference APIs, as far as the gateway needs their fields.

A body is split into its top-level fields; the values stay raw JSON, so that fields unknown to the gateway pass
unchanged. Only the fields of the structs below are decoded. Fields that belong to the gateway (GATEWAY_OWNED) are
dropped: with them a client could name another tenant's cache, jump the engine's queue, choose a replica or an
adapter, run code or endless regular expressions in the engine, or have its prompt counted as something else.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gateway.concurrency.gil_yield import yield_gil
from gateway.domain.errors import BadRequest
from gateway.domain.request import GENERATING_SURFACES, InferenceRequest, Surface
from gateway.media.field_check import check_media
from gateway.web.bodies.body_decoding import (
    LONG_BYTES,
    TokenId,
    check_utf8,
    decode_fields,
    decode_token_ids,
)
from gateway.web.bodies.body_limits import (
    FIELDS_MAX,
    SHORT_BYTES_MAX,
    check_depth,
    check_parsed_strings,
    check_values,
    too_many_fields,
)
from gateway.web.bodies.long_strings import restore_strings, take_long_strings

CHOICES_MAX = 128
"""The most choices of one request (`n`, `best_of`)."""
MODEL_NAME_MAX = 200
"""The most characters of a model's name."""
PROMPTS_MAX = 2048
"""The most prompts of one request."""
NO_TOKENS: list[int] = []
"""The prompt of a request that has no prompt to count."""
WHOLE_NUMBER_MAX = 2**31 - 1
LOGPROBS_MAX = 20
"""The most log probabilities per token: OpenAI's bound, and vLLM's default."""

GATEWAY_OWNED = frozenset(
    {
        "api_base",
        "base_url",
        "bootstrap_host",
        "bootstrap_pair_key",
        "bootstrap_port",
        "bootstrap_room",
        "cache_salt",
        "chat_template",
        "custom_labels",
        "custom_logit_processor",
        "custom_params",
        "data_parallel_rank",
        "decode_tp_size",
        "disagg_prefill_dp_rank",
        "ec_transfer_params",
        "extra_key",
        "input_embeds",
        "input_ids",
        "kv_hints",
        "kv_transfer_params",
        "logits_processors",
        "lora_path",
        "ngram_corpus_id",
        "priority",
        "prompt_embeds",
        "prompt_token_ids",
        "request_id",
        "return_cached_tokens_details",
        "return_meta_info",
        "rid",
        "routed_dp_rank",
        "routing_key",
        "session_id",
        "session_params",
        "stop_regex",
        "vllm_xargs",
    }
)

RESERVED_TEMPLATE_KWARGS = ("chat_template", "tokenize")
"""Names in `chat_template_kwargs` that engines treat as their own arguments, such as another template."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")
_PROMPTS = msgspec.json.Decoder(str | list[str | list[TokenId]] | None)
_NUMBER_LIST = re.compile(rb"\s*\[\s*-?[0-9]")
_LOCATION = re.compile(r" - at `\$\.?(?P<field>[A-Za-z_]*)[^`]*`$")


class StreamOptions(msgspec.Struct):
    """The `stream_options` of a request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class InferenceBody(msgspec.Struct):
    """The fields that the gateway reads of every inference request."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    prompt_logprobs: bool | int | None = None


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


def decode_openai_request(surface: Surface, body: bytes) -> InferenceRequest:
    """Return the request in a body. Raises BadRequest that names the field."""
    try:
        read, fields = (
            _decode_short(surface, body) if len(body) <= LONG_BYTES else _decode_long(surface, body)
        )
        if len(fields) > FIELDS_MAX:
            raise too_many_fields()
        check_depth(body, getattr(read, "messages", None), fields)
    except msgspec.ValidationError as err:
        raise _bad_request(str(err)) from err
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise BadRequest(f"The body is not JSON: {err}.") from err
    for name in GATEWAY_OWNED.intersection(fields):
        del fields[name]
    if surface not in GENERATING_SURFACES:
        check_media(fields)
    model = read.model
    if not model or len(model) > MODEL_NAME_MAX:
        raise BadRequest("The request must name a model.", param="model")
    _check_ranges(read)
    choices = max(1, read.n or 0, read.best_of or 0)
    if choices > CHOICES_MAX:
        raise BadRequest(f"At most {CHOICES_MAX} choices can be asked for.", param="n")
    # If both names are sent, the larger value counts; otherwise a tiny first one would evade the quota.
    output_tokens_max = read.max_tokens
    if output_tokens_max is None or (read.max_completion_tokens or 0) > output_tokens_max:
        output_tokens_max = read.max_completion_tokens
    return InferenceRequest(
        surface=surface,
        model=model,
        fields=fields,
        prompt=_messages(read) if surface is Surface.CHAT else _prompt(surface, read),
        stream=bool(read.stream),
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        running_usage=bool(read.stream_options and read.stream_options.continuous_usage_stats),
        choices=choices,
        output_tokens_max=output_tokens_max,
        body_bytes=len(body),
    )


def _decode_short(surface: Surface, body: bytes) -> tuple[Any, dict[str, msgspec.Raw]]:
    """Return the decoded fields of a short body, and all of its fields as raw JSON."""
    # Raw values are not decoded here, and a worker may fail at bytes that are not UTF-8.
    if not body.isascii():
        check_utf8(body)
    # Also here, since rows of batches, and what other APIs' bodies are translated to, were not checked on arrival.
    if len(body) > SHORT_BYTES_MAX:
        check_values(body)
    fields = _FIELDS.decode(body)
    return _DECODERS[surface].decode(body), fields


def _decode_long(surface: Surface, body: bytes) -> tuple[Any, dict[str, msgspec.Raw]]:
    """Return what _decode_short returns, for a long body; other threads run between the steps."""
    check_utf8(body)
    check_values(body)
    yield_gil()
    fields = decode_fields(body, _RAW_FIELDS[surface]) if surface in _RAW_FIELDS else _FIELDS.decode(body)
    yield_gil()
    read = _read_long(surface, body, fields)
    yield_gil()
    return read, fields


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


def _prompt(surface: Surface, read: Any) -> list[Any]:
    """Return the prompts of a request that is not a chat; all their tokens are counted."""
    match surface:
        case Surface.COMPLETIONS:
            return _prompts(read.prompt, "prompt")
        case Surface.EMBEDDINGS if bytes(read.input) != b"null" or not read.messages:
            return _prompts(read.input, "input")
        case Surface.TOKENIZE | Surface.DETOKENIZE:
            return [NO_TOKENS]
    read.model = None  # Not a text of the prompt.
    try:
        texts = list(_texts(msgspec.structs.asdict(read).values()))
    except msgspec.ValidationError as err:
        raise BadRequest(f"A token id cannot be read: {err}.") from err
    if len(texts) > PROMPTS_MAX:
        raise BadRequest(f"The request has more than {PROMPTS_MAX} texts.")
    return texts or [NO_TOKENS]


def _texts(values: Iterable[Any]) -> Iterator[str | list[int]]:
    """Yield every text and every list of token ids in nested values; media (`data:` URLs) are left out."""
    for value in values:
        if isinstance(value, str) and not value.startswith("data:"):
            yield value
        elif isinstance(value, dict):
            yield from _texts(inner for name, inner in value.items() if name not in ("type", "role"))
        elif isinstance(value, list) and value and all(type(part) is int for part in value):
            yield msgspec.convert(value, list[TokenId])
        elif isinstance(value, list):
            yield from _texts(value)


def _messages(read: ChatBody) -> list[dict[str, Any]]:
    """Return the messages of a chat request. Raises BadRequest."""
    if not read.messages:
        raise BadRequest("The request must have at least one message.", param="messages")
    calls: list[Any] = []
    for index, message in enumerate(read.messages):
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{index}] must have a role.", param="messages")
        if message.get("tool_calls"):
            calls.append(message["tool_calls"])
    if calls:
        check_parsed_strings([*_arguments(calls)], "messages")
    for name in RESERVED_TEMPLATE_KWARGS if read.chat_template_kwargs else ():
        if name in (read.chat_template_kwargs or {}):
            raise BadRequest(f"{name} cannot be set in chat_template_kwargs.", param="chat_template_kwargs")
    return read.messages


def _arguments(calls: Iterable[Any]) -> Iterator[str]:
    """Yield the arguments of tool calls: JSON texts, which chat templates get as decoded values."""
    for several in calls:
        for call in several if isinstance(several, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


def _prompts(raw: msgspec.Raw, field: str) -> "list[str | list[int] | array[int]]":
    """Return one or many prompts, each a text or a list of token ids. Raises BadRequest."""
    prompts: list[str | list[int] | array[int]]
    try:
        if _NUMBER_LIST.match(raw):
            prompts = [decode_token_ids(bytes(raw))]
        else:
            read = _PROMPTS.decode(raw)
            prompts = [read] if isinstance(read, str) else [*(read or ())]
    except msgspec.DecodeError as err:
        reason = str(err).replace(" - at `$", f" - at `{field}")
        raise BadRequest(f"{field}: {reason}.", param=field) from err
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        raise BadRequest(f"The request must have between 1 and {PROMPTS_MAX} {field}s.", param=field)
    return prompts


def _check_ranges(read: InferenceBody) -> None:
    """Raise BadRequest for a number that is out of its range."""
    # Zero output tokens pass, since OpenAI's document allows them; the worker may refuse them.
    for name, value, least in (
        ("max_tokens", read.max_tokens, 0),
        ("max_completion_tokens", read.max_completion_tokens, 0),
        ("n", read.n, 1),
        ("best_of", read.best_of, 0),
    ):
        if value is not None and not least <= value <= WHOLE_NUMBER_MAX:
            bound = f"least {least}" if value < least else f"most {WHOLE_NUMBER_MAX}"
            raise BadRequest(f"{name} must be at {bound}.", param=name)
    for name, number in (
        ("logprobs", read.logprobs),
        ("top_logprobs", read.top_logprobs),
        ("prompt_logprobs", read.prompt_logprobs),
    ):
        if not 0 <= (number or 0) <= LOGPROBS_MAX:
            raise BadRequest(f"{name} must be between 0 and {LOGPROBS_MAX}.", param=name)


def _bad_request(message: str) -> BadRequest:
    """Return the error for a message of msgspec, with the field that the message names."""
    location = _LOCATION.search(message)
    field = location["field"] if location is not None else ""
    if not field:
        return BadRequest(f"The body is not a JSON object of the expected shape: {message}.")
    return BadRequest(f"{field}: {message}.", param=field)
