"""Chunks of a stream that are alike but for the piece of text in them.

    {"id":"a","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}
    {"id":"a","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}
    |------------------ before -----------------------|   |-------- after ---------|

Most chunks of an answer are. Whoever has understood one of them need read only the text of the next: between the
same bytes on both sides, a JSON string can only be the same string of the same object.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec

_string = msgspec.json.Decoder(str).decode


class Refrain:
    """All of a chunk but its piece of text."""

    __slots__ = ("_after", "_before", "_least")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._least = len(before) + len(after)

    def piece(self, payload: bytes) -> str | None:
        """The text of a chunk that is alike; None for any other."""
        size = len(payload)
        if size < self._least or not payload.startswith(self._before) or not payload.endswith(self._after):
            return None
        text = payload[len(self._before) : size - len(self._after)]
        try:
            return _string(b'"%b"' % text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # The string ends earlier, or nowhere: it is another chunk, or none.


def refrain_of(payload: bytes, name: str, text: str) -> Refrain | None:
    """Of a chunk in which the field of this name is its piece; None where bytes do not tell which one that is."""
    if not (name.isascii() and name.isidentifier()):
        return None
    found = list(_fields(name).finditer(payload))
    if len(found) != 1:
        return None
    start, end = found[0].span("text")
    before, after = payload[:start], payload[end:]
    if b"\\" in before or b"\\" in after:
        return None  # A name that is written with escapes may be this one, or end like it.
    refrain = Refrain(before, after)
    return refrain if refrain.piece(payload) == text else None


def only_piece(choice: Mapping[str, Any], *, chat: bool, said_again: Collection[str]) -> str | None:
    """The name of the one field of a chunk's only choice that the next chunk goes on with.

    None unless the rest may be said again without changing anything. `said_again`: texts that are no pieces.
    """
    delta = choice.get("delta") if chat else choice
    if not isinstance(delta, dict) or (chat and not _blank(choice, said_again, without="delta")):
        return None
    texts = [name for name, value in delta.items() if isinstance(value, str) and name not in said_again]
    return texts[0] if len(texts) == 1 and _blank(delta, said_again, without=texts[0]) else None


def _blank(fields: Mapping[str, Any], said_again: Collection[str], *, without: str) -> bool:
    return all(
        value is None
        or isinstance(value, int | float)
        or value == []
        or (name in said_again and isinstance(value, str))
        for name, value in fields.items()
        if name != without
    )


@lru_cache(maxsize=64)
def _fields(name: str) -> "re.Pattern[bytes]":
    # Inside of a JSON string its quotes would be escaped: this is a field, wherever it is found. Nothing is tried
    # twice: to be able to, `re` remembers a hundred bytes for each one of a text.
    return re.compile(rb'"%b"\s*:\s*"(?P<text>[^"\\]*+(?:\\.[^"\\]*+)*+)' % name.encode(), re.DOTALL)
