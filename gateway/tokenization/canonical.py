"""Canonical text of a conversation: its JSON with sorted names, very long strings of it written in slices.

An encoder keeps the interpreter until it returns: ten milliseconds for a string of ten megabytes.
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
"""Nobody can write one, so where it is found a string was taken out."""

_json = msgspec.json.Encoder(order="sorted")


def canonical(messages: Sequence[Any]) -> bytes | bytearray:
    """The text; a bytearray where it is long."""
    strings: list[str] = []
    marked = _marked(list(messages), strings)
    if not strings:
        return _json.encode(messages)
    text = bytearray()
    for at, piece in enumerate(_MARKS.split(_json.encode(marked))):
        if at % 2 == 0:
            text += piece
            continue
        string = strings[int(piece)]
        for start in range(0, len(string), SLICE_CHARACTERS):
            text += _json.encode(string[start : start + SLICE_CHARACTERS])[1:-1]
    return text


def _marked(value: Any, strings: list[str]) -> Any:
    """With a mark for each very long string, which is added to these. What has none is as it was."""
    if isinstance(value, str):
        if len(value) <= LONG_CHARACTERS:
            return value
        strings.append(value)
        return f"{_MARK}{len(strings) - 1}"
    if isinstance(value, list):
        return [_marked(inner, strings) for inner in value]
    if isinstance(value, dict):
        return {name: _marked(inner, strings) for name, inner in value.items()}
    return value
