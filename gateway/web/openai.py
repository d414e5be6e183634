"""OpenAI requests: bytes to what the gateway must know of them, and nothing more.

A body is taken apart one level deep; the values stay the bytes that they were, so that whatever a client and a
worker agree on passes untouched. Only the fields below are decoded, and the fields that belong to the gateway
(GATEWAY_OWNED) are dropped: a caller who may set them can name another tenant's cache, jump the engine's queue,
choose a replica or an adapter, run code or endless regular expressions in the engine, or have its prompt counted as
something else.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from gateway.errors import BadRequest
from gateway.request import InferenceRequest, Surface
from gateway.web.shape import check_depth, check_size

CHOICES_MAX = 128
MODEL_NAME_MAX = 200
PROMPTS_MAX = 2048
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

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_AT = re.compile(r" - at `\$\.?(?P<field>[A-Za-z_]*)[^`]*`$")


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class _Common(msgspec.Struct):
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


class _Chat(_Common):
    messages: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class _Completion(_Common):
    prompt: str | list[Any] | None = None


_READERS: Mapping[Surface, "msgspec.json.Decoder[Any]"] = {
    Surface.CHAT: msgspec.json.Decoder(_Chat),
    Surface.COMPLETIONS: msgspec.json.Decoder(_Completion),
}


def decode(surface: Surface, body: bytes) -> InferenceRequest:
    """The request in a body. Raises BadRequest that names the field."""
    try:
        # Values that stay raw are not looked into, and a worker may choke on what is no text.
        _ = body.isascii() or body.decode()
        check_size(body)
        fields = _FIELDS.decode(body)
        read = _READERS[surface].decode(body)
        check_depth(getattr(read, "messages", None), fields)
    except msgspec.ValidationError as err:
        raise _refusal(str(err)) from err
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise BadRequest(f"The body is not JSON: {err}.") from err
    for name in GATEWAY_OWNED.intersection(fields):
        del fields[name]
    if not read.model or len(read.model) > MODEL_NAME_MAX:
        raise BadRequest("The request must name a model.", param="model")
    limits = _whole_numbers(read, "max_tokens", "max_completion_tokens")
    for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
        if not 0 <= (getattr(read, name) or 0) <= LOGPROBS_MAX:
            raise BadRequest(f"{name} must be between 0 and {LOGPROBS_MAX}.", param=name)
    choices = max(_whole_numbers(read, "n", "best_of"), default=1)
    if choices > CHOICES_MAX:
        raise BadRequest(f"At most {CHOICES_MAX} choices can be asked for.", param="n")
    return InferenceRequest(
        surface=surface,
        model=read.model,
        fields=fields,
        prompt=_messages(read) if surface is Surface.CHAT else _prompts(read),
        stream=bool(read.stream),
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        choices=choices,
        # Both names may be sent; the larger one counts, or a tiny first one would be a way round the quota.
        output_tokens_max=max(limits, default=None),
    )


def _messages(read: _Chat) -> list[dict[str, Any]]:
    if not read.messages:
        raise BadRequest("The request must have at least one message.", param="messages")
    for at, message in enumerate(read.messages):
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{at}] must have a role.", param="messages")
    for name in NO_VARIABLES:
        if name in (read.chat_template_kwargs or {}):
            raise BadRequest(f"{name} is no variable of a template.", param="chat_template_kwargs")
    return read.messages


def _prompts(read: _Completion) -> list[str | list[int]]:
    """One or many prompts, each a text or token ids."""
    prompt: Any = read.prompt
    prompts: list[str | list[TokenId]]
    try:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            prompts = [msgspec.convert(prompt, list[TokenId])]
        else:
            prompts = msgspec.convert(
                [prompt] if isinstance(prompt, str) else prompt or [], list[str | list[TokenId]]
            )
    except msgspec.ValidationError as err:
        raise BadRequest(f"prompt: {str(err).replace(' - at `$', ' - at `prompt')}.", param="prompt") from err
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        raise BadRequest(f"The request must have between 1 and {PROMPTS_MAX} prompts.", param="prompt")
    return prompts


def _whole_numbers(read: _Common, *names: str) -> list[int]:
    """Those of the named fields that are set; each must be at least 1, and countable."""
    found = []
    for name in names:
        value: int | None = getattr(read, name)
        if value is not None:
            if value < 1:
                raise BadRequest(f"{name} must be at least 1.", param=name)
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
