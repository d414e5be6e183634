"""Canonical text of a conversation: its JSON with sorted names.

Strings of more than LONG_CHARACTERS are encoded in slices, because the JSON encoder keeps the GIL until it returns:
ten milliseconds for a string of ten megabytes.
"""

import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

LONG_CHARACTERS = 256 * 1024
SLICE_CHARACTERS = 64 * 1024

_MARK = secrets.token_hex(16)
_MARKS = re.compile(rb"%b([0-9]+)" % _MARK.encode())
"""A placeholder for a long string that was cut out. It is random, so that no client can write it."""

_json = msgspec.json.Encoder(order="sorted")


def canonical_json(messages: Sequence[Any]) -> bytes | bytearray:
    """Return the canonical text of the messages; a bytearray if it has very long strings."""
    long_strings: list[str] = []
    marked = _replace_long_strings(list(messages), long_strings)
    if not long_strings:
        return _json.encode(messages)
    text = bytearray()
    for at, piece in enumerate(_MARKS.split(_json.encode(marked))):
        if at % 2 == 0:
            text += piece
            continue
        string = long_strings[int(piece)]
        for start in range(0, len(string), SLICE_CHARACTERS):
            text += _json.encode(string[start : start + SLICE_CHARACTERS])[1:-1]
    return text


def _replace_long_strings(value: Any, long_strings: list[str]) -> Any:
    """Return the value with a mark in place of each very long string, which is appended to `long_strings`."""
    if isinstance(value, str):
        if len(value) <= LONG_CHARACTERS:
            return value
        long_strings.append(value)
        return f"{_MARK}{len(long_strings) - 1}"
    if isinstance(value, list):
        return [_replace_long_strings(inner, long_strings) for inner in value]
    if isinstance(value, dict):
        return {name: _replace_long_strings(inner, long_strings) for name, inner in value.items()}
    return value
