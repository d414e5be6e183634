"""Decoding of request bodies without stalling other streams: long bodies are decoded in a thread.

A decoder holds the GIL until it returns. While a thread decodes, the event loop runs only between two calls of the
decoder, so calls are kept short: long_id_lists.py and long_strings.py decode in slices.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gateway.concurrency.gil_yield import yield_gil

LONG_BYTES = 256 * 1024
"""Shorter bodies are decoded on the event loop, in a few milliseconds at most."""

_Decoded = TypeVar("_Decoded")


async def decode_in_thread_if_long(body: bytes, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    """Return `decode(body)`; a long body is decoded in a thread. Raises what `decode` raises."""
    return decode(body) if len(body) <= LONG_BYTES else await asyncio.to_thread(decode, body)


def yield_gil_if_long(body: bytes) -> None:
    """Let other threads run between two calls that each go through all of a long body."""
    if len(body) > LONG_BYTES:
        yield_gil()
