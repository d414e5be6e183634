"""Questions to the usage ledger: sums by what they are asked by, and the rows themselves.

    days   -- bounds at midnights, nothing asked that days do not know     few rows, for ever
    hours  -- bounds at full hours, the same                               kept for a long time
    rows   -- everything else: users, tags, workers, codes, any moment     kept for some time

All three say the same where they know it.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    case,
    func,
    literal,
    literal_column,
    select,
    tuple_,
)

from gateway.database.database import Database
from gateway.database.usage_store import DAY_MS, HOUR_MS, CLIENT_LEFT_STATUS
from gateway.database.usage_tables import MEASURES, usage, usage_days, usage_hours

PAGE = 1000
GROUPS_MAX = 10_000
TAG = "tag:"

COLUMNS = {"organisation": "organisation", "tenant": "tenant", "key": "key_id", "model": "model"}
ROW_COLUMNS = {**COLUMNS, "user": "user", "worker": "worker", "code": "code"}
TIMES = {"hour": HOUR_MS, "day": DAY_MS}


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `since_ms` <= time < `until_ms`; None: no bound. `where`: column (as ROW_COLUMNS names it) to
    value. `tags`: all of them. `by`: what sums are apart by: `hour`, `day`, names of ROW_COLUMNS, `tag:NAME`."""

    since_ms: int | None = None
    until_ms: int | None = None
    where: dict[str, str] = {}
    tags: dict[str, str] = {}
    by: tuple[str, ...] = ()
    limit: int = PAGE
    offset: int = 0

    @property
    def source(self) -> str:
        """The smallest table that knows it: days, hours, or rows."""
        asked = {*self.where, *self.by} - set(TIMES)
        bounds = [bound for bound in (self.since_ms, self.until_ms) if bound is not None]
        if self.tags or not asked <= set(COLUMNS) or any(bound % HOUR_MS for bound in bounds):
            return "rows"
        return "hours" if "hour" in self.by or any(bound % DAY_MS for bound in bounds) else "days"


class UsageReader:
    """Every method raises DatabaseDown."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def sums(self, query: UsageQuery) -> list[dict[str, Any]]:
        """One mapping a group: what it is apart by, then every measure. In the order of `by`."""
        if not self.database.exists:
            return []
        async with self.database.begin() as connection:
            found = (await connection.execute(_sums(query))).all()
        return [_group(query, tuple(row)) for row in found]

    async def rows(self, query: UsageQuery) -> AsyncIterator[list[dict[str, Any]]]:
        """The rows themselves, the oldest first, page by page; `by`, `limit` and `offset` mean nothing here."""
        order = (usage.c.at_ms, usage.c.request_id, usage.c.attempt)
        last: tuple[Any, ...] | None = None
        while self.database.exists:
            asked = select(usage).where(_bounds(query, usage, usage.c.at_ms)).order_by(*order).limit(PAGE)
            if last is not None:
                asked = asked.where(tuple_(*order) > tuple_(*map(literal, last)))
            async with self.database.begin() as connection:
                page = [dict(row) for row in (await connection.execute(asked)).mappings()]
            if page:
                yield page
            if len(page) < PAGE:
                return
            last = tuple(page[-1][column.name] for column in order)


def _sums(query: UsageQuery) -> Select[Any]:
    source = query.source
    table = {"days": usage_days, "hours": usage_hours, "rows": usage}[source]
    time = table.c.at_ms if source == "rows" else table.c.start_ms
    groups = [_asked_by(name, table, time).label(f"by_{at}") for at, name in enumerate(query.by)]
    measures = [func.coalesce(func.sum(_measure(name, table)), 0).label(f"sum_{name}") for name in MEASURES]
    asked = select(*groups, *measures).where(_bounds(query, table, time))
    if groups:
        # By the columns' places: two texts of one expression with parameters are not the same to PostgreSQL.
        places: list[ColumnElement[Any]] = [literal_column(str(at + 1)) for at in range(len(groups))]
        asked = asked.group_by(*places).order_by(*places)
    return asked.limit(query.limit).offset(query.offset)


def _asked_by(name: str, table: Table, time: ColumnElement[int]) -> ColumnElement[Any]:
    if name in TIMES:
        length = TIMES[name]
        return time // length * length
    if name.startswith(TAG):
        found: ColumnElement[Any] = table.c.tags[name.removeprefix(TAG)].as_string()
        return found
    return table.c[ROW_COLUMNS[name]]


def _bounds(query: UsageQuery, table: Table, time: ColumnElement[int]) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = [literal(True)]
    if query.since_ms is not None:
        parts.append(time >= query.since_ms)
    if query.until_ms is not None:
        parts.append(time < query.until_ms)
    parts += [table.c[ROW_COLUMNS[name]] == value for name, value in query.where.items()]
    parts += [table.c.tags[name].as_string() == value for name, value in query.tags.items()]
    return and_(*parts)


def _measure(name: str, table: Table) -> ColumnElement[int]:
    if table is not usage:
        return table.c[name]
    if name == "requests":
        return literal(1)
    if name == "failed":
        failed = (usage.c.status >= 400) & (usage.c.status != CLIENT_LEFT_STATUS)
        return case((failed, 1), else_=0)
    if name == "ttft_count":
        return case((usage.c.ttft_ms.is_not(None), 1), else_=0)
    return usage.c[name]


def _group(query: UsageQuery, row: tuple[Any, ...]) -> dict[str, Any]:
    keys = dict(zip(query.by, row[: len(query.by)], strict=True))
    # PostgreSQL sums into numbers that are no integers of Python.
    return keys | {name: int(value) for name, value in zip(MEASURES, row[len(query.by) :], strict=True)}
