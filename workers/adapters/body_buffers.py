"""JSON of a request in pieces: what is long goes to the socket from where it lies.

    {"model":"m","max_tokens":16,"messages": | [...ten megabytes, as they came...] | ,"stream":true}

In one piece it would be copied, and once more behind its head: milliseconds in which no other stream moves.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

LONG_BYTES = 64 * 1024

Piece: TypeAlias = bytes | memoryview
Pieces: TypeAlias = tuple[Piece, ...]


def written(fields: Mapping[str, msgspec.Raw]) -> Pieces:
    """A JSON object of these fields, in their order: the pieces one after the other."""
    views = [memoryview(value) for value in fields.values()]
    if all(len(view) <= LONG_BYTES for view in views):
        return (msgspec.json.encode(fields),)
    pieces: list[Piece] = []
    between = b"{"
    for name, view in zip(fields, views, strict=True):
        between += msgspec.json.encode(name) + b":"
        if len(view) > LONG_BYTES:
            pieces += (between, view)
            between = b","
        else:
            between += bytes(view) + b","
    return (*pieces, between[:-1] + b"}")


def size(pieces: Pieces) -> int:
    """Bytes of all together."""
    return sum(map(len, pieces))
