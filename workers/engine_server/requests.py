"""Bodies of requests, typed. Unknown fields are ignored; known ones that would change the answer are refused.

`null` means absent, as OpenAI's clients send it.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from workers.engine_server.errors import bad_request

Body = TypeVar("Body")

_PATH = re.compile(r" - at `\$\.?(.*)`$")


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` asks for a last chunk with the usage."""

    include_usage: bool | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    cache_salt: str | None = None
    rid: str | None = None


class ChatBody(Sampling, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(Sampling, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize: one of `prompt` and `messages`."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /abort_request: one request by its `rid`, or all."""

    rid: str | None = None
    abort_all: bool | None = None


def decode(body: bytes | msgspec.Raw, kind: type[Body], *, field: str | None = None) -> Body:
    """The typed body, or the value of one `field` of it; a 400 that names the field otherwise."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as err:
        message = str(err)
        path = _PATH.search(message)
        missing = re.search(r"required field `(\w+)`", message)
        param = path[1] if path and path[1] else (missing[1] if missing else None)
        raise bad_request(f"The request body is invalid: {message}.", param=field or param or None) from err
    # A text that is no UTF-8 is found only when it is read, and is not msgspec's own error.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise bad_request(
            f"The request body is not valid JSON: {err}.", param=field, code="invalid_json"
        ) from err


# What changes the answer and is not implemented: the field, and when its value asks for nothing.
_REFUSED: dict[str, Callable[[Any], bool]] = {
    "best_of": lambda value: value == 1,
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "logit_bias": lambda value: value == {},
    "presence_penalty": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "repetition_penalty": lambda value: value == 1,
    "min_p": lambda value: value == 0,
    "min_tokens": lambda value: value == 0,
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value in ("none", "auto"),
    "functions": lambda value: value == [],
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
    "continue_final_message": lambda value: value is False,
    "add_generation_prompt": lambda value: value is True,
    "regex": lambda value: value == "",
    "ebnf": lambda value: value == "",
    "json_schema": lambda value: value == "",
    "lora_path": lambda value: value == "",
}


async def read(request: web.Request, kind: type[Body]) -> Body:
    """The body of a request, typed."""
    return decode(await request.read(), kind)


async def read_generation(request: web.Request, kind: type[Body]) -> Body:
    """The same, for a request whose unsupported fields must not pass unnoticed."""
    raw = await request.read()
    body = decode(raw, kind)
    _refuse_unsupported(raw)
    return body


def _refuse_unsupported(body: bytes) -> None:
    fields = decode(body, dict[str, msgspec.Raw])
    for name, asks_nothing in _REFUSED.items():
        value: Any = decode(fields[name], object, field=name) if name in fields else None
        if value is not None and not asks_nothing(value):
            raise bad_request(
                f"{name} is not supported by this worker.", param=name, code="unsupported_parameter"
            )
