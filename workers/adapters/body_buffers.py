"""The JSON body of a request as buffers: long values go to the socket without being copied.

    {"model":"m","max_tokens":16,"messages": | [...ten megabytes, as they came...] | ,"stream":true}

In one piece the body would be copied, and once more behind its head: milliseconds in which no other stream moves.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

LONG_BYTES = 64 * 1024
"""Values longer than this get a buffer of their own."""

Buffer: TypeAlias = bytes | memoryview
Buffers: TypeAlias = tuple[Buffer, ...]


def json_buffers(fields: Mapping[str, msgspec.Raw]) -> Buffers:
    """Return a JSON object of these fields, in their order, as consecutive buffers."""
    views = [memoryview(value) for value in fields.values()]
    if all(len(view) <= LONG_BYTES for view in views):
        return (msgspec.json.encode(fields),)
    buffers: list[Buffer] = []
    between = b"{"
    for name, view in zip(fields, views, strict=True):
        between += msgspec.json.encode(name) + b":"
        if len(view) > LONG_BYTES:
            buffers += (between, view)
            between = b","
        else:
            between += bytes(view) + b","
    return (*buffers, between[:-1] + b"}")


def total_bytes(buffers: Buffers) -> int:
    """Return the number of bytes of all buffers together."""
    return sum(map(len, buffers))
