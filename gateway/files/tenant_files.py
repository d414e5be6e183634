"""TenantFiles: the files of all tenants, each visible only to its tenant; the file API without HTTP."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from gateway.database.database import DatabaseDown
from gateway.database.file_store import FileStore, StoredFile, TenantStorageFull
from gateway.database.pagination import PageRequest
from gateway.files.content_store import ContentDown, ContentStore

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0


class FileTooLarge(Exception):
    """The file has more than `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.bytes_max = bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """Limits on the size and the age of files."""

    file_bytes_max: int  # of one file
    tenant_bytes_max: int  # of all files of one tenant
    kept_seconds_max: float  # after which a file is deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLabel:
    """The properties of a file that are known once its content has arrived."""

    purpose: str
    name: str
    kept_seconds: float | None = None  # None: as long as is allowed


class TenantFiles:
    """The files of all tenants: their rows in `store`, their contents in `contents`.

    Every method raises DatabaseDown and ContentDown.
    """

    def __init__(self, store: FileStore, contents: ContentStore, bounds: FileBounds) -> None:
        self.store = store
        self.bounds = bounds
        self._contents = contents
        self._arriving: dict[str, int] = {}

    async def put(
        self, tenant: str, pieces: AsyncIterator[bytes], label: Callable[[], FileLabel]
    ) -> StoredFile:
        """Store a new file and return it; `label` is called once its content has arrived.

        What `label` and `pieces` raise is passed on. Raises FileTooLarge, TenantStorageFull.
        """
        async with _Arrival(self, tenant) as arrival:
            await self._contents.write(arrival.file.content, arrival.counted(pieces))
            file = self._labelled(arrival.file, label(), arrival.bytes)
            try:
                await self.store.complete(file, tenant_bytes_max=self.bounds.tenant_bytes_max)
            except KeyError as err:
                raise ContentDown("the upload took too long") from err
            arrival.kept = True
        return file

    async def write(self, tenant: str, pieces: AsyncIterator[bytes], label: FileLabel) -> StoredFile:
        """Write a file that the gateway itself makes; it stays invisible until FileStore.complete_in."""
        file = await self.store.begin(new_id(), tenant)
        size = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for piece in pieces:
                size += len(piece)
                yield piece

        await self._contents.write(file.content, counted())
        return self._labelled(file, label, size)

    async def get(self, tenant: str, identity: str) -> StoredFile | None:
        """Return a file; None if it does not exist, has expired, or belongs to another tenant."""
        return await self.store.get(tenant, identity)

    async def page(
        self, tenant: str, page: PageRequest, purpose: str | None
    ) -> tuple[Sequence[StoredFile], bool]:
        """Return some of a tenant's files, and whether there are more. Raises CursorNotFound."""
        return await self.store.page(tenant, page, purpose)

    def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield the pieces of a file's content. Raises ContentLost."""
        return self._contents.read(file.content)

    async def delete(self, file: StoredFile) -> Literal["dropped", "in use", "not there"]:
        """Delete a file, unless a batch still reads it."""
        outcome = await self.store.delete(file)
        if outcome == "dropped":
            # The file is invisible now; if its content cannot be deleted yet, a sweep does it.
            with suppress(ContentDown):
                await self._erase(file)
        return outcome

    async def sweep(self) -> int:
        """Delete the contents of deleted and expired files, and return how many they were."""
        leftovers = await self.store.take_leftovers()
        for file in leftovers:
            await self._erase(file)
        return len(leftovers)

    async def run(self) -> None:
        """Sweep repeatedly, until this coroutine is cancelled."""
        while True:
            try:
                while await self.sweep():
                    pass
            except (DatabaseDown, ContentDown) as err:
                log.warning("old files cannot be removed: %s", err)
            await asyncio.sleep(SWEEP_SECONDS)

    def count_arriving(self, tenant: str, size: int) -> int:
        """Add to the bytes that are arriving for a tenant (or subtract, below 0), and return their sum."""
        total = self._arriving.get(tenant, 0) + size
        self._arriving[tenant] = total
        if not total:
            del self._arriving[tenant]
        return total

    async def _erase(self, file: StoredFile) -> None:
        await self._contents.delete(file.content)
        await self.store.forget(file)

    def _labelled(self, file: StoredFile, label: FileLabel, size: int) -> StoredFile:
        kept = min(label.kept_seconds or self.bounds.kept_seconds_max, self.bounds.kept_seconds_max)
        return replace(file, purpose=label.purpose, name=label.name, bytes=size, expires=file.created + kept)


class _Arrival:
    """A file that is being uploaded; it is discarded if it does not arrive completely."""

    def __init__(self, files: TenantFiles, tenant: str) -> None:
        self.bytes = 0
        self.kept = False
        self.file: StoredFile
        self._files = files
        self._tenant = tenant
        self._bytes_held = 0

    async def __aenter__(self) -> "_Arrival":
        self._bytes_held = await self._files.store.bytes_held(self._tenant)
        self.file = await self._files.store.begin(new_id(), self._tenant)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._files.count_arriving(self._tenant, -self.bytes)
        if not self.kept:
            with suppress(DatabaseDown):
                await asyncio.shield(self._files.store.discard(self.file))

    async def counted(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the same pieces, and raise FileTooLarge or TenantStorageFull as soon as there are too many bytes.

        That is long before a disk is full of a file that will not be kept.
        """
        bounds = self._files.bounds
        async for piece in pieces:
            self.bytes += len(piece)
            arriving_bytes = self._files.count_arriving(self._tenant, len(piece))
            if self.bytes > bounds.file_bytes_max:
                raise FileTooLarge(bounds.file_bytes_max)
            if self._bytes_held + arriving_bytes > bounds.tenant_bytes_max:
                raise TenantStorageFull
            yield piece


def new_id() -> str:
    """Return a new random id of a file."""
    return f"file-{secrets.token_hex(16)}"
