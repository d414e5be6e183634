"""Decodes very long strings of a JSON body in slices, apart from the rest of the body.

    {"messages": [{"role": "user", "content": "ten megabytes"}]}
    {"messages": [{"role": "user", "content": "a mark"       }]}     decoded at once
                                               [slice][slice]        64 KiB each

A decoder holds the GIL until it returns: for such a string every stream would stall for ten milliseconds.
"""

import secrets
from typing import Any

import msgspec

from gateway.concurrency.gil_yield import yield_gil

LONG_STRING_BYTES = 256 * 1024
SLICE_BYTES = 64 * 1024
YIELD_SLICES = 16
QUOTES_MAX = 20_000
"""The most quotes of one body that are examined. A body with more has short strings, or many escapes."""

BACKSLASHES_MAX = 64
"""The most backslashes before a quote that are counted."""
PAIR_BYTES = 12
"""The length of the longest sequence that must not be cut: a surrogate pair of two escapes."""

CUT_TRIES_MAX = 256
"""The positions tried for a cut. Where escapes are too dense, the rest is decoded whole, because searching on would
take a hundred times as long."""

_STRING = msgspec.json.Decoder(str)
_MARK = secrets.token_hex(16)
"""A placeholder for a string that was cut out. It is random, so that no client can send it."""


def take_long_strings(body: bytes) -> tuple[bytes, list[str]]:
    """Return the body with a mark for each very long string, and these strings. Raises msgspec.DecodeError."""
    spots = _long_strings(body)
    rest, strings, at = bytearray(), [], 0
    for number, (start, end) in enumerate(spots):
        rest += b"%b%b" % (body[at:start], f"{_MARK}{number}".encode())
        strings.append(_decode_string(body, start, end))
        at = end
    return (bytes(rest + body[at:]), strings) if spots else (body, [])


def restore_strings(value: Any, strings: list[str]) -> tuple[Any, int]:
    """Return a decoded value with the strings in place of their marks, and the number of marks that were found."""
    if isinstance(value, str):
        if value.startswith(_MARK):
            return strings[int(value[len(_MARK) :])], 1
        return value, 0
    count = 0
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            value[key], more = restore_strings(inner, strings)
            count += more
    return value, count


def _long_strings(body: bytes) -> list[tuple[int, int]]:
    """Return the start and end of each very long string's content; empty for a body with too many quotes."""
    spots, quotes = [], 0
    opening = body.find(b'"')
    while opening >= 0:
        start = at = opening + 1
        while True:
            end = body.find(b'"', at)
            quotes += 1
            backslashes = _backslashes_before(body, end, start)
            if end < 0 or quotes > QUOTES_MAX or backslashes > BACKSLASHES_MAX:
                return []
            if backslashes % 2 == 0:
                break
            at = end + 1
        if end - start > LONG_STRING_BYTES:
            spots.append((start, end))
        opening = body.find(b'"', end + 1)
    return spots


def _backslashes_before(body: bytes, end: int, start: int) -> int:
    """Return the number of backslashes before a quote, counted only a little beyond BACKSLASHES_MAX."""
    piece = body[max(start, end - BACKSLASHES_MAX - 2) : end]
    return len(piece) - len(piece.rstrip(b"\\"))


def _decode_string(body: bytes, start: int, end: int) -> str:
    """Return the string with its content between two positions, decoded in slices."""
    pieces: list[str] = []
    while start < end:
        cut = _cut(body, start + SLICE_BYTES, end)
        pieces.append(_STRING.decode(b'"%b"' % body[start:cut]))
        start = cut
        if len(pieces) % YIELD_SLICES == 0:
            yield_gil()
    return "".join(pieces)


def _cut(body: bytes, at: int, end: int) -> int:
    """Return the next position that is not within a character or an escape, nor within a surrogate pair."""
    for place in range(at, min(at + CUT_TRIES_MAX, end)):
        escape = body.rfind(b"\\", place - PAIR_BYTES, place + 1)
        if escape < 0:
            if body[place] & 0xC0 != 0x80:
                return place
        elif escape == place and body[place - 1] != 0x5C and body[place + 1 : place + 3].lower() != b"ud":
            return place
    return end
