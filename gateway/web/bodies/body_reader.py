"""Request bodies as they come: each has a bound, and all that are being read share one.

A body that is half there is memory that nobody can use. Many large ones that never end would be all of it, long
before the first has had its time: the one that comes after the budget is spent is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import StreamReader

from gateway.domain.errors import Overloaded, PayloadTooLarge

BODIES_BYTES_MAX = 512 * 1024**2
RETRY_SECONDS = 1.0

JOINED_BYTES_MAX = 1024**2
"""Chunks of a longer body are put together as they come: joined in the end, ten megabytes are a long moment."""


class BodyBudget:
    """Those of one process. `body_bytes_max`: of each; `bytes_held`: what has come of those being read."""

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self.bytes_held = 0

    @contextmanager
    def reading(self) -> Iterator["BodyReader"]:
        """One body; what it held is given back on every ending."""
        body = BodyReader(self)
        try:
            yield body
        finally:
            self.bytes_held -= body.size

    def hold(self, size: int) -> None:
        """So many bytes more. Raises Overloaded."""
        if self.bytes_held + size > BODIES_BYTES_MAX:
            raise Overloaded(RETRY_SECONDS)
        self.bytes_held += size


class BodyReader:
    """One body that is being read."""

    def __init__(self, among: BodyBudget) -> None:
        self.size = 0
        self._among = among
        self._chunks: list[bytes] = []

    def keep(self, size: int) -> None:
        """So many bytes are in memory now, of a body that is read otherwise. Raises Overloaded."""
        if size > self.size:
            self._among.hold(size - self.size)
        self._among.bytes_held += min(0, size - self.size)
        self.size = size

    async def read(self, content: StreamReader) -> bytes:
        """All of it. Raises PayloadTooLarge, Overloaded, and what the stream raises."""
        long = bytearray()
        while chunk := await content.readany():
            if self.size + len(chunk) > self._among.body_bytes_max:
                raise PayloadTooLarge(self._among.body_bytes_max)
            self._among.hold(len(chunk))
            self.size += len(chunk)
            self._chunks.append(chunk)
            if self.size > JOINED_BYTES_MAX:
                for one in self._chunks:
                    long += one
                self._chunks.clear()
        # Read only by what takes either.
        return cast(bytes, long) if long else b"".join(self._chunks)
