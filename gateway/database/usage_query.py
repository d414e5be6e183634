"""Queries of the usage ledger: sums by chosen groupings, and the rows themselves.

    days   -- bounds at midnights, only fields that the sums of days have   few rows, for ever
    hours  -- bounds at full hours, the same                               kept for a long time
    rows   -- everything else: users, tags, workers, codes, any moment     kept for some time

All three give the same sums for times that they cover.
"""

from collections.abc import AsyncIterator, Mapping
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
from gateway.database.usage_store import DAY_MS, HOUR_MS
from gateway.database.usage_tables import MEASURES, usage, usage_days, usage_hours
from gateway.domain.errors import CLIENT_CLOSED_STATUS

PAGE = 1000
GROUPS_MAX = 10_000
TAG = "tag:"
SAVED = "saved"
"""How much more cached tokens would have cost at the price of uncached ones, in millionths of the currency."""

COLUMNS = {"organisation": "organisation", "tenant": "tenant", "key": "key_id", "model": "model"}
ROW_COLUMNS = {**COLUMNS, "user": "user", "worker": "worker", "code": "code"}
TIMES = {"hour": HOUR_MS, "day": DAY_MS}


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of the usage ledger."""

    since_ms: int | None = None  # inclusive; None: no bound
    until_ms: int | None = None  # exclusive; None: no bound
    where: dict[str, str] = {}  # values by column, as ROW_COLUMNS names it
    tags: dict[str, str] = {}  # values by tag; all must match
    by: tuple[str, ...] = ()  # groupings: `hour`, `day`, names of ROW_COLUMNS, `tag:NAME`
    limit: int = PAGE
    offset: int = 0

    @property
    def source(self) -> str:
        """The smallest table that can answer the query: `days`, `hours`, or `rows`."""
        asked = {*self.where, *self.by} - set(TIMES)
        bounds = [bound for bound in (self.since_ms, self.until_ms) if bound is not None]
        if self.tags or not asked <= set(COLUMNS) or any(bound % HOUR_MS for bound in bounds):
            return "rows"
        return "hours" if "hour" in self.by or any(bound % DAY_MS for bound in bounds) else "days"


class UsageReader:
    """Answers queries of the usage ledger. Every method raises DatabaseDown."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def sums(
        self, query: UsageQuery, discounts: Mapping[str, float] | None = None
    ) -> list[dict[str, Any]]:
        """Return one mapping for each group, with its groupings and every measure, in the order of `by`.

        `discounts`: by model, how much less a cached token costs than another one, in millionths of the currency;
        with them, each group has `saved` too.
        """
        if not self.database.exists:
            return []
        async with self.database.begin() as connection:
            found = (await connection.execute(_sums(query, discounts))).all()
        groups = [_group(query, tuple(row)) for row in found]
        if discounts is not None:
            for group, row in zip(groups, found, strict=True):
                group[SAVED] = round(row[-1])
        return groups

    async def rows(self, query: UsageQuery) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the rows themselves, the oldest first, page by page; `by`, `limit` and `offset` are ignored."""
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


def _sums(query: UsageQuery, discounts: Mapping[str, float] | None) -> Select[Any]:
    source = query.source
    table = {"days": usage_days, "hours": usage_hours, "rows": usage}[source]
    time = table.c.at_ms if source == "rows" else table.c.start_ms
    groups = [_asked_by(name, table, time).label(f"by_{at}") for at, name in enumerate(query.by)]
    measures = [func.coalesce(func.sum(_measure(name, table)), 0).label(f"sum_{name}") for name in MEASURES]
    if discounts is not None:
        measures.append(func.coalesce(func.sum(_saved(table, discounts)), 0).label(f"sum_{SAVED}"))
    asked = select(*groups, *measures).where(_bounds(query, table, time))
    if groups:
        # By position: PostgreSQL does not recognise two texts of one expression with parameters as the same.
        places: list[ColumnElement[Any]] = [literal_column(str(at + 1)) for at in range(len(groups))]
        asked = asked.group_by(*places).order_by(*places)
    return asked.limit(query.limit).offset(query.offset)


def _saved(table: Table, discounts: Mapping[str, float]) -> ColumnElement[Any]:
    """Return what the cached tokens of a row saved, as a floating point number: whole ones may overflow."""
    cached = func.coalesce(table.c.cached_tokens, 0)
    of_models = [(table.c.model == model, cached * discount) for model, discount in discounts.items()]
    return case(*of_models, else_=0.0) if of_models else literal(0.0)


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
        failed = (usage.c.status >= 400) & (usage.c.status != CLIENT_CLOSED_STATUS)
        return case((failed, 1), else_=0)
    if name == "ttft_count":
        return case((usage.c.ttft_ms.is_not(None), 1), else_=0)
    return usage.c[name]


def _group(query: UsageQuery, row: tuple[Any, ...]) -> dict[str, Any]:
    keys = dict(zip(query.by, row[: len(query.by)], strict=True))
    sums = row[len(query.by) : len(query.by) + len(MEASURES)]
    # PostgreSQL returns sums as decimals.
    return keys | {name: int(value) for name, value in zip(MEASURES, sums, strict=True)}
