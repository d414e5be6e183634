"""BatchStore: batches, their status, and the gateway that runs each.

    validating --claimed--> in_progress --> finalizing --> completed
         |                     |   |
         +--> failed           |   +---> expired
         +------------> cancelling --> cancelled

A gateway claims a batch for some seconds and renews that lease. When a gateway dies, its leases expire, and another
gateway claims its batches with a higher generation. Late writes of the dead gateway are refused, because every
change by an owner names its generation, and locks the batch's row first. So each row of a batch has exactly one
result.
"""

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import pagination, schema
from gateway.database.batch_result_lines import read_result_lines
from gateway.database.database import Database, dialect_insert
from gateway.database.file_batch_tables import batch_rows, batches, files
from gateway.database.file_store import GONE, MESSAGE_BATCH
from gateway.database.pagination import PageRequest
from gateway.database.storable_text import is_storable

Json = dict[str, Any]

VALIDATING, IN_PROGRESS, FINALIZING = "validating", "in_progress", "finalizing"
COMPLETED, FAILED, EXPIRED = "completed", "failed", "expired"
CANCELLING, CANCELLED = "cancelling", "cancelled"
ENDED = (COMPLETED, FAILED, EXPIRED, CANCELLED)

CANDIDATES_MAX = 500
"""How many of the oldest unclaimed batches are considered at a claim."""

_FILES = (batches.c.input_file, batches.c.output_file)
_MOMENTS = msgspec.json.Decoder(dict[str, int])


class LeaseLost(Exception):
    """Another gateway has claimed the batch."""


