"""Decodes long lists of token ids of a JSON body in slices, apart from the rest of the body.

    {"model": "m", "prompt": [1, 2, 3, ... , 999998, 999999], "stream": true}
    {"model": "m", "prompt":               a mark           , "stream": true}      decoded at once
                             [ slice ][ slice ] ... [ slice ]                      32 KiB each, 0.1 ms

A decoder holds the GIL until it returns; a million token ids would stall every stream for 45 ms.
"""

import re
import secrets
from array import array
from contextlib import suppress
from typing import Annotated

import msgspec

from gateway.concurrency.gil_yield import yield_gil
from gateway.web.bodies.body_decoding import LONG_BYTES

SLICE_BYTES = 32 * 1024
YIELD_SLICES = 8
SEARCHED_BYTES = 256 * 1024
"""At the beginning of a body, for a list of ids."""

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

_IDS = msgspec.json.Decoder(list[TokenId])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LISTS = {name: re.compile(rb'"%b"\s*:\s*(?=\[\s*[0-9])' % name.encode()) for name in ("prompt", "input")}
_MARK = b'"%b"' % secrets.token_hex(16).encode()
"""A placeholder for a list that was cut out of a body. It is random, so that no client can send it."""


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
