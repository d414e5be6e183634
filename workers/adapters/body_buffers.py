"""Writes the JSON body of a request as several buffers, so that long values are sent without being copied.

    {"model":"m","max_tokens":16,"messages": | [...ten megabytes, as they came...] | ,"stream":true}

In one piece the body would be copied twice, once behind its head, which would stall all streams for milliseconds.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

LONG_BYTES = 64 * 1024
"""Values longer than this get a buffer of their own."""

Buffer: TypeAlias = bytes | memoryview
Buffers: TypeAlias = tuple[Buffer, ...]


def json_buffers(fields: Mapping[str, object]) -> Buffers:
    """Return a JSON object of these fields, in their order, as consecutive buffers.

    Values are raw JSON (msgspec.Raw), or short values to be encoded.
    """
    for value in fields.values():
        if type(value) is msgspec.Raw and memoryview(value).nbytes > LONG_BYTES:
            return _buffers_of_long_values(fields)
    return (msgspec.json.encode(fields),)


def _buffers_of_long_values(fields: Mapping[str, object]) -> Buffers:
    buffers: list[Buffer] = []
    between = b"{"
    for name, value in fields.items():
        between += msgspec.json.encode(name) + b":"
        view = memoryview(value if isinstance(value, msgspec.Raw) else msgspec.json.encode(value))
        if len(view) > LONG_BYTES:
            buffers += (between, view)
            between = b","
        else:
            between += bytes(view) + b","
    return (*buffers, between[:-1] + b"}")


def total_bytes(buffers: Buffers) -> int:
    """Return the number of bytes of all buffers together."""
    return sum(map(len, buffers))
