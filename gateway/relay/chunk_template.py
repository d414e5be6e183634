"""Chunks of a stream that are equal except for the piece of text in them.

    {"id":"a","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}
    {"id":"a","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}
    |------------------ before -----------------------|   |-------- after ---------|

Most chunks of an answer are. Once one of them has been decoded, only the text of the next has to be: between the
same bytes on both sides, a JSON string can only be the same string of the same object.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec

_decode_string = msgspec.json.Decoder(str).decode


class ChunkTemplate:
    """A chunk of a stream without its piece of text."""

    __slots__ = ("_after", "_before", "_bytes_min")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._bytes_min = len(before) + len(after)

    def text_of(self, payload: bytes) -> str | None:
        """Return the piece of text of a chunk that has this template; None for any other chunk."""
        size = len(payload)
        if (
            size < self._bytes_min
            or not payload.startswith(self._before)
            or not payload.endswith(self._after)
        ):
            return None
        text = payload[len(self._before) : size - len(self._after)]
        try:
            return _decode_string(b'"%b"' % text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # The string ends earlier, or not at all: the chunk is another one, or is malformed.


def chunk_template(payload: bytes, name: str, text: str) -> ChunkTemplate | None:
    """Return the template of a chunk; None where its bytes do not determine which string is the piece of text.

    Args:
        payload: The chunk.
        name: The field that has the piece of text.
        text: The piece of text.
    """
    if not (name.isascii() and name.isidentifier()):
        return None
    found = list(_field_pattern(name).finditer(payload))
    if len(found) != 1:
        return None
    start, end = found[0].span("text")
    before, after = payload[:start], payload[end:]
    if b"\\" in before or b"\\" in after:
        return None  # A name that is written with escapes may be this one, or end like it.
    template = ChunkTemplate(before, after)
    return template if template.text_of(payload) == text else None


def only_text_field(choice: Mapping[str, Any], *, chat: bool, unjoined: Collection[str]) -> str | None:
    """Return the name of the one field with a text that the next chunk continues; None if there are more, or none.

    Also None unless all other fields may be merged again without changing anything.

    Args:
        choice: The only choice of a chunk.
        chat: Whether the chunk is one of a chat completion.
        unjoined: Names of texts that are not continued by the next chunk.
    """
    delta = choice.get("delta") if chat else choice
    if not isinstance(delta, dict) or (chat and not _are_repeatable(choice, unjoined, without="delta")):
        return None
    texts = [name for name, value in delta.items() if isinstance(value, str) and name not in unjoined]
    return texts[0] if len(texts) == 1 and _are_repeatable(delta, unjoined, without=texts[0]) else None


def _are_repeatable(fields: Mapping[str, Any], unjoined: Collection[str], *, without: str) -> bool:
    """Return whether merging these fields a second time, one of them left out, changes nothing."""
    for name, value in fields.items():
        if name == without or value is None or isinstance(value, int | float) or value == []:
            continue
        if name not in unjoined or not isinstance(value, str):
            return False
    return True


@lru_cache(maxsize=64)
def _field_pattern(name: str) -> "re.Pattern[bytes]":
    # Inside a JSON string the quotes would be escaped: what is found is a field, at whatever level. The quantifiers
    # are possessive, since `re` keeps a hundred bytes of memory for each position to which it could backtrack.
    return re.compile(rb'"%b"\s*:\s*"(?P<text>[^"\\]*+(?:\\.[^"\\]*+)*+)' % name.encode(), re.DOTALL)
