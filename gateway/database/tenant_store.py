"""TenantStore: organisations, plans, tenants, keys and operators in the database.

A change is one transaction, and raises the number of the last change. The audit log is written in the same
transaction: the actor, the action, and the row before and after.
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
from gateway.database.row_conversion import (
    StoredKey,
    disabled_key,
    disabled_organisation,
    disabled_tenant,
    empty_plan,
    key_from_row,
    key_row,
    organisation_from_row,
    plan_from_row,
    read_or_disable,
    settings_row,
    tenant_from_row,
)
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantSettings

GATEWAY_ACTOR = "gateway"
"""The actor in the audit log where no other is named."""

PAGE = 1000
"""Rows that are read at once: they keep the event loop busy for milliseconds."""


NAMED_TABLES: Mapping[str, tuple[Table, str]] = {
    "organisations": (tables.organisations, "id"),
    "plans": (tables.plans, "name"),
    "tenants": (tables.tenants, "id"),
    "keys": (tables.keys, "id"),
}
"""The tables by the kind of their rows, with the column that names a row."""


class TenantChange:
    """What is written in one transaction.

    `actor` is written to the audit log as the author, `action` as what was done; None is `create` or `change`.
    """

    def __init__(self, connection: AsyncConnection, number: int, actor: str, chain_key: bytes) -> None:
        self._connection = connection
        self.number = number
        self.actor = actor
        self.action: str | None = None
        self._chain_key = chain_key

    async def put_organisation(self, organisation: OrganisationSettings) -> None:
        """Insert or update an organisation."""
        await self._put(tables.organisations, "id", settings_row(organisation))

    async def put_plan(self, plan: PlanSettings) -> None:
        """Insert or update a plan."""
        await self._put(tables.plans, "name", {**settings_row(plan), "of_file": None})

    async def has_plan(self, name: str, file_plans: Collection[str]) -> bool:
        """Return whether there is such a plan, here or in the settings file.

        A plan of the settings file gets a row with its name, for tenants to refer to.
        """
        if await self.plan(name) is not None:
            return True
        if name in file_plans:
            await self._put(tables.plans, "name", {**settings_row(PlanSettings(name=name)), "of_file": True})
        return name in file_plans

    async def put_tenant(self, tenant: TenantSettings) -> None:
        """Insert or update a tenant, and insert its organisation if it does not exist; keys are put one by one."""
        if tenant.organisation is not None and await self.organisation(tenant.organisation) is None:
            await self.put_organisation(OrganisationSettings(id=tenant.organisation))
        await self._put(tables.tenants, "id", settings_row(tenant))

    async def put_key(self, stored: StoredKey) -> None:
        """Insert or update a key."""
        await self._put(tables.keys, "id", key_row(stored))

    async def add_keys(self, many: Sequence[StoredKey]) -> None:
        """Insert many new keys at once."""
        rows = [{**key_row(stored), "changed": self.number} for stored in many]
        for at in range(0, len(rows), PAGE):
            page = rows[at : at + PAGE]
            await self._connection.execute(insert(tables.keys), page)
            await self._audit("keys", f"{len(page)} keys", None, {"ids": [row["id"] for row in page]})

    async def note(self, kind: str, subject: str, after: dict[str, Any]) -> None:
        """Write a change that is made elsewhere to the audit log.

        If that change fails, raise within this transaction.
        """
        await self._audit(kind, subject, None, after)

    async def row(self, kind: str, identity: str) -> Mapping[str, Any] | None:
        """Return the row of that kind and name as it is now; None if there is none."""
        table, column = NAMED_TABLES[kind]
        row = await self._row(table, column, identity)
        return row if row is None or not row.get("of_file") else None

    async def put_operator(self, operator: Operator) -> None:
        """Insert or update an operator."""
        await self._put(operators, "id", operator_row(operator))

    async def operator(self, identity: str) -> Operator | None:
        """Return the operator as it is now; None if there is none."""
        row = await self._row(operators, "id", identity)
        return operator_from_row(row) if row is not None else None

    async def organisation(self, identity: str) -> OrganisationSettings | None:
        """Return the organisation as it is now, which no other transaction changes before this one ends.

        None if there is none.
        """
        row = await self._row(tables.organisations, "id", identity)
        return organisation_from_row(row) if row is not None else None

    async def plan(self, name: str) -> PlanSettings | None:
        """Return the plan as it is now; None if there is none."""
        row = await self.row("plans", name)
        return plan_from_row(row) if row is not None else None

    async def tenant(self, identity: str) -> TenantSettings | None:
        """Return the tenant as it is now; None if there is none."""
        row = await self._row(tables.tenants, "id", identity)
        return tenant_from_row(row) if row is not None else None

    async def key(self, identity: str) -> StoredKey | None:
        """Return the key as it is now; None if there is none."""
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
            return  # Nothing changes, so nothing is logged.
        else:
            at = table.c[identity] == row[identity]
            await self._connection.execute(update(table).where(at).values(row))
        await self._audit(table.name, row[identity], before, row)

    async def _audit(
        self, kind: str, subject: str, before: dict[str, Any] | None, after: dict[str, Any]
    ) -> None:
        await append_entry(
            self._connection,
            self._chain_key,
            who=self.actor,
            action=self.action or ("create" if before is None else "change"),
            kind=kind,
            subject=subject,
            before=before,
            after=after,
        )


class TenantStore:
    """Organisations, plans, tenants, keys and operators in the database.

    Every method raises DatabaseDown; changes also DatabaseConflict. `chain_key` is that of the audit log, and
    `actor` the author that it names.
    """

    def __init__(self, database: Database, chain_key: bytes = b"", actor: str = GATEWAY_ACTOR) -> None:
        self.database = database
        self._chain_key = chain_key
        self._actor = actor

    def acting(self, actor: str) -> "TenantStore":
        """Return the same store for another author of changes."""
        return TenantStore(self.database, self._chain_key, actor)

    async def last_change(self) -> int:
        """Return the number of the last change."""
        async with self.database.begin() as connection:
            found = (await connection.execute(select(tables.changes.c.number))).scalar()
            return int(found or 0)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[TenantChange]:
        """Open a transaction for changes: all of them are made, or none."""
        async with self.database.begin() as connection:
            # First of all, so that concurrent changes wait for each other.
            raised = tables.changes.c.number + 1
            await connection.execute(update(tables.changes).values(number=raised))
            number = (await connection.execute(select(tables.changes.c.number))).scalar()
            yield TenantChange(connection, int(number or 0), self._actor, self._chain_key)

    async def stored_organisations(self, changed_after: int = 0) -> list[OrganisationSettings]:
        """Return the organisations that changed after the change of that number; 0: all."""
        return [
            read_or_disable(organisation_from_row, disabled_organisation, row)
            async for row in self._rows(tables.organisations, "id", changed_after)
        ]

    async def stored_plans(self, changed_after: int = 0) -> list[PlanSettings]:
        """Return the plans that changed after the change of that number; 0: all."""
        return [
            read_or_disable(plan_from_row, empty_plan, row)
            async for row in self._rows(tables.plans, "name", changed_after)
        ]

    async def stored_tenants(self, changed_after: int = 0) -> AsyncIterator[TenantSettings]:
        """Yield the tenants that changed after the change of that number; 0: all."""
        async for row in self._rows(tables.tenants, "id", changed_after):
            yield read_or_disable(tenant_from_row, disabled_tenant, row)

    async def stored_keys(self, changed_after: int = 0) -> AsyncIterator[StoredKey]:
        """Yield the keys that changed after the change of that number; 0: all."""
        async for row in self._rows(tables.keys, "id", changed_after):
            yield read_or_disable(key_from_row, disabled_key, row)

    async def operators(self) -> list[Operator]:
        """Return all operators, also revoked ones, the oldest first."""
        async with self.database.begin() as connection:
            found = await connection.execute(select(operators).order_by(operators.c.created_ms))
            return [operator_from_row(dict(row)) for row in found.mappings()]

    async def operator(self, identity: str) -> Operator | None:
        """Return an operator; None if there is none of that id."""
        async with self.database.begin() as connection:
            found = await connection.execute(select(operators).where(operators.c.id == identity))
            row = found.mappings().first()
            return operator_from_row(dict(row)) if row is not None else None

    async def row(self, kind: str, identity: str) -> Mapping[str, Any] | None:
        """Return the row of that kind and name; None if there is none."""
        table, column = NAMED_TABLES[kind]
        async with self.database.begin() as connection:
            found = await connection.execute(
                select(table).where(table.c[column] == identity, _is_here(table))
            )
            row = found.mappings().first()
            return dict(row) if row is not None else None

    async def page(
        self, kind: str, *, after: str = "", limit: int = PAGE, containing: str = "", **where: str
    ) -> list[Mapping[str, Any]]:
        """Return rows of that kind (see NAMED_TABLES), in the order of their names, after the name `after`.

        `containing`: only rows with this text in their names.
        """
        table, identity = NAMED_TABLES[kind]
        column = table.c[identity]
        asked = select(table).where(column > after, _is_here(table)).order_by(column).limit(limit)
        if containing:
            asked = asked.where(column.contains(containing, autoescape=True))
        for name, value in where.items():
            asked = asked.where(table.c[name] == value)
        async with self.database.begin() as connection:
            return [dict(row) for row in (await connection.execute(asked)).mappings()]

    async def _rows(self, table: Table, identity: str, since: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield rows page by page, so that no transaction and no answer becomes large."""
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
    """Return the condition that excludes plans of the settings file, of which only the name is here."""
    return table.c.of_file.is_(None) if table is tables.plans else true()
