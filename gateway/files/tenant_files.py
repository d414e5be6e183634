"""TenantFiles: the files of all tenants, each seen by its own alone. What the API does with files, without HTTP."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from gateway.database.database import DatabaseDown
from gateway.database.file_store import FileStore, NoRoom, StoredFile
from gateway.database.pages import Page
from gateway.files.content import ContentDown, ContentStore

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0


class TooLarge(Exception):
    """The file is larger than one may be: `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.bytes_max = bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """`kept_seconds_max`: no file is kept longer."""

    file_bytes_max: int
    tenant_bytes_max: int
    kept_seconds_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is known of a file when its content has come. `kept_seconds`: None for as long as may be."""

    purpose: str
    name: str
    kept_seconds: float | None = None


class TenantFiles:
    """Every method raises DatabaseDown and ContentDown."""

    def __init__(self, store: FileStore, contents: ContentStore, bounds: FileBounds) -> None:
        self.store = store
        self.bounds = bounds
        self._contents = contents
        self._arriving: dict[str, int] = {}

    async def put(self, tenant: str, pieces: AsyncIterator[bytes], label: Callable[[], Label]) -> StoredFile:
        """A new file. `label` is asked when the content has come; what it and `pieces` raise is raised.

        Raises TooLarge, NoRoom.
        """
        async with _Arrival(self, tenant) as arrival:
            await self._contents.write(arrival.file.content, arrival.counted(pieces))
            file = self._labelled(arrival.file, label(), arrival.bytes)
            try:
                await self.store.keep(file, tenant_bytes_max=self.bounds.tenant_bytes_max)
            except KeyError as err:
                raise ContentDown("the upload took too long") from err
            arrival.kept = True
        return file

    async def write(self, tenant: str, pieces: AsyncIterator[bytes], label: Label) -> StoredFile:
        """A content of the gateway's own, which nobody sees before FileStore.keep_in."""
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
        """None for what is not there, is too old, or is somebody else's."""
        return await self.store.get(tenant, identity)

    async def page(self, tenant: str, page: Page, purpose: str | None) -> tuple[Sequence[StoredFile], bool]:
        """Some of a tenant's, and whether there are more. Raises NoSuchPlace."""
        return await self.store.page(tenant, page, purpose)

    def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Its pieces. Raises ContentLost."""
        return self._contents.read(file.content)

    async def delete(self, file: StoredFile) -> Literal["dropped", "in use", "not there"]:
        """One that a batch still reads stays."""
        outcome = await self.store.drop(file)
        if outcome == "dropped":
            # It is gone for everybody; if its content cannot be deleted now, a sweep does it.
            with suppress(ContentDown):
                await self._erase(file)
        return outcome

    async def sweep(self) -> int:
        """Deletes the contents of files that are gone; says how many."""
        leftovers = await self.store.leftovers()
        for file in leftovers:
            await self._erase(file)
        return len(leftovers)

    async def run(self) -> None:
        """Sweeps for as long as it is not cancelled."""
        while True:
            try:
                while await self.sweep():
                    pass
            except (DatabaseDown, ContentDown) as err:
                log.warning("old files cannot be removed: %s", err)
            await asyncio.sleep(SWEEP_SECONDS)

    def arriving(self, tenant: str, size: int) -> int:
        """So many bytes more are on their way (fewer, if below 0): how many are now."""
        total = self._arriving.get(tenant, 0) + size
        self._arriving[tenant] = total
        if not total:
            del self._arriving[tenant]
        return total

    async def _erase(self, file: StoredFile) -> None:
        await self._contents.delete(file.content)
        await self.store.forget(file)

    def _labelled(self, file: StoredFile, label: Label, size: int) -> StoredFile:
        kept = min(label.kept_seconds or self.bounds.kept_seconds_max, self.bounds.kept_seconds_max)
        return replace(file, purpose=label.purpose, name=label.name, bytes=size, expires=file.created + kept)


class _Arrival:
    """A file that comes; what did not come whole is removed."""

    def __init__(self, shelf: TenantFiles, tenant: str) -> None:
        self.bytes = 0
        self.kept = False
        self.file: StoredFile
        self._shelf = shelf
        self._tenant = tenant
        self._held = 0

    async def __aenter__(self) -> "_Arrival":
        self._held = await self._shelf.store.held(self._tenant)
        self.file = await self._shelf.store.begin(new_id(), self._tenant)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._shelf.arriving(self._tenant, -self.bytes)
        if not self.kept:
            with suppress(DatabaseDown):
                await asyncio.shield(self._shelf.store.discard(self.file))

    async def counted(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same pieces. Raises TooLarge, NoRoom: long before a disk is full of what will not be kept."""
        bounds = self._shelf.bounds
        async for piece in pieces:
            self.bytes += len(piece)
            on_their_way = self._shelf.arriving(self._tenant, len(piece))
            if self.bytes > bounds.file_bytes_max:
                raise TooLarge(bounds.file_bytes_max)
            if self._held + on_their_way > bounds.tenant_bytes_max:
                raise NoRoom
            yield piece


def new_id() -> str:
    return f"file-{secrets.token_hex(16)}"
