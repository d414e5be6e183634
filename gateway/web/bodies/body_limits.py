"""Limits on the shape of a JSON body: its number of values and its depth, checked before it is used.

Thirty megabytes of `[],[],[],...` are within the limit of bytes, and would stall the event loop for half a minute.
Brackets and commas are counted as bytes, a slice at a time, which costs microseconds. Only where a long text has
very many of them are they counted again without the contents of strings.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest

CONTAINERS_MAX = 100_000
"""Objects and arrays of one body."""
VALUES_MAX = 2_000_000
"""Commas of one body: a prompt may be a million token ids."""
DEPTH_MAX = 64
"""Levels of nesting of one field."""
SPLIT_BYTES_MAX = 256 * 1024
"""Texts up to this length are split at quotes, which is three times as fast as a pattern, but takes more memory."""

SLICE_BYTES = 256 * 1024
"""Bytes that are counted in one call: a call holds the GIL until it returns."""

_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.S)


SHORT_BYTES_MAX = 2 * CONTAINERS_MAX
"""A body up to this length cannot have too many values."""


def check_size(body: bytes) -> None:
    """Raise BadRequest for a body of too many values."""
    if len(body) <= SHORT_BYTES_MAX or not _too_many(body):
        return
    if _too_many(_outside_strings(body)):
        raise BadRequest(
            f"The body has more than {CONTAINERS_MAX} objects and arrays, or more than {VALUES_MAX} values."
        )


def check_depth(body: bytes, messages: object, fields: Mapping[str, msgspec.Raw]) -> None:
    """Raise BadRequest for a body that is nested too deeply.

    Args:
        body: The whole body.
        messages: The decoded messages of a chat; None where `fields` has everything.
        fields: The top-level fields as raw JSON.
    """
    if len(body) <= SLICE_BYTES and body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return  # Nearly every body: it has too few brackets for so many levels.
    if messages is not None and _deeper(messages, DEPTH_MAX):
        raise _too_deep("messages")
    for name, value in fields.items():
        if name not in ("messages", "prompt") and value_is_deep(bytes(value)):
            raise _too_deep(name)


def value_is_deep(value: bytes) -> bool:
    """Return whether a value of valid JSON is nested too deeply.

    The brackets outside strings are made one kind; each round removes the innermost level of them.
    """
    if value.count(b"[") + value.count(b"{") <= DEPTH_MAX:
        return False
    brackets = _outside_strings(value).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(DEPTH_MAX):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _outside_strings(text: bytes) -> bytes:
    """Return the text without the contents of strings; for valid JSON both ways come to the same."""
    if len(text) > SPLIT_BYTES_MAX:
        return _STRING.sub(b"", text)
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _too_many(text: bytes) -> bool:
    return _count(text, b"{") + _count(text, b"[") > CONTAINERS_MAX or _count(text, b",") > VALUES_MAX


def _count(text: bytes, byte: bytes) -> int:
    return sum(text.count(byte, at, at + SLICE_BYTES) for at in range(0, len(text), SLICE_BYTES))


def _too_deep(name: str) -> BadRequest:
    # The name is the client's, and may be long.
    return BadRequest(f"{name[:100]} is nested more than {DEPTH_MAX} levels deep.", param=name[:100])


def _deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more levels of nesting than the given number."""
    if levels == 0:
        return True
    for inner in value.values() if isinstance(value, dict) else value:
        kind = type(inner)
        if (kind is dict or kind is list) and _deeper(inner, levels - 1):
            return True
    return False
