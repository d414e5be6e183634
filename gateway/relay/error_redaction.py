"""A worker's words, before a client gets them: what is said of the request stays, what says where workers are goes.

Engines quote addresses and files of their own in errors (where they could not connect, what they listen on, where
their weights lie), say in answers where they fetched KV blocks, and tell with `cached_tokens` how much of a prompt
somebody has sent before. The latter is a tenant's own business only where the engine keeps tenants apart.
"""

import re

import msgspec

MESSAGE_LENGTH_MAX = 2000
NAME_LENGTH_MAX = 200

_ADDRESS = re.compile(
    "|".join(
        (
            r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"`<>]+",
            r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\d)",
            r"\[[0-9A-Fa-f:]*::?[0-9A-Fa-f:.]*\](?::\d{1,5})?",
            r"(?<![\w:.])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6}::(?:[0-9A-Fa-f]{1,4}:?){0,7}(?!\w)",
            r"(?<=\bto host )[\w.-]+(?::\d{1,5})?",
            r"\b(?:localhost|[\w-]+(?:\.[\w-]+)+):\d{2,5}\b",
            # A name without dots is one of a host only if it looks like it: `max_tokens:4096` does not.
            r"\b(?=[A-Za-z_]*[-\d])[A-Za-z][\w-]*:\d{4,5}\b",
            r"\b[\w-]+(?:\.[\w-]+)*\.(?:local|internal|localdomain|svc|lan|intranet)\b",
            r"(?<=\bport[ =:])\s?\d{2,5}\b",
            # Files; not /v1/chat/completions, of which the client knows.
            r"(?<![\w./:~-])~?/(?!v1/)(?:[\w.@+~-]+/)+[\w.@+~-]*",
        )
    )
)
_ERROR = b'"error"'
"""In every frame that reports one; in an answer's own text the quotes would be escaped."""
_FRAME = re.compile(rb'^data: ?(\{[^\r\n]*"error"[^\r\n]*)', re.M)
_HANDED_OVER = re.compile(rb'"(?:kv|ec)_transfer_params"\s*:\s*\{')
_TRANSFERS = ("kv_transfer_params", "ec_transfer_params")

CACHED = frozenset(
    {
        *("cached_tokens", "created_cache_tokens", "cache_write_tokens", "cache_creation_tokens"),
        *("prompt_cache_hit_tokens", "prompt_cache_miss_tokens"),
        *("cache_read_input_tokens", "cache_creation_input_tokens"),
    }
)
"""Numbers that say, or leave to be said, how much of a prompt was in a cache."""


class WorkerError(msgspec.Struct):
    """The fields of OpenAI's error object."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _ErrorBody(msgspec.Struct):
    """Some engines put its fields at the top."""

    error: WorkerError | str | None = None
    message: str = ""
    code: str | int | None = None


def read_error(body: bytes) -> WorkerError:
    """What a worker says of an error, fit for a client; no words where they are not understood."""
    try:
        decoded = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return WorkerError()
    found = decoded.error
    if not isinstance(found, WorkerError):
        found = WorkerError(message=found or decoded.message, code=decoded.code)
    return WorkerError(
        message=without_addresses(found.message),
        param=found.param and without_addresses(found.param)[:NAME_LENGTH_MAX],
        code=without_addresses(found.code)[:NAME_LENGTH_MAX] if isinstance(found.code, str) else None,
    )


def without_addresses(text: str) -> str:
    """The text, shortened, with dots in place of addresses."""
    return _ADDRESS.sub("...", text[:MESSAGE_LENGTH_MAX])


def with_safe_errors(frames: bytes) -> bytes:
    """Whole frames of a stream; those that report an error in our shape and without addresses."""
    return _FRAME.sub(_safe_frame, frames) if _ERROR in frames else frames


def without_cached_tokens(body: bytes) -> bytes:
    """A body or chunk whose usage says nothing of caches (CACHED); what is not understood stays."""
    try:
        fields = _FIELDS.decode(body)
        usage = _FIELDS.decode(fields["usage"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return body
    kept = {name: value for name, value in usage.items() if name not in CACHED}
    try:
        details = _FIELDS.decode(usage["prompt_tokens_details"])
    except (msgspec.DecodeError, RecursionError, KeyError):
        details = {}
    told = {name: value for name, value in details.items() if name not in CACHED}
    if len(told) < len(details):
        kept["prompt_tokens_details"] = msgspec.Raw(msgspec.json.encode(told) if told else b"null")
    elif len(kept) == len(usage):
        return body
    return msgspec.json.encode({**fields, "usage": kept})


def without_transfers(body: bytes) -> bytes:
    """An answer without the addresses at which workers hand over KV blocks."""
    if _HANDED_OVER.search(body) is None:
        return body
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    blank = {name: msgspec.Raw(b"null") for name in _TRANSFERS if name in fields}
    return msgspec.json.encode({**fields, **blank})


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _safe_frame(found: "re.Match[bytes]") -> bytes:
    try:
        fields = _FIELDS.decode(found[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = {}
    if bytes(fields.get("error", b"null")) == b"null" and bytes(fields.get("object", b"")) != _ERROR:
        return found[0]  # A field of that name somewhere inside.
    said = read_error(found[1])
    error = {
        "message": said.message or "The worker reported an error.",
        "type": "server_error",
        "param": said.param,
        "code": said.code,
    }
    return b"data: " + msgspec.json.encode({"error": error})
