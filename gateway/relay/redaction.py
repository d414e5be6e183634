"""Removes from answers of workers what clients must not see: addresses, files, and counts of cached tokens.

Engines quote their own addresses and files in errors (where they could not connect, what they listen on, where
their weights are), report in answers where they fetched KV blocks, and with `cached_tokens` how much of a prompt
was sent before. A client gets the latter only where the engine keeps the caches of tenants apart: else the count is
about the prompts of other tenants. The parts of an error about the request itself stay.
"""

import re

import msgspec

MESSAGE_LENGTH_MAX = 2000

_ADDRESS = re.compile(
    "|".join(
        (
            r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"`<>]+",
            r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\d)",
            r"\[[0-9A-Fa-f:]*::?[0-9A-Fa-f:.]*\](?::\d{1,5})?",
            r"(?<![\w:.])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6}::(?:[0-9A-Fa-f]{1,4}:?){0,7}(?!\w)",
            r"(?<=\bto host )[\w.-]+(?::\d{1,5})?",
            r"\b(?:localhost|[\w-]+(?:\.[\w-]+)+):\d{2,5}\b",
            # A name without dots is a host's only with a digit or a hyphen in it: `max_tokens:4096` is none.
            r"\b(?=[A-Za-z_]*[-\d])[A-Za-z][\w-]*:\d{4,5}\b",
            r"\b[\w-]+(?:\.[\w-]+)*\.(?:local|internal|localdomain|svc|lan|intranet)\b",
            r"(?<=\bport[ =:])\s?\d{2,5}\b",
            # Files; but not paths of the API such as /v1/chat/completions, which the client has called.
            r"(?<![\w./:~-])~?/(?!v1/)(?:[\w.@+~-]+/)+[\w.@+~-]*",
        )
    )
)
TRANSFER_FIELD = b'_transfer_params"'
"""Part of every answer that names addresses at which workers hand over KV blocks."""
_TRANSFER = re.compile(rb'"(?:kv|ec)_transfer_params"\s*:\s*\{')
_TRANSFER_FIELDS = ("kv_transfer_params", "ec_transfer_params")

CACHE_COUNTS = frozenset(
    {
        *("cached_tokens", "created_cache_tokens", "cache_write_tokens", "cache_creation_tokens"),
        *("prompt_cache_hit_tokens", "prompt_cache_miss_tokens"),
        *("cache_read_input_tokens", "cache_creation_input_tokens"),
    }
)
"""Fields of a usage object that reveal, alone or with others, how much of a prompt was in a cache."""
CACHE_REPORTS = ("timings", "prompt_progress")
"""Fields of llama.cpp's answers and chunks that reveal the same, beside the usage."""
MAY_COUNT_CACHED = re.compile(rb'"(?:usage|' + "|".join(CACHE_REPORTS).encode() + rb')"\s*:\s*\{')
"""Part of every frame from which `without_cached_tokens` may take something."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def without_addresses(text: str) -> str:
    """Return the text, shortened to MESSAGE_LENGTH_MAX, with dots in place of addresses and files."""
    return _ADDRESS.sub("...", text[:MESSAGE_LENGTH_MAX])


def without_cached_tokens(body: bytes) -> bytes:
    """Return a body or chunk without CACHE_REPORTS and CACHE_COUNTS; what is not understood stays as it is."""
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    reported = [name for name in CACHE_REPORTS if fields.pop(name, None) is not None]
    usage = _usage_without_counts(fields)
    if usage is not None:
        fields["usage"] = usage
    elif not reported:
        return body
    return msgspec.json.encode(fields)


def _usage_without_counts(fields: dict[str, msgspec.Raw]) -> msgspec.Raw | None:
    """Return the usage of an answer without CACHE_COUNTS; None if it has none of them."""
    try:
        usage = _FIELDS.decode(fields["usage"])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return None
    kept = {name: value for name, value in usage.items() if name not in CACHE_COUNTS}
    try:
        details = _FIELDS.decode(usage["prompt_tokens_details"])
    except (msgspec.DecodeError, RecursionError, KeyError):
        details = {}
    kept_details = {name: value for name, value in details.items() if name not in CACHE_COUNTS}
    if len(kept_details) < len(details):
        written = msgspec.json.encode(kept_details) if kept_details else b"null"
        kept["prompt_tokens_details"] = msgspec.Raw(written)
    elif len(kept) == len(usage):
        return None
    return msgspec.Raw(msgspec.json.encode(kept))


def without_transfers(body: bytes) -> bytes:
    """Return an answer without the addresses at which workers hand over KV blocks."""
    if TRANSFER_FIELD not in body or _TRANSFER.search(body) is None:
        return body
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    emptied = {name: msgspec.Raw(b"null") for name in _TRANSFER_FIELDS if name in fields}
    return msgspec.json.encode({**fields, **emptied})
