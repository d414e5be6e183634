"""UsageStore: the usage ledger in the database; every entry is stored once, and its sums with it.

A portion of a journal is stored in one transaction: it advances the journal's position, skips rows that are stored
already, and adds the new ones to the sums. So shipping a portion again, by any gateway at any time, changes
nothing.
"""

import asyncio
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Dialect, Table, bindparam, delete, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import webhook_outbox
from gateway.database.database import Database, dialect_insert
from gateway.database.usage_tables import (
    DIMENSIONS,
    MEASURES,
    usage,
    usage_days,
    usage_hours,
    usage_journals,
)
from gateway.database.usage_tables import outbox as events_out
from gateway.domain.errors import CLIENT_CLOSED_STATUS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PRUNED_AT_ONCE = 2000
ROWS_AT_ONCE = 256
"""The most rows of one statement, a power of two: some drivers encode all of its values on the event loop."""

UsageRow = Mapping[str, Any]
_Sums = Mapping[tuple[Any, ...], Sequence[int]]
"""The measures of MEASURES, by the start of the hour or day in milliseconds and the values of DIMENSIONS."""

_COLUMNS = (*(column.name for column in usage.columns if column.name != "tags"), "tags")
_plain_values = operator.itemgetter(*_COLUMNS[:-1])
_dimensions = operator.itemgetter(*DIMENSIONS)
_identity = operator.itemgetter("request_id", "attempt")


class PreparedRows(NamedTuple):
    """Rows in the form in which they are stored."""

    rows: Sequence[UsageRow]
    """In the same order at all gateways, so that two that insert the same rows cannot deadlock."""
    inserts: Sequence[tuple[int, tuple[Any, ...]]]
    """For each statement the number of its rows, and their values."""
    hours: _Sums
    """The sums of all rows by hour."""


class JournalMoved(Exception):
    """The journal's position in the database differs from the reader's; `position` is the right one."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the journal is at {position}")
        self.position = position


class UsageStore:
    """The usage ledger in the database. Every method raises DatabaseDown and DatabaseConflict."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def position(self, journal: str) -> int:
        """Return up to which position a journal is stored."""
        asked = select(usage_journals.c.position).where(usage_journals.c.name == journal)
        async with self.database.begin() as connection:
            return int((await connection.execute(asked)).scalar() or 0)

    async def write(
        self,
        rows: Sequence[UsageRow],
        *,
        journal: str,
        position: int,
        end: int,
        now_ms: int,
        events: Sequence[UsageRow] = (),
    ) -> int:
        """Store what a journal has from `position` to `end`, and return how many of the rows are new.

        Raises JournalMoved.

        `events` are for the outbox of webhooks; those that are there already are skipped too.
        """
        prepared = await asyncio.to_thread(prepared_rows, rows)
        async with self.database.begin() as connection:
            await self._move_on(connection, journal, position, end, now_ms)
            await webhook_outbox.put(connection, events)
            return await self._add(connection, prepared)

    async def prune(self, *, rows_before_ms: int, hours_before_ms: int, journals_before_ms: int) -> int:
        """Delete a bounded number of older rows from each table, and return how many they were."""
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

    async def _move_on(
        self, connection: AsyncConnection, journal: str, position: int, end: int, now_ms: int
    ) -> None:
        """Advance the journal's position. Raises JournalMoved.

        This is the first statement of the transaction: another gateway that ships this journal waits here, and then
        finds that the position has moved.
        """
        values = {"position": end, "changed_ms": now_ms}
        done = await connection.execute(_MOVE_ON, {**values, "journal": journal, "moved_from": position})
        if done.rowcount:
            return
        asked = select(usage_journals.c.position).where(usage_journals.c.name == journal)
        found = (await connection.execute(asked)).scalar()
        if found is not None or position != 0:
            raise JournalMoved(int(found or 0))
        await connection.execute(insert(usage_journals).values(name=journal, **values))

    async def _add(self, connection: AsyncConnection, prepared: PreparedRows) -> int:
        new: list[Any] = []
        for count, values in prepared.inserts:
            found = await connection.exec_driver_sql(_insert_text(connection.dialect, count), values)
            new += found.all()
        hours = prepared.hours
        if len(new) < len(prepared.rows):
            hours = _sums_by_hour(_first_of_each(prepared.rows, set(map(tuple, new))))
        await self._raise_sums(connection, usage_hours, hours)
        await self._raise_sums(connection, usage_days, _sums_by_day(hours))
        return len(new)

    async def _raise_sums(self, connection: AsyncConnection, table: Table, sums: _Sums) -> None:
        if not sums:
            return
        columns = ("start_ms", *DIMENSIONS, *MEASURES)
        values = [dict(zip(columns, (*key, *sums[key]), strict=True)) for key in sorted(sums)]
        await connection.execute(_raising(connection.dialect.name, table), values)


