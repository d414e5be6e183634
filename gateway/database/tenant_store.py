"""TenantStore: who uses the gateway, as the database keeps it.

A change is one transaction, and raises the number. The audit log is written in it: who, what, before and after.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import ColumnElement, Table, insert, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import tables
from gateway.database.audit_log import append_entry
from gateway.database.audit_tables import operators
from gateway.database.database import Database
from gateway.database.operators import Operator, operator_from_row, operator_row
from gateway.database.row_conversion import (StoredKey, read_or_disable, key_from_row, key_row, disabled_key, disabled_organisation, empty_plan, disabled_tenant, organisation_from_row, plan_from_row, settings_row, tenant_from_row)
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantSettings

GATEWAY_ACTOR = "gateway"
"""Who changes something where nobody else does."""

PAGE = 1000
"""Rows that are read at once: what they cost the event loop is milliseconds."""


NAMED_TABLES: Mapping[str, tuple[Table, str]] = {
    "organisations": (tables.organisations, "id"),
    "plans": (tables.plans, "name"),
    "tenants": (tables.tenants, "id"),
    "keys": (tables.keys, "id"),
}
"""Table and the column that names a row."""


class TenantChange:
    """What is put in one transaction. `by`: who does it. `action`: what it is called in the audit log; by default
    `create` or `change`."""

    def __init__(self, connection: AsyncConnection, number: int, by: str, chain: bytes) -> None:
        self._connection = connection
        self.number = number
        self.by = by
        self.action: str | None = None
        self._chain = chain

    async def put_organisation(self, organisation: OrganisationSettings) -> None:
        await self._put(tables.organisations, "id", settings_row(organisation))

    async def put_plan(self, plan: PlanSettings) -> None:
        await self._put(tables.plans, "name", {**settings_row(plan), "of_file": None})

    async def has_plan(self, name: str, of_file: Collection[str]) -> bool:
        """May a tenant be on it? One `of_file`, of the settings, is noted by its name, for tenants to refer to."""
        if await self.plan(name) is not None:
            return True
        if name in of_file:
            await self._put(tables.plans, "name", {**settings_row(PlanSettings(name=name)), "of_file": True})
        return name in of_file

    async def put_tenant(self, tenant: TenantSettings) -> None:
        """Its organisation is made if there is none. Its keys are put one by one."""
        if tenant.organisation is not None and await self.organisation(tenant.organisation) is None:
            await self.put_organisation(OrganisationSettings(id=tenant.organisation))
        await self._put(tables.tenants, "id", settings_row(tenant))

    async def put_key(self, stored: StoredKey) -> None:
        await self._put(tables.keys, "id", key_row(stored))

    async def add_keys(self, many: Sequence[StoredKey]) -> None:
        """New ones, many at once."""
        rows = [{**key_row(stored), "changed": self.number} for stored in many]
        for at in range(0, len(rows), PAGE):
            page = rows[at : at + PAGE]
            await self._connection.execute(insert(tables.keys), page)
            await self._audit("keys", f"{len(page)} keys", None, {"ids": [row["id"] for row in page]})

    async def note(self, kind: str, subject: str, after: dict[str, Any]) -> None:
        """Writes down what is changed elsewhere; if that fails, raise before this transaction ends."""
        await self._audit(kind, subject, None, after)

    async def row(self, kind: str, identity: str) -> Mapping[str, Any] | None:
        """The row of one of NAMED_TABLES, as it is now; None if there is none of that name."""
        table, column = NAMED_TABLES[kind]
        row = await self._row(table, column, identity)
        return row if row is None or not row.get("of_file") else None

    async def put_operator(self, operator: Operator) -> None:
        await self._put(operators, "id", operator_row(operator))

    async def operator(self, identity: str) -> Operator | None:
        row = await self._row(operators, "id", identity)
        return operator_from_row(row) if row is not None else None

    async def organisation(self, identity: str) -> OrganisationSettings | None:
        """As it is now: nobody changes it before this transaction ends. None if there is none."""
        row = await self._row(tables.organisations, "id", identity)
        return organisation_from_row(row) if row is not None else None

    async def plan(self, name: str) -> PlanSettings | None:
        row = await self.row("plans", name)
        return plan_from_row(row) if row is not None else None

    async def tenant(self, identity: str) -> TenantSettings | None:
        row = await self._row(tables.tenants, "id", identity)
        return tenant_from_row(row) if row is not None else None

    async def key(self, identity: str) -> StoredKey | None:
        row = await self._row(tables.keys, "id", identity)
        return key_from_row(row) if row is not None else None

    async def _row(self, table: Table, identity: str, value: str) -> dict[str, Any] | None:
        found = await self._connection.execute(select(table).where(table.c[identity] == value))
        row = found.mappings().first()
        return dict(row) if row is not None else None

    async def _put(self, table: Table, identity: str, row: dict[str, Any]) -> None:
        row = {**row, "changed": self.number}
        before = await self._row(table, identity, row[identity])
        if before is None:
            await self._connection.execute(insert(table).values(row))
        elif all(before[name] == value for name, value in row.items() if name != "changed"):
            return  # It is so already: nothing to do, and nothing to tell.
        else:
            at = table.c[identity] == row[identity]
            await self._connection.execute(update(table).where(at).values(row))
        await self._audit(table.name, row[identity], before, row)

    async def _audit(
        self, kind: str, subject: str, before: dict[str, Any] | None, after: dict[str, Any]
    ) -> None:
        await append_entry(
            self._connection,
            self._chain,
            who=self.by,
            action=self.action or ("create" if before is None else "change"),
            kind=kind,
            subject=subject,
            before=before,
            after=after,
        )


class TenantStore:
    """Every method raises DatabaseDown; changes also DatabaseConflict. `chain`: the key of the audit log; `by`: who
    changes things, as it says.
    """

    def __init__(self, database: Database, chain: bytes = b"", by: str = GATEWAY_ACTOR) -> None:
        self.database = database
        self._chain = chain
        self._by = by

    def acting(self, by: str) -> "TenantStore":
        """The same store for somebody else."""
        return TenantStore(self.database, self._chain, by)

    async def number(self) -> int:
        """Of the last change."""
        async with self.database.begin() as connection:
            found = (await connection.execute(select(tables.changes.c.number))).scalar()
            return int(found or 0)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[TenantChange]:
        """All of it, or nothing."""
        async with self.database.begin() as connection:
            # First of all, so that whoever changes something waits for whoever does.
            raised = tables.changes.c.number + 1
            await connection.execute(update(tables.changes).values(number=raised))
            number = (await connection.execute(select(tables.changes.c.number))).scalar()
            yield TenantChange(connection, int(number or 0), self._by, self._chain)

    async def all_organisations(self, since: int = 0) -> list[OrganisationSettings]:
        """Those that changed after that number."""
        return [
            read_or_disable(organisation_from_row, disabled_organisation, row)
            async for row in self._rows(tables.organisations, "id", since)
        ]

    async def all_plans(self, since: int = 0) -> list[PlanSettings]:
        return [read_or_disable(plan_from_row, empty_plan, row) async for row in self._rows(tables.plans, "name", since)]

    async def all_tenants(self, since: int = 0) -> AsyncIterator[TenantSettings]:
        async for row in self._rows(tables.tenants, "id", since):
            yield read_or_disable(tenant_from_row, disabled_tenant, row)

    async def all_keys(self, since: int = 0) -> AsyncIterator[StoredKey]:
        async for row in self._rows(tables.keys, "id", since):
            yield read_or_disable(key_from_row, disabled_key, row)

    async def operators(self) -> list[Operator]:
        """All of them, also those that are revoked; the oldest first."""
        async with self.database.begin() as connection:
            found = await connection.execute(select(operators).order_by(operators.c.created_ms))
            return [operator_from_row(dict(row)) for row in found.mappings()]

    async def operator(self, identity: str) -> Operator | None:
        """None if there is none of that id."""
        async with self.database.begin() as connection:
            found = await connection.execute(select(operators).where(operators.c.id == identity))
            row = found.mappings().first()
            return operator_from_row(dict(row)) if row is not None else None

    async def row(self, kind: str, identity: str) -> Mapping[str, Any] | None:
        """One row; None if there is none of that name."""
        table, column = NAMED_TABLES[kind]
        async with self.database.begin() as connection:
            found = await connection.execute(
                select(table).where(table.c[column] == identity, _is_here(table))
            )
            row = found.mappings().first()
            return dict(row) if row is not None else None

    async def page(
        self, kind: str, *, after: str = "", limit: int = PAGE, **where: str
    ) -> list[Mapping[str, Any]]:
        """Rows of `organisations`, `plans`, `tenants` or `keys`, in the order of their names, after that one."""
        table, identity = NAMED_TABLES[kind]
        column = table.c[identity]
        asked = select(table).where(column > after, _is_here(table)).order_by(column).limit(limit)
        for name, value in where.items():
            asked = asked.where(table.c[name] == value)
        async with self.database.begin() as connection:
            return [dict(row) for row in (await connection.execute(asked)).mappings()]

    async def _rows(self, table: Table, identity: str, since: int) -> AsyncIterator[Mapping[str, Any]]:
        """PageRequest by page, so that no transaction and no answer becomes large."""
        column, last = table.c[identity], ""
        while True:
            asked = select(table).where(table.c.changed > since, column > last, _is_here(table))
            asked = asked.order_by(column).limit(PAGE)
            async with self.database.begin() as connection:
                page = (await connection.execute(asked)).mappings().all()
            for row in page:
                yield dict(row)
            if len(page) < PAGE:
                return
            last = page[-1][identity]


def _is_here(table: Table) -> ColumnElement[bool]:
    """Not a plan's name alone."""
    return table.c.of_file.is_(None) if table is tables.plans else true()
