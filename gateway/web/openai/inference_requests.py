"""Decodes requests of OpenAI's inference APIs, as far as the gateway needs their fields.

body_fields.py has the fields that the gateway reads, prompts.py the prompts among them; all others stay raw JSON.
Those that the worker's kind accepts reach it unchanged (gateway/dispatch/worker_calls.py). Fields that belong to
the gateway (GATEWAY_OWNED) are dropped: with them a client could name another tenant's cache, jump the engine's
queue, choose a replica or an adapter, run code or endless regular expressions in the engine, or have its prompt
counted as something else.
"""

import re

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import GENERATING_SURFACES, InferenceRequest, Surface
from gateway.media.field_check import check_media
from gateway.web.bodies.body_decoding import LONG_BYTES
from gateway.web.bodies.body_limits import FIELDS_MAX, check_depth, too_many_fields
from gateway.web.openai.body_fields import decode_long, decode_short
from gateway.web.openai.prompts import messages_of, prompts_of

MODEL_NAME_MAX = 200
"""The most characters of a model's name."""

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

_BOUND = re.compile(r"Expected `int` (?P<side>[<>])= (?P<number>\d+)")
_LOCATION = re.compile(r" - at `\$\.?(?P<field>[A-Za-z_]*)[^`]*`$")


def decode_openai_request(surface: Surface, body: bytes) -> InferenceRequest:
    """Return the request in a body. Raises BadRequest that names the field."""
    try:
        read, fields = decode_short(surface, body) if len(body) <= LONG_BYTES else decode_long(surface, body)
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
        text = (
            f"The model's name has at most {MODEL_NAME_MAX} characters."
            if model
            else "The request must name a model."
        )
        raise BadRequest(text, param="model")
    # If both names are sent, the larger value counts; otherwise a tiny first one would evade the quota.
    output_tokens_max = read.max_tokens
    if output_tokens_max is None or (read.max_completion_tokens or 0) > output_tokens_max:
        output_tokens_max = read.max_completion_tokens
    return InferenceRequest(
        surface=surface,
        model=model,
        fields=fields,
        prompt=messages_of(read) if surface is Surface.CHAT else prompts_of(surface, read),
        stream=bool(read.stream),
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        running_usage=bool(read.stream_options and read.stream_options.continuous_usage_stats),
        choices=max(1, read.n or 0, read.best_of or 0),
        output_tokens_max=output_tokens_max,
        body_bytes=len(body),
    )


def _bad_request(message: str) -> BadRequest:
    """Return the error for a message of msgspec, with the field that the message names."""
    location = _LOCATION.search(message)
    field = location["field"] if location is not None else ""
    if not field:
        return BadRequest(f"The body is not a JSON object of the expected shape: {message}.")
    if (bound := _BOUND.match(message)) is not None:
        side = "least" if bound["side"] == ">" else "most"
        return BadRequest(f"{field} must be at {side} {bound['number']}.", param=field)
    return BadRequest(f"{field}: {message}.", param=field)
