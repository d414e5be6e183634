"""Reading a body without holding up other streams: what is long is read in a thread.

A decoder keeps the interpreter until it returns: a million token ids are 45 ms for everybody. In a thread the event
loop gets its turn between one call and the next, so that calls are kept short: lists of ids are read in slices.

    [1, 2, 3, ... , 999998, 999999]
    [ slice ][ slice ] ... [ slice ]       64 KiB each, 0.2 ms
"""

import asyncio
from array import array
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

LONG_BYTES = 256 * 1024
"""Shorter bodies are read at once: a few milliseconds at the most."""
SLICE_BYTES = 64 * 1024

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

_Read = TypeVar("_Read")
_IDS = msgspec.json.Decoder(list[TokenId])


async def unhurried(body: bytes, read: Callable[[bytes], _Read]) -> _Read:
    """What reading the body gives. Raises what it raises."""
    return read(body) if len(body) <= LONG_BYTES else await asyncio.to_thread(read, body)


def token_ids(raw: bytes) -> "array[int]":
    """A JSON array of token ids. Raises msgspec.ValidationError that says which is none."""
    try:
        ids, start, end = array("I"), raw.index(b"[") + 1, raw.rindex(b"]")
        while start < end:
            cut = raw.find(b",", start + SLICE_BYTES, end)
            cut = end if cut < 0 else cut
            ids.extend(_IDS.decode(b"[%b]" % raw[start:cut]))
            start = cut + 1
        return ids
    except msgspec.DecodeError:
        # Once more from its beginning, as slices do not know where they stand.
        return array("I", _IDS.decode(raw))
