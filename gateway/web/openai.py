"""OpenAI requests: bytes to what the gateway must know of them, and nothing more.

A body is taken apart one level deep; the values stay the bytes that they were, so that whatever a client and a
worker agree on passes untouched. Only the fields below are decoded, and the fields that belong to the gateway
(GATEWAY_OWNED) are dropped: a caller who may set them can name another tenant's cache, jump the engine's queue, or
have its prompt counted as something else.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from gateway.errors import BadRequest
from gateway.request import InferenceRequest, Surface

CHOICES_MAX = 128
MODEL_NAME_MAX = 200
PROMPTS_MAX = 2048

GATEWAY_OWNED = frozenset(
    {
        "api_base",
        "base_url",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "cache_salt",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "extra_key",
        "input_embeds",
        "input_ids",
        "kv_hints",
        "kv_transfer_params",
        "lora_path",
        "priority",
        "prompt_embeds",
        "prompt_token_ids",
        "request_id",
        "rid",
        "routed_dp_rank",
        "routing_key",
        "session_id",
        "session_params",
        "vllm_xargs",
    }
)

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


def decode(surface: Surface, body: bytes) -> InferenceRequest:
    """The request in a body. Raises BadRequest that names the field."""
    try:
        raw = _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise BadRequest(f"The body is not a JSON object: {err}.") from err
    fields = {name: value for name, value in raw.items() if name not in GATEWAY_OWNED}
    options: StreamOptions | None = _field(fields, "stream_options", StreamOptions | None)
    limits = _whole_numbers(fields, "max_tokens", "max_completion_tokens")
    choices = max(_whole_numbers(fields, "n", "best_of"), default=1)
    if choices > CHOICES_MAX:
        raise BadRequest(f"At most {CHOICES_MAX} choices can be asked for.", param="n")
    return InferenceRequest(
        surface=surface,
        model=_model(fields),
        fields=fields,
        prompt=_messages(fields) if surface is Surface.CHAT else _prompts(fields),
        stream=_field(fields, "stream", bool | None) or False,
        include_usage=bool(options and options.include_usage),
        choices=choices,
        # Both names may be sent; the larger one counts, or a tiny first one would be a way round the quota.
        output_tokens_max=max(limits, default=None),
    )


def _model(fields: Mapping[str, msgspec.Raw]) -> str:
    model: str | None = _field(fields, "model", str | None)
    if not model or len(model) > MODEL_NAME_MAX:
        raise BadRequest("The request must name a model.", param="model")
    return model


def _messages(fields: Mapping[str, msgspec.Raw]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] | None = _field(fields, "messages", list[dict[str, Any]] | None)
    if not messages:
        raise BadRequest("The request must have at least one message.", param="messages")
    for at, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{at}] must have a role.", param="messages")
    return messages


def _prompts(fields: Mapping[str, msgspec.Raw]) -> list[str | list[int]]:
    """One or many prompts, each a text or token ids."""
    prompt: Any = _field(fields, "prompt", list[Any] | str | None)
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    try:
        prompts: list[str | list[TokenId]] = msgspec.convert(prompt or [], list[str | list[TokenId]])
    except msgspec.ValidationError as err:
        raise BadRequest(f"prompt: {err}.", param="prompt") from err
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        raise BadRequest(f"The request must have between 1 and {PROMPTS_MAX} prompts.", param="prompt")
    return prompts


def _whole_numbers(fields: Mapping[str, msgspec.Raw], *names: str) -> list[int]:
    """Those of the named fields that are set; each must be at least 1."""
    found = []
    for name in names:
        value: int | None = _field(fields, name, int | None)
        if value is not None:
            if value < 1:
                raise BadRequest(f"{name} must be at least 1.", param=name)
            found.append(value)
    return found


def _field(fields: Mapping[str, msgspec.Raw], name: str, kind: Any) -> Any:
    """One field, decoded; None where it is absent."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise BadRequest(f"{name}: {str(err).rstrip('.')}.", param=name) from err
