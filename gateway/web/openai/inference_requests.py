"""OpenAI requests: bytes to what the gateway must know of them, and nothing more.

A body is taken apart one level deep; the values stay the bytes that they were, so that whatever a client and a
worker agree on passes untouched. Only the fields below are decoded, and the fields that belong to the gateway
(GATEWAY_OWNED) are dropped: a caller who may set them can name another tenant's cache, jump the engine's queue,
choose a replica or an adapter, run code or endless regular expressions in the engine, or have its prompt counted as
something else.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import GENERATING, InferenceRequest, Surface
from gateway.web.bodies import media_check
from gateway.web.bodies.body_decoding import LONG_BYTES, TokenId, between, check_text, fields_of, token_ids
from gateway.web.bodies.body_limits import check_depth, check_size
from gateway.web.bodies.long_strings import put_back, taken_out

CHOICES_MAX = 128
MODEL_NAME_MAX = 200
PROMPTS_MAX = 2048
NO_TOKENS: list[int] = []
WHOLE_NUMBER_MAX = 2**31 - 1
LOGPROBS_MAX = 20
"""As OpenAI has it, and vLLM by default. Every engine computes and sends so many for each token."""

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

NO_VARIABLES = ("chat_template", "tokenize")
"""In `chat_template_kwargs` engines take these for arguments of their own: another template after all."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")
_PROMPTS = msgspec.json.Decoder(str | list[str | list[TokenId]] | None)
_OF_NUMBERS = re.compile(rb"\s*\[\s*-?[0-9]")
_AT = re.compile(r" - at `\$\.?(?P<field>[A-Za-z_]*)[^`]*`$")


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class CommonBody(msgspec.Struct):
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


class ChatBody(CommonBody):
    messages: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(CommonBody):
    prompt: str | list[Any] | None = None


class EmbeddingBody(CommonBody):
    input: str | list[Any] | None = None
    messages: list[Any] | None = None


class TextsBody(CommonBody):
    """Reranking, scores, moderation, speech: the fields that texts are sent in."""

    input: Any = None
    query: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    text_1: Any = None
    text_2: Any = None


_BODIES: Mapping[Surface, type[CommonBody]] = {
    Surface.CHAT: ChatBody,
    Surface.COMPLETIONS: CompletionBody,
    Surface.EMBEDDINGS: EmbeddingBody,
    Surface.TOKENIZE: CommonBody,
    Surface.DETOKENIZE: CommonBody,
}


def body_type(surface: Surface) -> type[CommonBody]:
    """What is read of its bodies."""
    return _BODIES.get(surface, TextsBody)


class _RawPrompt(CompletionBody):
    """May be a million token ids, which are read by themselves."""

    prompt: msgspec.Raw = _NULL  # type: ignore[assignment]


class _RawInput(EmbeddingBody):
    """The same."""

    input: msgspec.Raw = _NULL  # type: ignore[assignment]


_READ: Mapping[Surface, type[CommonBody]] = {Surface.COMPLETIONS: _RawPrompt, Surface.EMBEDDINGS: _RawInput}
_RAW = {Surface.COMPLETIONS: "prompt", Surface.EMBEDDINGS: "input"}
_READERS: Mapping[Surface, "msgspec.json.Decoder[Any]"] = {
    surface: msgspec.json.Decoder(_READ.get(surface, body_type(surface))) for surface in Surface
}


def decode_request(surface: Surface, body: bytes) -> InferenceRequest:
    """The request in a body. Raises BadRequest that names the field."""
    try:
        # Values that stay raw are not looked into, and a worker may choke on what is no text.
        check_text(body)
        check_size(body)
        between(body)
        fields = fields_of(body, _RAW[surface]) if surface in _RAW else _FIELDS.decode(body)
        between(body)
        read = _read(surface, body, fields)
        between(body)
        check_depth(getattr(read, "messages", None), fields)
    except msgspec.ValidationError as err:
        raise _refusal(str(err)) from err
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise BadRequest(f"The body is not JSON: {err}.") from err
    for name in GATEWAY_OWNED.intersection(fields):
        del fields[name]
    if surface not in GENERATING:
        media_check.check(fields)
    model = read.model
    if not model or len(model) > MODEL_NAME_MAX:
        raise BadRequest("The request must name a model.", param="model")
    # An answer of no tokens is the worker's to give or to refuse: OpenAI's own document allows for it.
    limits = _whole_numbers(read, "max_tokens", "max_completion_tokens", least=0)
    for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
        if not 0 <= (getattr(read, name) or 0) <= LOGPROBS_MAX:
            raise BadRequest(f"{name} must be between 0 and {LOGPROBS_MAX}.", param=name)
    choices = max([1, *_whole_numbers(read, "n", least=1), *_whole_numbers(read, "best_of", least=0)])
    if choices > CHOICES_MAX:
        raise BadRequest(f"At most {CHOICES_MAX} choices can be asked for.", param="n")
    return InferenceRequest(
        surface=surface,
        model=model,
        fields=fields,
        prompt=_prompt(surface, read),
        stream=bool(read.stream),
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        choices=choices,
        # Both names may be sent; the larger one counts, or a tiny first one would be a way round the quota.
        output_tokens_max=max(limits, default=None),
    )


