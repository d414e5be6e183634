"""Reading of request bodies within a limit for each, and within the memory that all requests share.

The bytes of a body are reserved as they arrive. Otherwise many large bodies that never end would take all memory
long before the first of them times out.
"""

from typing import Protocol, cast

from gateway.domain.errors import PayloadTooLarge
from gateway.domain.memory_budget import MemoryLease

JOINED_BYTES_MAX = 1024**2
"""Chunks of longer bodies are joined as they arrive; joining 10 MB at the end would stall the event loop."""


class ArrivingBody(Protocol):
    """The bytes of a body as they arrive, such as aiohttp's StreamReader."""

    async def readany(self) -> bytes:
        """Return the bytes that have arrived, or wait for more; empty at the end."""
        ...


async def read_body(content: ArrivingBody, bytes_max: int, memory: MemoryLease) -> bytes:
    """Return the whole body. Raises PayloadTooLarge, Overloaded, and what the stream raises."""
    chunks: list[bytes] = []
    long, size = bytearray(), 0
    while chunk := await content.readany():
        size += len(chunk)
        if size > bytes_max:
            raise PayloadTooLarge(bytes_max)
        memory.reserve(len(chunk))
        chunks.append(chunk)
        if size > JOINED_BYTES_MAX:
            for piece in chunks:
                long += piece
            chunks.clear()
    # Long bodies are bytearrays; every reader of the body takes either type.
    return cast(bytes, long) if long else b"".join(chunks)
