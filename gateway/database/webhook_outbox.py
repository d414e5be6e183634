"""Outbox: events for webhooks, kept until they are delivered or given up.

    put --due_ms--> claimed: not due for a while, so that no other gateway takes it --> ended, or due again later

An event for a webhook is stored once, by its id, also when it has ended: putting it again changes nothing.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database.database import Database, dialect_insert
from gateway.database.usage_tables import outbox

log = logging.getLogger(__name__)

WAITING_MAX = 100_000

_IDENTITY = (outbox.c.id, outbox.c.hook)


async def put(connection: AsyncConnection, events: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of `outbox`; beyond WAITING_MAX waiting events they are dropped, which is logged."""
    if not events:
        return
    asked = select(func.count()).select_from(outbox).where(outbox.c.due_ms.is_not(None))
    waiting = int((await connection.execute(asked)).scalar() or 0)
    if waiting + len(events) > WAITING_MAX:
        log.error("%d events for webhooks are dropped: %d wait already", len(events), waiting)
        return
    insert = dialect_insert(connection.dialect.name, outbox)
    ordered = sorted(events, key=lambda row: (row["id"], row["hook"]))
    await connection.execute(insert.on_conflict_do_nothing(), ordered)


class Outbox:
    """The events that wait for webhooks. Every method raises DatabaseDown."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def put(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Insert events in a transaction of their own; see the function `put`."""
        if not events:
            return
        async with self.database.begin(writes=True) as connection:
            await put(connection, events)

    async def claim(
        self, hooks: Sequence[str], *, now_ms: int, until_ms: int, limit: int
    ) -> list[dict[str, Any]]:
        """Take some events that are due, for this gateway alone until `until_ms`.

        `attempts` counts this attempt.
        """
        due = (
            select(*_IDENTITY)
            .where(outbox.c.due_ms <= now_ms, outbox.c.hook.in_(hooks))
            .order_by(outbox.c.due_ms)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        claiming = (
            update(outbox)
            .where(tuple_(*_IDENTITY).in_(due))
            .values(due_ms=until_ms, attempts=outbox.c.attempts + 1)
            .returning(outbox)
        )
        if not self.database.exists:
            return []
        async with self.database.begin() as connection:
            return [dict(row) for row in (await connection.execute(claiming)).mappings()]

    async def store_outcome(
        self, event: Mapping[str, Any], *, outcome: str, due_ms: int | None, ended_ms: int | None
    ) -> None:
        """Store the outcome of an attempt: the event is due again, or has ended."""
        this = (outbox.c.id == event["id"]) & (outbox.c.hook == event["hook"])
        values = {"said": outcome[:200], "due_ms": due_ms, "ended_ms": ended_ms}
        async with self.database.begin() as connection:
            await connection.execute(update(outbox).where(this).values(values))
