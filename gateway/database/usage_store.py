"""UsageStore: the ledger as the database keeps it. What comes is taken once, and its sums with it.

A portion of a journal is one transaction: the journal's position is moved on from where it was, rows that are there
already are passed over, and the sums take what was new. So a portion that is shipped again, by whomever, after
whatever, changes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Table, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import webhook_outbox
from gateway.database.database import Database
from gateway.database.usage_tables import (
    DIMENSIONS,
    MEASURES,
    usage,
    usage_days,
    usage_hours,
    usage_journals,
)
from gateway.database.usage_tables import outbox as events_out

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
CLIENT_LEFT_STATUS = 499
"""The status of a request whose client has left: neither a success nor a failure."""

PRUNED_AT_ONCE = 2000

UsageRow = Mapping[str, Any]


class JournalMoved(Exception):
    """The journal is further in the database than its reader thought: `position`."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the journal is at {position}")
        self.position = position


class UsageStore:
    """Every method raises DatabaseDown."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def position(self, journal: str) -> int:
        """How far a journal is in here."""
        asked = select(usage_journals.c.position).where(usage_journals.c.name == journal)
        async with self.database.begin() as connection:
            return int((await connection.execute(asked)).scalar() or 0)

    async def take(
        self,
        rows: Sequence[UsageRow],
        *,
        journal: str,
        position: int,
        end: int,
        now_ms: int,
        events: Sequence[UsageRow] = (),
    ) -> int:
        """What a journal has from `position` to `end`. How many of the rows are new. Raises JournalMoved.

        `events`: for the outbox of webhooks; those that are there already are passed over too.
        """
        async with self.database.begin() as connection:
            await self._move_on(connection, journal, position, end, now_ms)
            await webhook_outbox.put(connection, events)
            return await self._add(connection, rows)

    async def prune(self, *, rows_before_ms: int, hours_before_ms: int, journals_before_ms: int) -> int:
        """Deletes what is older, a bounded number of each. How many went."""
        gone = 0
        async with self.database.begin() as connection:
            for table, column, before in (
                (usage, usage.c.at_ms, rows_before_ms),
                (usage_hours, usage_hours.c.start_ms, hours_before_ms),
                (usage_journals, usage_journals.c.changed_ms, journals_before_ms),
                (events_out, events_out.c.ended_ms, rows_before_ms),
            ):
                identity = tuple_(*table.primary_key.columns)
                old = select(*table.primary_key.columns).where(column < before).limit(PRUNED_AT_ONCE)
                gone += (await connection.execute(delete(table).where(identity.in_(old)))).rowcount
        return gone

    async def oldest_row_ms(self) -> int | None:
        """When the oldest row that is kept came."""
        async with self.database.begin() as connection:
            found = (await connection.execute(select(func.min(usage.c.at_ms)))).scalar()
            return int(found) if found is not None else None

    async def _move_on(
        self, connection: AsyncConnection, journal: str, position: int, end: int, now_ms: int
    ) -> None:
        """First of all: whoever else ships this journal waits here, and then sees that it has moved."""
        values = {"position": end, "changed_ms": now_ms}
        at = (usage_journals.c.name == journal) & (usage_journals.c.position == position)
        done = await connection.execute(update(usage_journals).where(at).values(values))
        if done.rowcount:
            return
        asked = select(usage_journals.c.position).where(usage_journals.c.name == journal)
        found = (await connection.execute(asked)).scalar()
        if found is not None or position != 0:
            raise JournalMoved(int(found or 0))
        await connection.execute(insert(usage_journals).values(name=journal, **values))

    async def _add(self, connection: AsyncConnection, rows: Sequence[UsageRow]) -> int:
        if not rows:
            return 0
        # In one order for everybody: two gateways that add the same things wait for each other, never both.
        ordered = sorted(rows, key=lambda row: (row["request_id"], row["attempt"]))
        identity = (usage.c.request_id, usage.c.attempt)
        adding = (
            dialect_insert(connection, usage).on_conflict_do_nothing(index_elements=identity).returning(*identity)
        )
        new: set[tuple[Any, ...]] = set()
        for part in split_powers_of_two(ordered):
            new.update(tuple(found) for found in await connection.execute(adding, part))
        first: dict[tuple[str, int], UsageRow] = {}
        for row in ordered:
            first.setdefault((row["request_id"], row["attempt"]), row)
        fresh = [row for identity, row in first.items() if identity in new]
        for table, length in ((usage_hours, HOUR_MS), (usage_days, DAY_MS)):
            await self._sum_up(connection, table, length, fresh)
        return len(fresh)

    async def _sum_up(
        self, connection: AsyncConnection, table: Table, length: int, rows: Sequence[UsageRow]
    ) -> None:
        sums: dict[tuple[Any, ...], Counter[str]] = {}
        for row in rows:
            bucket = row["at_ms"] // length * length
            sums.setdefault((bucket, *(row[name] for name in DIMENSIONS)), Counter()).update(_measured(row))
        if not sums:
            return
        values = [
            {
                "start_ms": key[0],
                **dict(zip(DIMENSIONS, key[1:], strict=True)),
                **{m: by[m] for m in MEASURES},
            }
            for key, by in sorted(sums.items())
        ]
        adding = dialect_insert(connection, table)
        raised = {name: table.c[name] + adding.excluded[name] for name in MEASURES}
        identity = ("start_ms", *DIMENSIONS)
        await connection.execute(adding.on_conflict_do_update(index_elements=identity, set_=raised), values)


def _measured(row: UsageRow) -> dict[str, int]:
    """What one row adds to its sums."""
    return {
        "requests": 1,
        "failed": int(row["status"] >= 400 and row["status"] != CLIENT_LEFT_STATUS),
        "prompt_tokens": row["prompt_tokens"],
        "cached_tokens": row["cached_tokens"] or 0,
        "output_tokens": row["output_tokens"],
        "cost": row["cost"],
        "duration_ms": row["duration_ms"],
        "ttft_ms": row["ttft_ms"] or 0,
        "ttft_count": int(row["ttft_ms"] is not None),
    }


def split_powers_of_two(rows: Sequence[UsageRow]) -> Iterator[Sequence[UsageRow]]:
    """The rows in parts whose lengths are powers of two, the longest first.

    Rows that come back make a statement of their number, and drivers keep the last hundred statements of every
    connection: of any number there would be tens of megabytes.
    """
    at = 0
    while at < len(rows):
        length = 1 << (len(rows) - at).bit_length() - 1
        yield rows[at : at + length]
        at += length


def dialect_insert(connection: AsyncConnection, table: Table) -> Any:
    """The one statement that each database has words of its own for."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
