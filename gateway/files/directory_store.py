"""ContentStore in a directory.

The gateways of one machine share the directory; those of several machines need a common file system.

    DIRECTORY/tenant/file-..            a whole content
    DIRECTORY/tenant/file-...part       a content that is being written; renamed when it is on disk
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from gateway.files.content_store import ContentDown, ContentLost

PIECE_BYTES = 1024 * 1024


class DirectoryStore:
    """A ContentStore in a directory, which is made at the first write and which only this user may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Write the whole content, or nothing. Raises ContentDown, and what `pieces` raises."""
        file = self._path / name
        draft = file.with_name(f"{file.name}.part")
        try:
            opened = await asyncio.to_thread(_create, draft)
            try:
                await _fill(opened, pieces)
                await asyncio.to_thread(_finish, opened, file)
            finally:
                with suppress(FileNotFoundError):
                    draft.unlink()
                opened.close()  # Writes what is buffered, and fails again where the disk is full.
        except OSError as err:
            raise ContentDown(f"{self._path}: {err.strerror or type(err).__name__}") from err

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield the pieces of a content. Raises ContentLost, ContentDown."""
        try:
            opened = await asyncio.to_thread(open, self._path / name, "rb")
        except FileNotFoundError as err:
            raise ContentLost(name) from err
        except OSError as err:
            raise ContentDown(f"{self._path}: {err.strerror}") from err
        with opened:
            while piece := await asyncio.to_thread(_piece, opened):
                yield piece

    async def delete(self, name: str) -> None:
        """Delete a content, also a partly written one. Raises ContentDown."""
        file = self._path / name
        try:
            for gone in (file, file.with_name(f"{file.name}.part")):
                await asyncio.to_thread(gone.unlink, missing_ok=True)
        except OSError as err:
            raise ContentDown(f"{self._path}: {err.strerror}") from err


async def _fill(opened: IO[bytes], pieces: AsyncIterator[bytes]) -> None:
    """Write the pieces, small ones together, since each write takes a thread."""
    held, size = [], 0
    async for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            await asyncio.to_thread(opened.write, b"".join(held))
            held, size = [], 0
    await asyncio.to_thread(opened.write, b"".join(held))


def _piece(opened: IO[bytes]) -> bytes:
    try:
        return opened.read(PIECE_BYTES)
    except OSError as err:
        raise ContentDown(f"the content cannot be read: {err.strerror}") from err


def _create(file: Path) -> IO[bytes]:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _finish(opened: IO[bytes], file: Path) -> None:
    opened.flush()
    os.fsync(opened.fileno())
    os.rename(opened.name if isinstance(opened.name, str) else file.with_name(f"{file.name}.part"), file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
