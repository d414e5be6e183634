"""FileStore: which files there are, whose they are, and how much each tenant has. Contents are elsewhere.

    begin -> arriving --keep--> ready --drop, or too old--> gone --forget-->
                 +------too late------------------------------^

Whoever writes a content has begun a row before, and whoever deletes one forgets the row after: nothing that dies in
between leaves a content that no row leads to.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import and_, delete, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import pagination
from gateway.database import schema
from gateway.database.database import Database
from gateway.database.file_batch_tables import (batches, files)
from gateway.database.pagination import PageRequest
from gateway.database.storable_text import is_storable

ARRIVING, READY, GONE = "arriving", "ready", "gone"
ARRIVING_SECONDS_MAX = 6 * 3600.0
"""A file that takes longer to come than that will not come any more."""

MESSAGE_BATCH = "message_batch"
"""The purpose of files of batches that were not made of files: their tenant does not see them."""

TENANT_FILES_MAX = 100_000
SWEPT_AT_ONCE = 500


class TenantStorageFull(Exception):
    """The tenant has as much as it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """`created`, `expires`: Unix time in seconds."""

    id: str
    tenant: str
    purpose: str
    name: str
    bytes: int
    created: float
    expires: float

    @property
    def content(self) -> str:
        """Its content's name."""
        return f"{self.tenant}/{self.id}"


class FileStore:
    """Every method raises DatabaseDown."""

    def __init__(self, database: Database, wall: Callable[[], float] = time.time) -> None:
        self._database = database
        self._wall = wall

    async def begin(self, identity: str, tenant: str) -> StoredFile:
        """A file's content is about to come; nobody sees it yet."""
        now = self._now_ms()
        row: dict[str, Any] = {"id": identity, "tenant": tenant, "purpose": "", "name": "", "bytes": 0}
        row |= {"created_ms": now, "expires_ms": now + int(ARRIVING_SECONDS_MAX * 1000)}
        await schema.ensure_tables(self._database)
        async with self._database.begin() as connection:
            await connection.execute(insert(files).values(**row, state=ARRIVING))
        return _file(row)

    async def complete(self, file: StoredFile, *, tenant_bytes_max: int) -> None:
        """Its content is whole. Raises TenantStorageFull, and changes nothing then; KeyError if it came too late."""
        async with self._database.begin() as connection:
            await _lock_tenant(connection, file.tenant)
            await self.complete_in(connection, file)
            files_held, bytes_held = await self._held(connection, file.tenant)
            if bytes_held > tenant_bytes_max or files_held > TENANT_FILES_MAX:
                raise TenantStorageFull

    async def complete_in(self, connection: AsyncConnection, file: StoredFile) -> None:
        """The same within a transaction of somebody else, whatever the tenant has. Raises KeyError."""
        values = {
            "purpose": file.purpose,
            "name": file.name,
            "bytes": file.bytes,
            "expires_ms": int(file.expires * 1000),
            "state": READY,
        }
        arriving = update(files).where(files.c.id == file.id, files.c.state == ARRIVING)
        if not (await connection.execute(arriving.values(values))).rowcount:
            raise KeyError(file.id)

    async def bytes_held(self, tenant: str) -> int:
        """Bytes of all that it has."""
        if not await schema.has_tables(self._database):
            return 0
        async with self._database.begin() as connection:
            return (await self._held(connection, tenant))[1]

    async def get(self, tenant: str, identity: str) -> StoredFile | None:
        """None for what is not there, is too old, or is somebody else's."""
        if not is_storable(identity) or not await schema.has_tables(self._database):
            return None
        asked = select(files).where(files.c.id == identity, self._visible(tenant))
        async with self._database.begin() as connection:
            row = (await connection.execute(asked)).mappings().first()
        return _file(dict(row)) if row is not None else None

    async def page(self, tenant: str, page: PageRequest, purpose: str | None) -> tuple[Sequence[StoredFile], bool]:
        """Some of a tenant's, and whether there are more. Raises CursorNotFound."""
        if not is_storable(purpose or "") or not await schema.has_tables(self._database):
            return [], False
        where = and_(self._visible(tenant), files.c.purpose != MESSAGE_BATCH)
        if purpose is not None:
            where = and_(where, files.c.purpose == purpose)
        async with self._database.begin() as connection:
            rows, more = await pagination.read_page(connection, files, where, page)
        return [_file(row) for row in rows], more

    async def delete(self, file: StoredFile) -> Literal["dropped", "in use", "not there"]:
        """Nobody sees it any more; its content may go. One that a batch still reads stays."""
        dropping = update(files).where(files.c.id == file.id, files.c.state == READY, ~_read_by_a_batch())
        async with self._database.begin() as connection:
            if (await connection.execute(dropping.values(state=GONE))).rowcount:
                return "dropped"
            there = select(files.c.id).where(files.c.id == file.id, files.c.state == READY)
            return "in use" if (await connection.execute(there)).first() is not None else "not there"

    async def discard(self, file: StoredFile) -> None:
        """What was begun comes to nothing."""
        discarding = update(files).where(files.c.id == file.id, files.c.state == ARRIVING)
        async with self._database.begin() as connection:
            await connection.execute(discarding.values(state=GONE))

    async def leftovers(self) -> Sequence[StoredFile]:
        """Some of those whose content is to be deleted: dropped, too old, or never finished."""
        if not await schema.has_tables(self._database):
            return []
        late = and_(files.c.expires_ms <= self._now_ms(), ~_read_by_a_batch())
        async with self._database.begin() as connection:
            await connection.execute(update(files).where(late).values(state=GONE))
            asked = select(files).where(files.c.state == GONE).limit(SWEPT_AT_ONCE)
            return [_file(dict(row)) for row in (await connection.execute(asked)).mappings()]

    async def forget(self, file: StoredFile) -> None:
        """Its content is not there any more."""
        async with self._database.begin() as connection:
            await connection.execute(delete(files).where(files.c.id == file.id, files.c.state == GONE))

    async def _held(self, connection: AsyncConnection, tenant: str) -> tuple[int, int]:
        """How many it has, and their bytes."""
        sums = select(func.count(), func.sum(files.c.bytes))
        asked = sums.where(files.c.tenant == tenant, files.c.state == READY)
        count, total = (await connection.execute(asked)).one()
        return int(count), int(total or 0)

    def _visible(self, tenant: str) -> Any:
        return and_(
            files.c.tenant == tenant,
            files.c.state == READY,
            or_(files.c.expires_ms > self._now_ms(), _read_by_a_batch()),
        )

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


def _read_by_a_batch() -> Any:
    return (
        select(batches.c.id).where(batches.c.input_file == files.c.id, batches.c.ended_ms.is_(None)).exists()
    )


async def _lock_tenant(connection: AsyncConnection, tenant: str) -> None:
    """Two that come together must not both find the last room. SQLite writes one at a time anyway."""
    if connection.dialect.name == "postgresql":
        await connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"files:{tenant}"}
        )


def _file(row: dict[str, Any]) -> StoredFile:
    return StoredFile(
        id=row["id"],
        tenant=row["tenant"],
        purpose=row["purpose"],
        name=row["name"],
        bytes=row["bytes"],
        created=row["created_ms"] / 1000,
        expires=row["expires_ms"] / 1000,
    )