class TenantBatchLimitReached(Exception):
    """The tenant has as many unfinished batches as it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """One batch as the database has it; times are Unix times in seconds."""

    id: str
    tenant: str
    key_id: str  # of the key that created it
    status: str
    endpoint: str
    window: str
    input_file: str
    created: float
    expires: float
    moments: Mapping[str, int]  # when it came to each status
    generation: int = 0  # raised at each claim
    output_file: str | None = None
    error_file: str | None = None
    output_kept_seconds: int | None = None
    errors: list[Json] | None = None
    metadata: Json | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """The result of one row of a batch."""

    row: int
    good: bool
    line: str  # of the output file, or of the error file if not `good`


class BatchStore:
    """All batches in the database; `gateway` is the name of this gateway. Every method raises DatabaseDown."""

    def __init__(self, database: Database, gateway: str, wall: Callable[[], float] = time.time) -> None:
        self._database = database
        self._gateway = gateway
        self._wall = wall

    # For tenants:

    async def create(self, batch: StoredBatch, *, unfinished_max: int) -> None:
        """Store a new batch. Raises TenantBatchLimitReached."""
        row = {
            "id": batch.id,
            "tenant": batch.tenant,
            "key_id": batch.key_id,
            "status": batch.status,
            "endpoint": batch.endpoint,
            "completion_window": batch.window,
            "input_file": batch.input_file,
            "output_kept_seconds": batch.output_kept_seconds,
            "created_ms": int(batch.created * 1000),
            "expires_ms": int(batch.expires * 1000),
            "moments": _json(batch.moments),
            "metadata": _json(batch.metadata) if batch.metadata is not None else None,
            "total": batch.total,
            "completed": 0,
            "failed": 0,
            "generation": 0,
            "lease_ms": 0,
        }
        mine = and_(batches.c.tenant == batch.tenant, batches.c.ended_ms.is_(None))
        await schema.ensure_tables(self._database)
        async with self._database.begin() as connection:
            await connection.execute(insert(batches).values(row))
            count = (await connection.execute(select(func.count()).where(mine))).scalar()
            if int(count or 0) > unfinished_max:
                raise TenantBatchLimitReached

    async def get(self, tenant: str, identity: str) -> StoredBatch | None:
        """Return a batch; None if it does not exist or belongs to another tenant."""
        if not is_storable(identity) or not await schema.has_tables(self._database):
            return None
        asked = select(batches).where(batches.c.id == identity, batches.c.tenant == tenant)
        async with self._database.begin() as connection:
            row = (await connection.execute(asked)).mappings().first()
        return _batch(dict(row)) if row is not None else None

    async def page(
        self, tenant: str, page: PageRequest, endpoints: Collection[str]
    ) -> tuple[Sequence[StoredBatch], bool]:
        """Return some of a tenant's batches with one of these endpoints, and whether there are more.

        Raises CursorNotFound.
        """
        if not await schema.has_tables(self._database):
            return [], False
        where = and_(batches.c.tenant == tenant, batches.c.endpoint.in_(endpoints))
        async with self._database.begin() as connection:
            rows, more = await pagination.read_page(connection, batches, where, page)
        return [_batch(row) for row in rows], more

    async def cancel(self, batch: StoredBatch) -> bool:
        """Ask the gateway that runs the batch to cancel it; return False if it is too late."""
        running = batches.c.status.in_((VALIDATING, IN_PROGRESS))
        moments = _json({**batch.moments, CANCELLING: int(self._wall())})
        change = update(batches).where(batches.c.id == batch.id, running, batches.c.status == batch.status)
        async with self._database.begin() as connection:
            done = await connection.execute(change.values(status=CANCELLING, moments=moments))
            return done.rowcount > 0

    async def delete(self, batch: StoredBatch) -> bool:
        """Delete a batch with its files; return False while it has not ended."""
        ended = and_(batches.c.id == batch.id, batches.c.ended_ms.is_not(None))
        names = [name for name in (batch.input_file, batch.output_file, batch.error_file) if name]
        async with self._database.begin() as connection:
            if not (await connection.execute(delete(batches).where(ended))).rowcount:
                return False
            # A sweep deletes their contents.
            dropping = update(files).where(files.c.id.in_(names), files.c.tenant == batch.tenant)
            await connection.execute(dropping.values(state=GONE))
        return True

    # For gateways:

    async def claim(self, lease_seconds: float) -> StoredBatch | None:
        """Claim the oldest unclaimed batch, of a tenant with the fewest running ones; None if there is no batch."""
        if not await schema.has_tables(self._database):
            return None
        now = self._now_ms()
        free = and_(batches.c.ended_ms.is_(None), or_(batches.c.owner.is_(None), batches.c.lease_ms <= now))
        oldest = select(batches.c.id, batches.c.tenant, batches.c.generation).where(free)
        oldest = oldest.order_by(batches.c.created_ms, batches.c.id).limit(CANDIDATES_MAX)
        async with self._database.begin() as connection:
            found = (await connection.execute(oldest)).all()
            if not found:
                return None
            counts = select(batches.c.tenant, func.count()).where(batches.c.ended_ms.is_(None), ~free)
            counted = await connection.execute(counts.group_by(batches.c.tenant))
            running: dict[str, int] = {row[0]: row[1] for row in counted}
        chosen = min(found, key=lambda row: running.get(row.tenant, 0))
        taking = (
            update(batches)
            .where(batches.c.id == chosen.id, batches.c.generation == chosen.generation, free)
            .values(
                owner=self._gateway,
                generation=batches.c.generation + 1,
                lease_ms=now + int(lease_seconds * 1000),
            )
            .returning(batches)
        )
        async with self._database.begin() as connection:
            row = (await connection.execute(taking)).mappings().first()
        return _batch(dict(row)) if row is not None else None

    async def renew(self, batch: StoredBatch, lease_seconds: float) -> str:
        """Renew the lease and return the batch's status, which may be cancelling. Raises LeaseLost."""
        until = self._now_ms() + int(lease_seconds * 1000)
        renewing = update(batches).where(self._own(batch)).values(lease_ms=until).returning(batches.c.status)
        async with self._database.begin() as connection:
            status = (await connection.execute(renewing)).scalar()
        if status is None:
            raise LeaseLost
        return str(status)

    async def release(self, batch: StoredBatch) -> None:
        """Give up the lease, so that another gateway may claim the batch at once."""
        async with self._database.begin() as connection:
            await connection.execute(update(batches).where(self._own(batch)).values(owner=None, lease_ms=0))

    async def set_status(self, batch: StoredBatch, status: str, *, total: int | None = None) -> bool:
        """Set the status; return False if the batch was cancelled meanwhile. Raises LeaseLost."""
        values: Json = {"status": status} | ({"total": total} if total is not None else {})
        async with self._owned(batch) as (connection, now):
            if now.status == CANCELLING:
                return False
            values["moments"] = _json({**now.moments, status: int(self._wall())})
            await connection.execute(update(batches).where(self._own(batch)).values(values))
        return True

    async def finished_rows(self, batch: StoredBatch) -> Mapping[int, bool]:
        """Return the rows that have a result, and whether it is good."""
        asked = select(batch_rows.c.row, batch_rows.c.good).where(batch_rows.c.batch == batch.id)
        async with self._database.begin() as connection:
            found = await connection.execute(asked)
            return {row[0]: row[1] for row in found}

    async def add_results(self, batch: StoredBatch, results: Sequence[RowResult]) -> None:
        """Store results; a row that has a result keeps it. Raises LeaseLost, and nothing is stored then."""
        rows = [{"batch": batch.id, "row": r.row, "good": r.good, "line": r.line} for r in results]
        async with self._owned(batch) as (connection, _):
            adding = dialect_insert(connection.dialect.name, batch_rows).on_conflict_do_nothing()
            # Results may be stored already, by a transaction that succeeded without a confirmation.
            new = (await connection.execute(adding.returning(batch_rows.c.good), rows)).scalars().all()
            good = sum(new)
            counts = {"completed": batches.c.completed + good, "failed": batches.c.failed + len(new) - good}
            await connection.execute(update(batches).where(self._own(batch)).values(counts))

    def result_lines(self, batch: StoredBatch, *, good: bool | None) -> AsyncIterator[str]:
        """Yield the lines of good or failed results (None: of both), in the order of rows."""
        return read_result_lines(self._database, batch.id, good=good)

    @asynccontextmanager
    async def finish(
        self,
        batch: StoredBatch,
        status: str,
        *,
        errors: list[Json] | None = None,
        failed_more: int = 0,
        **file_ids: str,
    ) -> AsyncIterator[AsyncConnection]:
        """Open the transaction in which the batch ends: its files become visible, its rows are deleted.

        Raises LeaseLost.

        `file_ids` are `output_file` and `error_file`; `failed_more` counts rows without a result that are in the
        error file.
        """
        values: Json = {
            "status": status,
            "errors": _json(errors) if errors else None,
            "failed": batches.c.failed + failed_more,
            "ended_ms": self._now_ms(),
            "owner": None,
            **file_ids,
        }
        async with self._owned(batch) as (connection, now):
            yield connection
            values["moments"] = _json({**now.moments, status: int(self._wall())})
            await connection.execute(update(batches).where(batches.c.id == batch.id).values(values))
            await connection.execute(delete(batch_rows).where(batch_rows.c.batch == batch.id))

    async def reload(self, batch: StoredBatch) -> StoredBatch:
        """Return the batch as it is now. Raises LeaseLost."""
        async with self._owned(batch) as (_, now):
            return now

    async def sweep(self, kept_seconds: float) -> int:
        """Delete batches that ended so long ago, with their hidden files, and return how many they were."""
        if not await schema.has_tables(self._database):
            return 0
        old = batches.c.ended_ms <= self._now_ms() - int(kept_seconds * 1000)
        theirs = or_(*(files.c.id.in_(select(name).where(old)) for name in _FILES))
        async with self._database.begin() as connection:
            dropping = update(files).where(files.c.purpose == MESSAGE_BATCH, theirs)
            await connection.execute(dropping.values(state=GONE))
            return (await connection.execute(delete(batches).where(old))).rowcount

    async def unfinished(self) -> int:
        """Return how many batches of all tenants have not ended."""
        if not await schema.has_tables(self._database):
            return 0
        async with self._database.begin() as connection:
            asked = select(func.count()).select_from(batches).where(batches.c.ended_ms.is_(None))
            return int((await connection.execute(asked)).scalar() or 0)

    @asynccontextmanager
    async def _owned(self, batch: StoredBatch) -> AsyncIterator[tuple[AsyncConnection, StoredBatch]]:
        """Open a transaction that begins by locking the row of this gateway's batch. Raises LeaseLost."""
        locking = update(batches).where(self._own(batch)).values(generation=batch.generation)
        async with self._database.begin() as connection:
            row = (await connection.execute(locking.returning(batches))).mappings().first()
            if row is None:
                raise LeaseLost
            yield connection, _batch(dict(row))

    def _own(self, batch: StoredBatch) -> ColumnElement[bool]:
        return and_(
            batches.c.id == batch.id,
            batches.c.generation == batch.generation,
            batches.c.owner == self._gateway,
        )

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _batch(row: Json) -> StoredBatch:
    return StoredBatch(
        id=row["id"],
        tenant=row["tenant"],
        key_id=row["key_id"],
        status=row["status"],
        endpoint=row["endpoint"],
        window=row["completion_window"],
        input_file=row["input_file"],
        output_file=row["output_file"],
        error_file=row["error_file"],
        output_kept_seconds=row["output_kept_seconds"],
        created=row["created_ms"] / 1000,
        expires=row["expires_ms"] / 1000,
        moments=_MOMENTS.decode(row["moments"]),
        errors=msgspec.json.decode(row["errors"]) if row["errors"] else None,
        metadata=msgspec.json.decode(row["metadata"]) if row["metadata"] else None,
        total=row["total"],
        completed=row["completed"],
        failed=row["failed"],
        generation=row["generation"],
    )
