"""A body that arrives in messages from Envoy, buffered within a bound until it is read."""

import asyncio
from collections import deque

UNREAD_BYTES_MAX = 256 * 1024
"""Unread bytes beyond which no more messages are taken from Envoy."""


class BufferedBody:
    """The pieces of one body as they arrive, with one writer and one reader."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the last piece has arrived."""
        self._pieces: deque[bytes] = deque()
        self._unread_bytes = 0
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, piece: bytes, *, last: bool) -> None:
        """Add a piece, which may be empty."""
        if piece:
            self._pieces.append(piece)
            self._unread_bytes += len(piece)
            if self._unread_bytes > UNREAD_BYTES_MAX:
                self._room.clear()
        self.ended = self.ended or last
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End the body with an error, which the reader gets after the pieces that have arrived."""
        if self._error is None:
            self._error = error
        self._changed.set()
        self._room.set()

    async def wait_for_room(self) -> None:
        """Wait until the reader has caught up."""
        if self._error is None:
            await self._room.wait()

    @property
    def complete(self) -> bool:
        """Whether the body has arrived and been read to its end."""
        return self.ended and not self._pieces

    async def readany(self) -> bytes:
        """Return all pieces that have arrived, or wait for one; empty at the end. Raises the error of `fail`."""
        while not self._pieces:
            if self.ended:
                return b""
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._unread_bytes = 0
        self._room.set()
        return piece