def _read(surface: Surface, body: bytes, fields: Mapping[str, msgspec.Raw]) -> Any:
    """What is read of the body. Of a long one, without its prompt, which would be read twice."""
    if surface is Surface.CHAT and len(body) > LONG_BYTES:
        return _chat(body)
    raw = _RAW.get(surface)
    if raw is None or len(body) <= LONG_BYTES or raw not in fields:
        return _READERS[surface].decode(body)
    known = body_type(surface).__struct_fields__
    few = {name: value for name, value in fields.items() if name in known and name != raw}
    read = _READERS[surface].decode(msgspec.json.encode(few))
    setattr(read, raw, fields[raw])
    return read


def _chat(body: bytes) -> ChatBody:
    """What is read of a long one, its very long strings in slices."""
    decode_request: Callable[[bytes], ChatBody] = _READERS[Surface.CHAT].decode
    try:
        rest, strings = taken_out(body)
    except msgspec.DecodeError:
        return decode_request(body)  # Which says of what is wrong where it is.
    if strings:
        read = decode_request(rest)
        read.messages, count = put_back(read.messages, strings)
        if count == len(strings):
            return read
    return decode_request(body)  # Some are elsewhere.


def _prompt(surface: Surface, read: Any) -> list[Any]:
    """The messages of a conversation; else prompts, of which all tokens are counted."""
    match surface:
        case Surface.CHAT:
            return _messages(read)
        case Surface.COMPLETIONS:
            return _prompts(read.prompt, "prompt")
        case Surface.EMBEDDINGS if bytes(read.input) != b"null" or not read.messages:
            return _prompts(read.input, "input")
        case Surface.TOKENIZE | Surface.DETOKENIZE:
            return [NO_TOKENS]
    read.model = None
    try:
        texts = list(_texts(msgspec.structs.asdict(read).values()))
    except msgspec.ValidationError as err:
        raise BadRequest(f"A token id cannot be read: {err}.") from err
    if len(texts) > PROMPTS_MAX:
        raise BadRequest(f"The request has more than {PROMPTS_MAX} texts.")
    return texts or [NO_TOKENS]


def _texts(values: Iterable[Any]) -> Iterator[str | list[int]]:
    """Every text in there, and lists of token ids; not names of models, nor media."""
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
    if not read.messages:
        raise BadRequest("The request must have at least one message.", param="messages")
    for at, message in enumerate(read.messages):
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{at}] must have a role.", param="messages")
    for name in NO_VARIABLES:
        if name in (read.chat_template_kwargs or {}):
            raise BadRequest(f"{name} is no variable of a template.", param="chat_template_kwargs")
    return read.messages


def _prompts(raw: msgspec.Raw, field: str) -> "list[str | list[int] | array[int]]":
    """One or many prompts, each a text or token ids."""
    prompts: list[str | list[int] | array[int]]
    try:
        if _OF_NUMBERS.match(raw):
            prompts = [token_ids(bytes(raw))]
        else:
            read = _PROMPTS.decode(raw)
            prompts = [read] if isinstance(read, str) else [*(read or ())]
    except msgspec.DecodeError as err:
        said = str(err).replace(" - at `$", f" - at `{field}")
        raise BadRequest(f"{field}: {said}.", param=field) from err
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        raise BadRequest(f"The request must have between 1 and {PROMPTS_MAX} {field}s.", param=field)
    return prompts


def _whole_numbers(read: CommonBody, *names: str, least: int) -> list[int]:
    """Those of the named fields that are set; none may be less than that, and each is countable."""
    found = []
    for name in names:
        value: int | None = getattr(read, name)
        if value is not None:
            if value < least:
                raise BadRequest(f"{name} must be at least {least}.", param=name)
            if value > WHOLE_NUMBER_MAX:
                raise BadRequest(f"{name} must be at most {WHOLE_NUMBER_MAX}.", param=name)
            found.append(value)
    return found


def _refusal(message: str) -> BadRequest:
    """msgspec says what is wrong and where; the client is told the field."""
    at = _AT.search(message)
    field = at["field"] if at is not None else ""
    if not field:
        return BadRequest(f"The body is not a JSON object of the expected shape: {message}.")
    return BadRequest(f"{field}: {message}.", param=field)
