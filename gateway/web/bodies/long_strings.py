"""Very long strings of a body, decoded in slices and put where they belong.

    {"messages": [{"role": "user", "content": "ten megabytes"}]}
    {"messages": [{"role": "user", "content": "a mark"      }]}      decoded at once
                                               [slice][slice]        64 KiB each

A decoder keeps the interpreter until it returns: ten milliseconds for such a string, in which nothing else moves.
"""

import secrets
from typing import Any

import msgspec

from gateway.concurrency.gil_yield import yield_gil

LONG_BYTES = 256 * 1024
SLICE_BYTES = 64 * 1024
YIELD_SLICES = 16
QUOTES_MAX = 20_000
"""Looked at in one body: one of more has short strings, or strings of which no slice is worth it."""

BACKSLASHES_MAX = 64
PAIR_BYTES = 12
"""Of the longest thing that may not be cut: a character written as two escapes."""

CUT_TRIES_MAX = 256
"""Places tried for a cut. Where escapes stand so dense that none is good, the rest is read in one piece: to look on
would take a hundred times as long."""

_STRING = msgspec.json.Decoder(str)
_MARK = secrets.token_hex(16)
"""Nobody can write it, so where it is found a string was taken out."""


def taken_out(body: bytes) -> tuple[bytes, list[str]]:
    """The body with a mark for each very long string, and these strings. Raises msgspec.DecodeError."""
    spots = _spots(body)
    rest, strings, at = bytearray(), [], 0
    for number, (start, end) in enumerate(spots):
        rest += b"%b%b" % (body[at:start], f"{_MARK}{number}".encode())
        strings.append(_decoded(body, start, end))
        at = end
    return (bytes(rest + body[at:]), strings) if spots else (body, [])


def put_back(value: Any, strings: list[str]) -> tuple[Any, int]:
    """What was decoded of such a body, with the strings for their marks; and how many there were."""
    if isinstance(value, str):
        if value.startswith(_MARK):
            return strings[int(value[len(_MARK) :])], 1
        return value, 0
    count = 0
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            value[key], more = put_back(inner, strings)
            count += more
    return value, count


def _spots(body: bytes) -> list[tuple[int, int]]:
    """Where the content of each very long string begins and ends; none of a body that has too many quotes."""
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
        if end - start > LONG_BYTES:
            spots.append((start, end))
        opening = body.find(b'"', end + 1)
    return spots


def _backslashes_before(body: bytes, end: int, start: int) -> int:
    """Or a few more than BACKSLASHES_MAX."""
    piece = body[max(start, end - BACKSLASHES_MAX - 2) : end]
    return len(piece) - len(piece.rstrip(b"\\"))


def _decoded(body: bytes, start: int, end: int) -> str:
    pieces: list[str] = []
    while start < end:
        cut = _cut(body, start + SLICE_BYTES, end)
        pieces.append(_STRING.decode(b'"%b"' % body[start:cut]))
        start = cut
        if len(pieces) % YIELD_SLICES == 0:
            yield_gil()
    return "".join(pieces)


def _cut(body: bytes, at: int, end: int) -> int:
    """The next place from there on that is within no character and no escape, nor between two of a pair."""
    for place in range(at, min(at + CUT_TRIES_MAX, end)):
        escape = body.rfind(b"\\", place - PAIR_BYTES, place + 1)
        if escape < 0:
            if body[place] & 0xC0 != 0x80:
                return place
        elif escape == place and body[place - 1] != 0x5C and body[place + 1 : place + 3].lower() != b"ud":
            return place
    return end
