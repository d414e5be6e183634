"""The typed bodies of requests, and how they are read.

Unknown fields are ignored. Known fields that would change the answer and are not implemented are refused. `null`
means absent, as OpenAI's clients send it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from workers.engine_server.errors import bad_request

Body = TypeVar("Body")

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")


class EngineStreamOptions(msgspec.Struct, frozen=True):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    """Whether the stream ends with a chunk that has the usage."""


class JsonSchema(msgspec.Struct, frozen=True):
    """OpenAI's wrapper of a JSON schema."""

    schema: dict[str, Any] | None = None
    name: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """OpenAI's `response_format`."""

    type: str
    """`text`, `json_object` or `json_schema`."""
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's `structured_outputs`: exactly one field contains a grammar."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: EngineStreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    best_of: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    deadline_ms: float | None = None
    """Milliseconds that the request may wait for its first token."""
    rid: str | None = None
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int | None] | None = None
    # A grammar for the answer: OpenAI's field, SGLang's, vLLM's, and vLLM's older ones. See `structured`.
    response_format: ResponseFormat | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class EngineChatBody(GenerationBody, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: list[Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class EngineCompletionBody(GenerationBody, frozen=True, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /tokenize: either `prompt` or `messages`."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /detokenize."""

    tokens: list[int]
    skip_special_tokens: bool | None = None


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /abort_request: one request by its `rid`, or all."""

    rid: str | None = None
    abort_all: bool | None = None


def decode(body: bytes | msgspec.Raw, kind: type[Body], *, field: str | None = None) -> Body:
    """Return the typed body, or the typed value of one `field` of it; raise a 400 that names the invalid field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as err:
        message = str(err)
        path = _PATH.search(message)
        missing = re.search(r"required field `(\w+)`", message)
        # Inside an object with free keys msgspec writes "[...]", which names nothing.
        param = path[1].split("[...]")[0] if path and path[1] else (missing[1] if missing else None)
        raise bad_request(f"The request body is invalid: {message}.", param=field or param or None) from err
    # A text that is not valid UTF-8 is found only when it is decoded, and raises no error of msgspec's.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise bad_request(
            f"The request body is not valid JSON: {err}.", param=field, code="invalid_json"
        ) from err


# Fields that would change the answer and are not implemented, each with a test whether its value changes nothing.
_REFUSED: dict[str, Callable[[Any], bool]] = {
    "suffix": lambda value: value == "",
    "functions": lambda value: value == [],
    "modalities": lambda value: value in ([], ["text"]),
    "audio": lambda value: False,
    "web_search_options": lambda value: False,
    "prompt_logprobs": lambda value: value == 0,
    "use_beam_search": lambda value: value is False,
    "length_penalty": lambda value: value == 1,
    "allowed_token_ids": lambda value: value == [],
    "bad_words": lambda value: value == [],
    "stop_regex": lambda value: value in ("", []),
    "include_stop_str_in_output": lambda value: value is False,
    "skip_special_tokens": lambda value: value is True,
    "truncate_prompt_tokens": lambda value: value == -1,
    "structural_tag": lambda value: value == "",
    "lora_path": lambda value: value == "",
}
_REFUSED_IN_TEXT_COMPLETIONS: dict[str, Callable[[Any], bool]] = {
    "tools": lambda value: value == [],
    "continue_final_message": lambda value: value is False,
    "add_generation_prompt": lambda value: value is True,
    "tool_choice": lambda value: value in ("none", "auto"),
    "top_logprobs": lambda value: value == 0,
}


async def read(request: web.Request, kind: type[Body]) -> Body:
    """Return the typed body of a request."""
    return decode(await request.read(), kind)


async def read_generation(request: web.Request, kind: type[Body]) -> Body:
    """Return the typed body of a request for a completion; raise a 400 for fields that are not supported."""
    raw = await request.read()
    body = decode(raw, kind)
    _refuse_unsupported(
        raw, _REFUSED | _REFUSED_IN_TEXT_COMPLETIONS if kind is EngineCompletionBody else _REFUSED
    )
    return body


def _refuse_unsupported(body: bytes, refused: Mapping[str, Callable[[Any], bool]]) -> None:
    fields = decode(body, dict[str, msgspec.Raw])
    for name, changes_nothing in refused.items():
        value: Any = decode(fields[name], object, field=name) if name in fields else None
        if value is not None and not changes_nothing(value):
            raise bad_request(
                f"{name} is not supported by this worker.", param=name, code="unsupported_parameter"
            )