_MOVE_ON = (
    update(usage_journals)
    .where(
        usage_journals.c.name == bindparam("journal"), usage_journals.c.position == bindparam("moved_from")
    )
    .values(position=bindparam("position"), changed_ms=bindparam("changed_ms"))
)
"""Statements are cached, because SQLAlchemy takes longer to make one than the database takes to execute it."""


@cache
def _raising(dialect: str, table: Table) -> Any:
    """Return the statement that adds rows to the sums in a table."""
    adding = dialect_insert(dialect, table)
    raised = {name: table.c[name] + adding.excluded[name] for name in MEASURES}
    return adding.on_conflict_do_update(index_elements=("start_ms", *DIMENSIONS), set_=raised)


@lru_cache(maxsize=16)
def _insert_text(dialect: Dialect, count: int) -> str:
    """Return the SQL that inserts so many rows of `usage` and returns the keys of those that are new.

    Its parameters are the values of the rows, in the order of _COLUMNS. SQLAlchemy would handle each value in
    Python, which takes four times as long as the insertion itself; compiling the text for a hundred rows would keep
    the event loop busy for tens of milliseconds, so that it compiles the text for one.
    """
    row = {name: bindparam(name, type_=usage.c[name].type) for name in _COLUMNS}
    key = (usage.c.request_id, usage.c.attempt)
    adding = dialect_insert(dialect.name, usage).values(row)
    text = str(adding.on_conflict_do_nothing(index_elements=key).returning(*key).compile(dialect=dialect))
    before, values, after = _VALUES.split(text, maxsplit=1)
    return before + ", ".join(_renumbered(values, at * len(_COLUMNS)) for at in range(count)) + after


_VALUES = re.compile(r"(?<= VALUES )(\([^()]*\))")
"""The values of one row in the SQL of an insertion."""


def _renumbered(values: str, by: int) -> str:
    """Return the values of a row with its parameters numbered so much higher, as PostgreSQL numbers them: `$1`."""
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + by}", values)


def prepared_rows(rows: Iterable[UsageRow]) -> PreparedRows:
    """Return rows in the form in which they are stored; of a thousand rows it takes milliseconds."""
    ordered = sorted(rows, key=_identity)
    inserts = [
        (len(part), tuple(chain.from_iterable(map(_values, part)))) for part in split_powers_of_two(ordered)
    ]
    return PreparedRows(ordered, inserts, _sums_by_hour(ordered))


def _first_of_each(rows: Iterable[UsageRow], identities: set[tuple[Any, ...]]) -> list[UsageRow]:
    """Return the first row of each of these identities."""
    first: dict[tuple[Any, ...], UsageRow] = {}
    for row in rows:
        first.setdefault(_identity(row), row)
    return [row for identity, row in first.items() if identity in identities]


def _values(row: UsageRow) -> Sequence[Any]:
    """Return the values of a row in the order of _COLUMNS, as drivers take them."""
    tags = row["tags"]
    return (*_plain_values(row), None if tags is None else json.dumps(tags))


def _sums_by_hour(rows: Iterable[UsageRow]) -> _Sums:
    """Return the sums of the rows by hour and DIMENSIONS."""
    sums: dict[tuple[Any, ...], Sequence[int]] = {}
    for row in rows:
        key, measures = (row["at_ms"] // HOUR_MS * HOUR_MS, *_dimensions(row)), _measures(row)
        before = sums.get(key)
        sums[key] = measures if before is None else list(map(operator.add, before, measures))
    return sums


def _sums_by_day(hours: _Sums) -> _Sums:
    """Return the sums by day and DIMENSIONS of sums by hour."""
    sums: dict[tuple[Any, ...], Sequence[int]] = {}
    for key, measures in hours.items():
        day = (key[0] // DAY_MS * DAY_MS, *key[1:])
        before = sums.get(day)
        sums[day] = measures if before is None else list(map(operator.add, before, measures))
    return sums


def _measures(row: UsageRow) -> Sequence[int]:
    """Return what one row adds to its sums, in the order of MEASURES."""
    ttft_ms = row["ttft_ms"]
    return (
        1,
        1 if row["status"] >= 400 and row["status"] != CLIENT_CLOSED_STATUS else 0,
        row["prompt_tokens"],
        row["cached_tokens"] or 0,
        row["output_tokens"],
        row["cost"],
        row["duration_ms"],
        ttft_ms or 0,
        0 if ttft_ms is None else 1,
    )


def split_powers_of_two(rows: Sequence[UsageRow]) -> Iterator[Sequence[UsageRow]]:
    """Yield the rows in parts with lengths that are powers of two up to ROWS_AT_ONCE, the longest first.

    A statement that returns rows has a text for each number of rows, and drivers keep the last hundred statements
    of every connection: for arbitrary numbers these would take tens of megabytes.
    """
    at = 0
    while at < len(rows):
        length = min(ROWS_AT_ONCE, 1 << (len(rows) - at).bit_length() - 1)
        yield rows[at : at + length]
        at += length
