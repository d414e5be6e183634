"""Organisations, plans and tenants: listed, shown, put.

PUT replaces the whole, and doing it twice is doing it once. `ETag` names a state; with `If-Match` a change is made
only to the state that was seen, with `If-None-Match: *` only where there is nothing yet. Nothing is deleted: a
tenant or an organisation is disabled.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.adminapi.operation import OperationResponse, OperationRequest, Handle, Operation, page_limit
from gateway.adminapi.problems import Problem
from gateway.database.rows import organisation_of, plan_of, tenant_of
from gateway.database.tenant_store import Change
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantSettings

LISTING = {"limit": "Entries at most, 1 to 1000; 100 by default.", "after": "The `next` of the page before."}


class AdminPage(msgspec.Struct, kw_only=True):
    """`next`: for `after`, to see more; null where there is no more."""

    data: list[Any]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """`name`: in addresses, and of the table. `identity`: the field that names one."""

    name: str
    one: str
    identity: str
    type: Any
    of: Callable[[Mapping[str, Any]], Any]
    put: Callable[[Change, Any], Awaitable[None]]


KINDS = (
    ResourceKind(
        name="organisations",
        one="organisation",
        identity="id",
        type=OrganisationSettings,
        of=organisation_of,
        put=Change.put_organisation,
    ),
    ResourceKind(name="plans", one="plan", identity="name", type=PlanSettings, of=plan_of, put=Change.put_plan),
    ResourceKind(
        name="tenants", one="tenant", identity="id", type=TenantSettings, of=tenant_of, put=Change.put_tenant
    ),
)


def operations(plans_of_file: Callable[[], Collection[str]]) -> list[Operation]:
    """`plans_of_file`: plans of the settings file, which tenants may be on too."""
    found = []
    for kind in KINDS:
        path = f"/{kind.name}/{{{kind.identity}}}"
        found += [
            Operation(
                method="GET",
                path=f"/{kind.name}",
                role="viewer",
                does=f"List {kind.name}.",
                handle=_list(kind),
                gives=AdminPage,
                parameters=LISTING,
            ),
            Operation(
                method="GET",
                path=path,
                role="viewer",
                does=f"Show one {kind.one}.",
                handle=_show(kind),
                gives=kind.type,
            ),
            Operation(
                method="PUT",
                path=path,
                role="operator",
                does=f"Make or replace one {kind.one}.",
                handle=_put(kind, plans_of_file),
                gives=kind.type,
                takes=kind.type,
                conditional=True,
            ),
        ]
    return found


def _list(kind: ResourceKind) -> Handle:
    async def handle(call: OperationRequest) -> OperationResponse:
        asked = call.parameters("limit", "after")
        limit = page_limit(asked.get("limit"))
        rows = await call.store.page(kind.name, after=asked.get("after", ""), limit=limit)
        following = rows[-1][kind.identity] if len(rows) == limit else None
        return OperationResponse(value=AdminPage(data=[kind.of(row) for row in rows], next=following))

    return handle


def _show(kind: ResourceKind) -> Handle:
    async def handle(call: OperationRequest) -> OperationResponse:
        call.parameters()
        row = await call.store.row(kind.name, call.part(kind.identity))
        if row is None:
            raise Problem(404, f"There is no {kind.one} {call.part(kind.identity)[:200]!r}.")
        return OperationResponse(value=kind.of(row), headers={"etag": _etag(row)})

    return handle


def _put(kind: ResourceKind, plans_of_file: Callable[[], Collection[str]]) -> Handle:
    async def handle(call: OperationRequest) -> OperationResponse:
        call.parameters()
        identity = call.part(kind.identity)
        value = await call.body(kind.type, **{kind.identity: identity})
        if getattr(value, "keys", ()):
            raise Problem(400, "$.keys: keys are made at /admin/v1/keys.")
        async with call.store.change() as change:
            before = await change.row(kind.name, identity)
            _check(call, before)
            plan = value.plan if isinstance(value, TenantSettings) else None
            if plan is not None and not await change.has_plan(plan, plans_of_file()):
                raise Problem(
                    409, f"There is no plan {plan!r}, neither in the database nor in the settings file."
                )
            await kind.put(change, value)
            after = await change.row(kind.name, identity)
        assert after is not None
        status = 201 if before is None else 200
        return OperationResponse(value=kind.of(after), status=status, headers={"etag": _etag(after)})

    return handle


def _check(call: OperationRequest, before: Mapping[str, Any] | None) -> None:
    """Is it as whoever changes it believes? Raises Problem."""
    headers = call.http.headers
    wanted, unwanted = headers.get("If-Match"), headers.get("If-None-Match")
    if wanted is not None and (before is None or wanted not in ("*", _etag(before))):
        raise Problem(412, "It has changed since you have seen it.")
    if unwanted is not None and (unwanted != "*" or before is not None):
        raise Problem(412, "It is there already.")


def _etag(row: Mapping[str, Any]) -> str:
    return f'"{row["changed"]}"'
