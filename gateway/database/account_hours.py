"""AccountHours: the usage of accounts by hour, for quotas that have lost their own count."""

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, desc, func, or_, select

from gateway.database.database import Database
from gateway.database.tables import keys
from gateway.database.usage_store import HOUR_MS
from gateway.database.usage_tables import usage, usage_hours
from gateway.quotas.quota_store import Units

HOURS_MAX = 20_000
"""The most pairs of hour and model in one answer: the latest."""

ROWS_AT_ONCE = 250
"""Rows that are converted at once: a millisecond or two, after which other tasks run."""

HourlyUsage = tuple[int, str, Units]
"""An hour in ms since 1970, a model, and what was used."""


class AccountHours:
    """Reads the usage of accounts from the ledger. Every method raises DatabaseDown."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage_since(
        self, kind: str, name: str, since_ms: int, also: Sequence[str] = ()
    ) -> list[HourlyUsage]:
        """Return an account's usage since that time, the oldest first.

        Args:
            kind: `organisation`, `tenant`, `provider`, or `key`: a key with all its successors by rotation.
            name: Its id.
            since_ms: Rounded down to the hour.
            also: More keys that count as this one.
        """
        if not self._database.exists:
            return []
        first_ms = since_ms // HOUR_MS * HOUR_MS
        asked = (
            _of_a_provider(name, first_ms)
            if kind == "provider"
            else _of(_account(kind, name, also), first_ms)
        )
        spent: list[HourlyUsage] = []
        async with self._database.begin() as connection:
            found = await connection.execute(asked.limit(HOURS_MAX))
            while rows := found.fetchmany(ROWS_AT_ONCE):
                spent += [_spent(tuple(row)) for row in rows]
                await asyncio.sleep(0)
        spent.reverse()
        return spent


def _of(account: ColumnElement[bool], first_ms: int) -> Select[Any]:
    hours = usage_hours.c
    sums = (
        func.sum(hours.requests - hours.failed),
        func.sum(hours.prompt_tokens - hours.cached_tokens),
        func.sum(hours.cached_tokens),
        func.sum(hours.output_tokens),
        func.sum(hours.prompt_tokens + hours.output_tokens),
        func.sum(hours.cost),
    )
    return (
        select(hours.start_ms, hours.model, *sums)
        .where(account, hours.start_ms >= first_ms)
        .group_by(hours.start_ms, hours.model)
        .order_by(hours.start_ms.desc(), hours.model)
    )


def _of_a_provider(name: str, first_ms: int) -> Select[Any]:
    """Return the query for a provider.

    Sums are not kept by worker: they are computed from single requests, for as long as these are kept.
    """
    row = usage.c
    start, cached = row.at_ms - row.at_ms % HOUR_MS, func.coalesce(row.cached_tokens, 0)
    sums = (
        func.count(),
        func.sum(row.prompt_tokens - cached),
        func.sum(cached),
        func.sum(row.output_tokens),
        func.sum(row.prompt_tokens + row.output_tokens),
        func.sum(row.cost),
    )
    return (
        select(start.label("start_ms"), row.model, *sums)
        .where(row.worker == name, row.at_ms >= first_ms)
        .group_by("start_ms", row.model)
        .order_by(desc("start_ms"), row.model)
    )


def _account(kind: str, name: str, also: Sequence[str]) -> ColumnElement[bool]:
    if kind == "organisation":
        return usage_hours.c.organisation == name
    if kind == "tenant":
        return usage_hours.c.tenant == name
    heirs = select(keys.c.id).where(keys.c.family == name)
    return or_(usage_hours.c.key_id.in_([name, *also]), usage_hours.c.key_id.in_(heirs))


def _spent(row: tuple[Any, ...]) -> HourlyUsage:
    # PostgreSQL returns sums as decimals.
    start, model, *sums = row
    requests, uncached, cached, output, total, cost = (int(value) for value in sums)
    return int(start), str(model), (requests, uncached, cached, output, total, cost)
