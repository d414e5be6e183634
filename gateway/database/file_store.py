"""FileStore: the rows of files, and how much each tenant has; contents are in a ContentStore.

    begin -> arriving --complete--> ready --deleted, or expired--> gone --forget-->
                 +------too late-----------------------------------^

A row is created before its content is written, and deleted after its content was deleted, so that a gateway that
dies in between never leaves a content without a row.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import and_, delete, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import pagination, schema
from gateway.database.database import Database
from gateway.database.file_batch_tables import batches, files
from gateway.database.pagination import PageRequest
from gateway.database.storable_text import is_storable

ARRIVING, READY, GONE = "arriving", "ready", "gone"
ARRIVING_SECONDS_MAX = 6 * 3600.0
"""A file that takes longer than this to arrive is given up."""

MESSAGE_BATCH = "message_batch"
"""The purpose of files of batches that were not created from files; tenants do not see these files."""

TENANT_FILES_MAX = 100_000
SWEPT_AT_ONCE = 500


class TenantStorageFull(Exception):
    """The tenant has reached its bound of files or bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file as the database has it."""

    id: str
    tenant: str
    purpose: str
    name: str
    bytes: int
    created: float  # Unix time
    expires: float  # Unix time

    @property
    def content(self) -> str:
        """The name of its content in the ContentStore."""
        return f"{self.tenant}/{self.id}"


class FileStore:
    """The rows of all files. Every method raises DatabaseDown."""

    def __init__(self, database: Database, wall: Callable[[], float] = time.time) -> None:
        self._database = database
        self._wall = wall

    async def begin(self, identity: str, tenant: str) -> StoredFile:
        """Make the row of a file that is about to arrive; it is not visible yet."""
        now = self._now_ms()
        row: dict[str, Any] = {"id": identity, "tenant": tenant, "purpose": "", "name": "", "bytes": 0}
        row |= {"created_ms": now, "expires_ms": now + int(ARRIVING_SECONDS_MAX * 1000)}
        await schema.ensure_tables(self._database)
        async with self._database.begin() as connection:
            await connection.execute(insert(files).values(**row, state=ARRIVING))
        return _file(row)

    async def complete(self, file: StoredFile, *, tenant_bytes_max: int) -> None:
        """Make a file visible once its content has arrived.

        Raises TenantStorageFull, and changes nothing then; KeyError if the content arrived too late.
        """
        async with self._database.begin() as connection:
            await _lock_tenant(connection, file.tenant)
            await self.complete_in(connection, file)
            files_held, bytes_held = await self._held(connection, file.tenant)
            if bytes_held > tenant_bytes_max or files_held > TENANT_FILES_MAX:
                raise TenantStorageFull

    async def complete_in(self, connection: AsyncConnection, file: StoredFile) -> None:
        """Make a file visible within a transaction of the caller, whatever the tenant has. Raises KeyError."""
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
        """Return the bytes of all files of a tenant."""
        if not await schema.has_tables(self._database):
            return 0
        async with self._database.begin() as connection:
            return (await self._held(connection, tenant))[1]

    async def get(self, tenant: str, identity: str) -> StoredFile | None:
        """Return a file; None if it does not exist, has expired, or belongs to another tenant."""
        if not is_storable(identity) or not await schema.has_tables(self._database):
            return None
        asked = select(files).where(files.c.id == identity, self._visible(tenant))
        async with self._database.begin() as connection:
            row = (await connection.execute(asked)).mappings().first()
        return _file(dict(row)) if row is not None else None

    async def page(
        self, tenant: str, page: PageRequest, purpose: str | None
    ) -> tuple[Sequence[StoredFile], bool]:
        """Return some of a tenant's files, and whether there are more. Raises CursorNotFound."""
        if not is_storable(purpose or "") or not await schema.has_tables(self._database):
            return [], False
        where = and_(self._visible(tenant), files.c.purpose != MESSAGE_BATCH)
        if purpose is not None:
            where = and_(where, files.c.purpose == purpose)
        async with self._database.begin() as connection:
            rows, more = await pagination.read_page(connection, files, where, page)
        return [_file(row) for row in rows], more

    async def delete(self, file: StoredFile) -> Literal["dropped", "in use", "not there"]:
        """Make a file invisible, so that its content may be deleted, unless a batch still reads it."""
        dropping = update(files).where(files.c.id == file.id, files.c.state == READY, ~_read_by_a_batch())
        async with self._database.begin() as connection:
            if (await connection.execute(dropping.values(state=GONE))).rowcount:
                return "dropped"
            there = select(files.c.id).where(files.c.id == file.id, files.c.state == READY)
            return "in use" if (await connection.execute(there)).first() is not None else "not there"

    async def discard(self, file: StoredFile) -> None:
        """Give up a file that was arriving."""
        discarding = update(files).where(files.c.id == file.id, files.c.state == ARRIVING)
        async with self._database.begin() as connection:
            await connection.execute(discarding.values(state=GONE))

    async def take_leftovers(self) -> Sequence[StoredFile]:
        """Mark expired files as gone, and return some of those that are gone, for their content to be deleted."""
        if not await schema.has_tables(self._database):
            return []
        late = and_(files.c.expires_ms <= self._now_ms(), ~_read_by_a_batch())
        async with self._database.begin() as connection:
            await connection.execute(update(files).where(late).values(state=GONE))
            asked = select(files).where(files.c.state == GONE).limit(SWEPT_AT_ONCE)
            return [_file(dict(row)) for row in (await connection.execute(asked)).mappings()]

    async def forget(self, file: StoredFile) -> None:
        """Delete the row of a file after its content was deleted."""
        async with self._database.begin() as connection:
            await connection.execute(delete(files).where(files.c.id == file.id, files.c.state == GONE))

    async def _held(self, connection: AsyncConnection, tenant: str) -> tuple[int, int]:
        """Return the number of a tenant's files, and their bytes."""
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
    """Serialise uploads of one tenant in PostgreSQL, so that two cannot both take the last room.

    SQLite has one writer.
    """
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
