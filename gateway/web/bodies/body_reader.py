"""Reading of request bodies: each has a limit, and all bodies being read share a memory budget.

Many large bodies that never end would take all memory long before the first of them times out: a body that exceeds
the shared budget is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import StreamReader

from gateway.domain.errors import Overloaded, PayloadTooLarge

BODIES_BYTES_MAX = 512 * 1024**2
"""Bytes of all bodies that are being read."""
RETRY_SECONDS = 1.0
"""`retry-after` of a body that is refused."""

JOINED_BYTES_MAX = 1024**2
"""Chunks of a longer body are joined as they arrive: joining 10 MB at the end would stall the event loop."""


class BodyBudget:
    """The memory that the request bodies of one process share while they are read."""

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        """Bytes of one body."""
        self.bytes_held = 0
        """Bytes that have arrived of all bodies being read."""

    @contextmanager
    def reader(self) -> Iterator["BodyReader"]:
        """Yield a reader for one body; its share of the memory is returned at the end, also of a failure."""
        body = BodyReader(self)
        try:
            yield body
        finally:
            self.bytes_held -= body.size

    def read_arrived(self, content: StreamReader) -> bytes:
        """Return a body that has arrived to its end. Raises PayloadTooLarge, Overloaded, what the stream raises.

        Its bytes count only as long as this function runs, so that they are compared and not added.
        """
        body = content.read_nowait()
        if len(body) > self.body_bytes_max:
            raise PayloadTooLarge(self.body_bytes_max)
        if self.bytes_held + len(body) > BODIES_BYTES_MAX:
            raise Overloaded(RETRY_SECONDS)
        return body

    def reserve(self, size: int) -> None:
        """Take so many bytes more. Raises Overloaded."""
        if self.bytes_held + size > BODIES_BYTES_MAX:
            raise Overloaded(RETRY_SECONDS)
        self.bytes_held += size


class BodyReader:
    """Reads one body within the shared memory budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self.size = 0
        """Bytes in memory."""
        self._budget = budget
        self._chunks: list[bytes] = []

    def set_size(self, size: int) -> None:
        """Account for so many bytes in memory, of a body that is not read with `read`. Raises Overloaded."""
        if size > self.size:
            self._budget.reserve(size - self.size)
        self._budget.bytes_held += min(0, size - self.size)
        self.size = size

    async def read(self, content: StreamReader) -> bytes:
        """Return the whole body. Raises PayloadTooLarge, Overloaded, and what the stream raises."""
        long = bytearray()
        while chunk := await content.readany():
            if self.size + len(chunk) > self._budget.body_bytes_max:
                raise PayloadTooLarge(self._budget.body_bytes_max)
            self._budget.reserve(len(chunk))
            self.size += len(chunk)
            self._chunks.append(chunk)
            if self.size > JOINED_BYTES_MAX:
                for piece in self._chunks:
                    long += piece
                self._chunks.clear()
        # A bytearray for long bodies: every reader of the body takes either type.
        return cast(bytes, long) if long else b"".join(self._chunks)
