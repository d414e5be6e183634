"""Tokens in place of text, for vLLM, SGLang and the embedded engine: read from /tokenize, and sent with a prompt.

A long answer is decoded in a thread, in slices, because a decoder holds the GIL until it returns, and half a
million tokens would stall all requests for 20 ms.
"""

import asyncio
import re
import time
from array import array
from collections.abc import Mapping

import msgspec

from radix_cache.blocks import Tokens
from workers.adapter import WorkerCall, WorkerFailed
from workers.adapters.http import REFUSAL_STATUSES, HttpWorker

ANSWER_BYTES_MAX = 16 * 1024**2
"""Longest answer: about two million tokens."""

LONG_BYTES = 128 * 1024
"""Longer answers are decoded in a thread."""

SLICE_BYTES = 32 * 1024
"""Bytes that are decoded without a pause."""

REST_SLICES, REST_SECONDS = 8, 0.001
"""The number of slices after which the thread pauses, and the length of the pause, so that other threads run."""

NOT_FOUND = 404
COMPLETIONS = "v1/completions"


class Tokenized(msgspec.Struct):
    """The part of a /tokenize answer that is read; it is always for one prompt."""

    tokens: list[int]


_LIST = re.compile(rb'"tokens"\s*:\s*(?=\[\s*[0-9])')
_NO_TOKEN = -1
_IDS = msgspec.json.Decoder(list[int])


def with_prompt_ids(
    fields: dict[str, object], call: WorkerCall, chat_field: str | None = None
) -> dict[str, object]:
    """Return the fields of a call with its prompt as tokens, if the call has them.

    A completion's tokens replace its text; a chat's go beside its messages, in the field `chat_field`.
    """
    field = "prompt" if call.path == COMPLETIONS else chat_field
    if call.prompt_ids is None or field is None:
        return fields
    return {**fields, field: msgspec.Raw(call.prompt_ids)}


async def tokenize(http: HttpWorker, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
    """Return the tokens of a prompt; see SupportsTokenize. Raises WorkerFailed, also without /tokenize."""
    status, text = await http.post("tokenize", msgspec.json.encode(fields), seconds_max, ANSWER_BYTES_MAX)
    if status in REFUSAL_STATUSES and status != NOT_FOUND:
        return None
    if status != 200:
        raise WorkerFailed(f"status {status} from /tokenize")
    try:
        return (
            await asyncio.to_thread(decode_in_slices, text)
            if len(text) > LONG_BYTES
            else decode_at_once(text)
        )
    except (msgspec.DecodeError, UnicodeError, OverflowError) as err:
        raise WorkerFailed(f"/tokenize: not the JSON that was expected: {err}") from err


def decode_at_once(text: bytes) -> Tokens:
    """Return the tokens of an answer. Raises msgspec.DecodeError, UnicodeError and OverflowError."""
    return array("I", msgspec.json.decode(text, type=Tokenized).tokens)


def decode_in_slices(text: bytes) -> Tokens:
    """Return the tokens of an answer, decoded slice by slice with pauses; for use in a thread."""
    found = _LIST.search(text)
    end = text.find(b"]", found.end()) if found is not None else -1
    if found is None or end < 0:
        return decode_at_once(text)
    rest = b"%b[%d]%b" % (text[: found.end()], _NO_TOKEN, text[end + 1 :])
    if msgspec.json.decode(rest, type=Tokenized).tokens != [_NO_TOKEN]:
        return decode_at_once(text)  # The first list with that name was another one.
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
