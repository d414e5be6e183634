"""ResponseStore: stored responses of the Responses API, each visible to its own tenant.

Responses are in the database and not in Redis, because conversations are large, live for days, and must never crowd
out quotas and index. Each response contains its whole conversation, so earlier responses may be deleted. There are
bounds on the time that a response is kept, on its size, and on the number and the bytes of a tenant's responses.
The oldest are deleted first.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import schema
from gateway.database.database import Database, DatabaseDown
from gateway.database.storable_text import is_storable
from gateway.database.tables import response_events, responses

log = logging.getLogger(__name__)

BYTES_MAX = 8 * 1024**2
"""The most bytes of one response with its conversation."""

TENANT_BYTES_MAX = 256 * 1024**2
SWEEP_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """One response with its conversation."""

    id: str
    tenant: str
    created: float  # Unix time
    response: bytes  # a JSON object
    context: bytes  # the items of the conversation, a JSON list
    own_from: int  # index of the first item of this response's own input
    running: bool = False  # a gateway computes it in the background

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.response) + len(self.context)


class ResponseStore:
    """All stored responses, each kept for `kept_seconds`; 0 stores none. Every method raises DatabaseDown."""

    def __init__(
        self,
        database: Database,
        *,
        kept_seconds: float,
        tenant_responses_max: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._kept_seconds = kept_seconds
        self._tenant_responses_max = tenant_responses_max
        self._wall = wall

    @property
    def enabled(self) -> bool:
        """Whether responses are stored at all."""
        return self._kept_seconds > 0

    async def get(self, tenant: str, identity: str) -> StoredResponse | None:
        """Return a response; None if it does not exist, has expired, or belongs to another tenant."""
        if not is_storable(identity) or not await schema.has_tables(self._database):
            return None
        query = select(responses).where(
            responses.c.id == identity,
            responses.c.tenant == tenant,
            responses.c.expires_ms > self._now_ms(),
        )
        async with self._database.begin() as connection:
            row = (await connection.execute(query)).mappings().first()
        if row is None:
            return None
        return StoredResponse(
            id=row["id"],
            tenant=row["tenant"],
            created=row["created_ms"] / 1000,
            response=row["response"].encode(),
            context=row["context"].encode(),
            own_from=row["own_from"],
            running=row["running_ms"] is not None,
        )

    async def put(self, stored: StoredResponse, running_seconds: float | None = None) -> None:
        """Store a new response; the tenant's oldest make room. `running_seconds`: see BackgroundStore."""
        now = self._now_ms()
        row = {
            "id": stored.id,
            "tenant": stored.tenant,
            "created_ms": now,
            "expires_ms": now + int(self._kept_seconds * 1000),
            "bytes": stored.size,
            "response": stored.response.decode(),
            "context": stored.context.decode(),
            "own_from": stored.own_from,
            "running_ms": now + int(running_seconds * 1000) if running_seconds is not None else None,
        }
        sizes = (
            select(responses.c.id, responses.c.bytes)
            .where(responses.c.tenant == stored.tenant)
            .order_by(responses.c.created_ms.desc(), responses.c.id)
        )
        await schema.ensure_tables(self._database)
        async with self._database.begin() as connection:
            await connection.execute(insert(responses).values(row))
            held = (await connection.execute(sizes)).all()
            too_many, total = [], 0
            for number, (identity, size) in enumerate(held):
                total += size
                if (
                    number >= self._tenant_responses_max or total > TENANT_BYTES_MAX
                ) and identity != stored.id:
                    too_many.append(identity)
            if too_many:
                await _forget(connection, responses.c.id.in_(too_many))

    async def delete(self, tenant: str, identity: str) -> bool:
        """Delete a response; return False if it did not exist."""
        this = and_(responses.c.id == identity, responses.c.tenant == tenant)
        async with self._database.begin() as connection:
            return await _forget(connection, this) > 0

    async def sweep(self) -> int:
        """Delete expired responses, and return how many they were."""
        if not await schema.has_tables(self._database):
            return 0
        async with self._database.begin() as connection:
            return await _forget(connection, responses.c.expires_ms <= self._now_ms())

    async def run(self) -> None:
        """Sweep repeatedly, until this coroutine is cancelled."""
        while True:
            try:
                await self.sweep()
            except DatabaseDown as err:
                log.warning("old responses cannot be removed: %s", err)
            await asyncio.sleep(SWEEP_SECONDS)

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


async def _forget(connection: AsyncConnection, these: ColumnElement[bool]) -> int:
    """Delete responses with their events, and return how many they were."""
    names = select(responses.c.id).where(these)
    await connection.execute(delete(response_events).where(response_events.c.response.in_(names)))
    return (await connection.execute(delete(responses).where(these))).rowcount
