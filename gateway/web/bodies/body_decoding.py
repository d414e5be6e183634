"""Decoding of request bodies without stalling other streams: long bodies are decoded in a thread.

A decoder holds the GIL until it returns; a million token ids stall every stream for 45 ms. While a thread decodes,
the event loop runs only between two calls of the decoder, so calls are kept short: lists of ids are decoded in
slices.

    {"model": "m", "prompt": [1, 2, 3, ... , 999998, 999999], "stream": true}
    {"model": "m", "prompt":               a mark           , "stream": true}      decoded at once
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
"""Shorter bodies are decoded on the event loop, in a few milliseconds at most."""
SLICE_BYTES = 32 * 1024
YIELD_SLICES = 8
SEARCHED_BYTES = 256 * 1024
"""At the beginning of a body, for a list of ids."""

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

_Decoded = TypeVar("_Decoded")
_IDS = msgspec.json.Decoder(list[TokenId])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LISTS = {name: re.compile(rb'"%b"\s*:\s*(?=\[\s*[0-9])' % name.encode()) for name in ("prompt", "input")}
_MARK = b'"%b"' % secrets.token_hex(16).encode()
"""A placeholder for a list that was cut out of a body. It is random, so that no client can send it."""


async def decode_in_thread_if_long(body: bytes, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    """Return `decode(body)`; a long body is decoded in a thread. Raises what `decode` raises."""
    return decode(body) if len(body) <= LONG_BYTES else await asyncio.to_thread(decode, body)


def yield_gil_if_long(body: bytes) -> None:
    """Let other threads run between two calls that each go through all of a long body."""
    if len(body) > LONG_BYTES:
        yield_gil()


def check_utf8(body: bytes) -> None:
    """Raise UnicodeDecodeError unless the body is UTF-8."""
    if body.isascii():
        return
    check, view = getincrementaldecoder("utf-8")(), memoryview(body)
    try:
        for start in range(0, len(body), SLICE_BYTES):
            check.decode(view[start : start + SLICE_BYTES])
        check.decode(b"", final=True)
    except UnicodeDecodeError:
        # Decoded again from the beginning, so that the error names the position in the whole body.
        body.decode()


def decode_fields(body: bytes, name: str) -> dict[str, msgspec.Raw]:
    """Return the top-level fields of a body as raw JSON. Raises msgspec.DecodeError and RecursionError.

    If the field `name` (prompt or input) is a long list that begins with a number, it is not validated. It must
    then be decoded with `decode_token_ids`, which accepts only a list of numbers that ends where this function cut
    it.
    """
    found = _LISTS[name].search(body, 0, SEARCHED_BYTES) if len(body) > LONG_BYTES else None
    if found is not None:
        start, end = found.end(), body.find(b"]", found.end()) + 1
        if end - start > SLICE_BYTES:
            fields: dict[str, msgspec.Raw] = {}
            with suppress(msgspec.DecodeError):  # The whole body is decoded below, and raises its own error.
                fields = _FIELDS.decode(b"%b%b%b" % (body[:start], _MARK, body[end:]))
            if name in fields and bytes(fields[name]) == _MARK:
                return {**fields, name: msgspec.Raw(memoryview(body)[start:end])}
    return _FIELDS.decode(body)


def decode_token_ids(raw: bytes) -> "array[int]":
    """Return the token ids of a JSON array. Raises msgspec.ValidationError that names the invalid element."""
    try:
        ids, start, end = array("I"), raw.index(b"[") + 1, raw.rindex(b"]")
        slices = 0
        while start < end:
            cut = raw.find(b",", start + SLICE_BYTES, end)
            cut = end if cut < 0 else cut
            piece = _IDS.decode(b"[%b]" % raw[start:cut])
            if not piece and (ids or cut < end):
                raise msgspec.DecodeError("a comma with nothing before or behind it")
            ids.extend(piece)
            start, slices = cut + 1, slices + 1
            if slices % YIELD_SLICES == 0:
                yield_gil()
        if start == end and ids:
            raise msgspec.DecodeError("a comma with nothing behind it")
        return ids
    except msgspec.DecodeError:
        # Decoded again from the beginning: within a slice the position of its elements is unknown.
        return array("I", _IDS.decode(raw))
