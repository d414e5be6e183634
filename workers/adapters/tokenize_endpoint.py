"""Tokens instead of texts, as vLLM, SGLang and the embedded engine have them: asked for, and handed over.

A long answer is read in a thread, its tokens in slices: a decoder keeps the interpreter until it returns, and half
a million tokens are 20 ms for everybody.
"""

import asyncio
import re
import time
from array import array
from collections.abc import Mapping

import msgspec

from radix_cache.blocks import Tokens
from workers.adapter import WorkerCall, WorkerUnreachable
from workers.adapters.http import ANSWERS, HttpWorker

ANSWER_BYTES_MAX = 16 * 1024**2
"""Of two million tokens, about."""

LONG_BYTES = 128 * 1024
SLICE_BYTES = 32 * 1024
REST_SLICES, REST_SECONDS = 8, 0.001
"""After so many slices others go on."""

NOT_FOUND = 404
COMPLETIONS = "v1/completions"


class Tokenized(msgspec.Struct):
    """What is read of its answer. More than one prompt was never asked about."""

    tokens: list[int]


_LIST = re.compile(rb'"tokens"\s*:\s*(?=\[\s*[0-9])')
_NO_TOKEN = -1
_IDS = msgspec.json.Decoder(list[int])


def with_ids(
    fields: dict[str, msgspec.Raw], call: WorkerCall, chat_field: str | None = None
) -> dict[str, msgspec.Raw]:
    """The prompt as tokens: a completion's in place of its text, a chat's beside its messages under that name."""
    field = "prompt" if call.path == COMPLETIONS else chat_field
    if call.ids is None or field is None:
        return fields
    return {**fields, field: msgspec.Raw(call.ids)}


async def tokenize(http: HttpWorker, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
    """See Tokenizes. An engine without this is as good as one that does not answer."""
    status, text = await http.post("tokenize", msgspec.json.encode(fields), seconds_max, ANSWER_BYTES_MAX)
    if status in ANSWERS and status != NOT_FOUND:
        return None
    if status != 200:
        raise WorkerUnreachable(f"status {status} from /tokenize")
    try:
        return await asyncio.to_thread(in_slices, text) if len(text) > LONG_BYTES else in_one_piece(text)
    except (msgspec.DecodeError, UnicodeError, OverflowError) as err:
        raise WorkerUnreachable(f"/tokenize: not the JSON that was expected: {err}") from err


def in_one_piece(text: bytes) -> Tokens:
    """The tokens of an answer. Raises msgspec.DecodeError, UnicodeError and OverflowError."""
    return array("I", msgspec.json.decode(text, type=Tokenized).tokens)


def in_slices(text: bytes) -> Tokens:
    """The same, for a thread."""
    found = _LIST.search(text)
    end = text.find(b"]", found.end()) if found is not None else -1
    if found is None or end < 0:
        return in_one_piece(text)
    rest = b"%b[%d]%b" % (text[: found.end()], _NO_TOKEN, text[end + 1 :])
    if msgspec.json.decode(rest, type=Tokenized).tokens != [_NO_TOKEN]:
        return in_one_piece(text)  # It was another list of that name.
    tokens: Tokens = array("I")
    start, slices = found.end() + 1, 0
    while start <= end:
        cut = text.find(b",", start + SLICE_BYTES, end)
        cut = end if cut < 0 else cut
        some = _IDS.decode(b"[%b]" % text[start:cut])
        if not some:
            raise msgspec.DecodeError("a comma with nothing before or behind it")
        tokens.extend(some)
        start, slices = cut + 1, slices + 1
        if slices % REST_SLICES == 0:
            time.sleep(REST_SECONDS)
    return tokens
