"""Reading a body without holding up other streams: what is long is read in a thread.

A decoder keeps the interpreter until it returns: a million token ids are 45 ms for everybody. In a thread the event
loop gets its turn between one call and the next, so that calls are kept short: lists of ids are read in slices.

    {"model": "m", "prompt": [1, 2, 3, ... , 999998, 999999], "stream": true}
    {"model": "m", "prompt":               a mark           , "stream": true}      read at once
                             [ slice ][ slice ] ... [ slice ]                      32 KiB each, 0.1 ms
"""

import asyncio
import re
import secrets
from array import array
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec

from gateway.concurrency.gil_yield import yield_gil

LONG_BYTES = 256 * 1024
"""Shorter bodies are read at once: a few milliseconds at the most."""
SLICE_BYTES = 32 * 1024
YIELD_SLICES = 8
SEARCHED_BYTES = 256 * 1024
"""At the beginning of a body, for a list of ids."""

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

_Read = TypeVar("_Read")
_IDS = msgspec.json.Decoder(list[TokenId])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LISTS = {name: re.compile(rb'"%b"\s*:\s*(?=\[\s*[0-9])' % name.encode()) for name in ("prompt", "input")}
_MARK = b'"%b"' % secrets.token_hex(16).encode()
"""Stands for a list that was taken out of a body. Nobody can write it: where it is found is where the list was."""


async def unhurried(body: bytes, read: Callable[[bytes], _Read]) -> _Read:
    """What reading the body gives. Raises what it raises."""
    return read(body) if len(body) <= LONG_BYTES else await asyncio.to_thread(read, body)


def between(body: bytes) -> None:
    """Two calls that each read all of the body."""
    if len(body) > LONG_BYTES:
        yield_gil()


def check_text(body: bytes) -> None:
    """Is it UTF-8? Raises UnicodeDecodeError."""
    if body.isascii():
        return
    check, view = getincrementaldecoder("utf-8")(), memoryview(body)
    try:
        for start in range(0, len(body), SLICE_BYTES):
            check.decode(view[start : start + SLICE_BYTES])
        check.decode(b"", final=True)
    except UnicodeDecodeError:
        # Once more from its beginning, for the place.
        body.decode()


def fields_of(body: bytes, name: str) -> dict[str, msgspec.Raw]:
    """The top-level fields of a body. Raises msgspec.DecodeError and RecursionError.

    A long list of that name, prompt or input, that begins with a number is not looked into: whoever reads on reads
    it with `token_ids`, to which it is a list of numbers that ends where it seems to, or nothing.
    """
    found = _LISTS[name].search(body, 0, SEARCHED_BYTES) if len(body) > LONG_BYTES else None
    if found is not None:
        start, end = found.end(), body.find(b"]", found.end()) + 1
        if end - start > SLICE_BYTES:
            fields: dict[str, msgspec.Raw] = {}
            with suppress(msgspec.DecodeError):  # It is said of the whole body, if it is true of it.
                fields = _FIELDS.decode(b"%b%b%b" % (body[:start], _MARK, body[end:]))
            if name in fields and bytes(fields[name]) == _MARK:
                return {**fields, name: msgspec.Raw(memoryview(body)[start:end])}
    return _FIELDS.decode(body)


def token_ids(raw: bytes) -> "array[int]":
    """A JSON array of token ids. Raises msgspec.ValidationError that says which is none."""
    try:
        ids, start, end = array("I"), raw.index(b"[") + 1, raw.rindex(b"]")
        slices = 0
        while start < end:
            cut = raw.find(b",", start + SLICE_BYTES, end)
            cut = end if cut < 0 else cut
            some = _IDS.decode(b"[%b]" % raw[start:cut])
            if not some and (ids or cut < end):
                raise msgspec.DecodeError("a comma with nothing before or behind it")
            ids.extend(some)
            start, slices = cut + 1, slices + 1
            if slices % YIELD_SLICES == 0:
                yield_gil()
        if start == end and ids:
            raise msgspec.DecodeError("a comma with nothing behind it")
        return ids
    except msgspec.DecodeError:
        # Once more from its beginning, as slices do not know where they stand.
        return array("I", _IDS.decode(raw))
