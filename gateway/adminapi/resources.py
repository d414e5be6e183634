"""Operations on organisations, plans and tenants: list, show, put.

PUT replaces the whole object, and is idempotent. `ETag` names a state of an object: with `If-Match` a change is
made only to that state, with `If-None-Match: *` only where the object does not exist. Nothing is deleted: tenants
and organisations are disabled.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.adminapi.operation import Handle, Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.adminapi.query_parameters import page_limit
from gateway.database.row_conversion import organisation_from_row, plan_from_row, tenant_from_row
from gateway.database.tenant_store import TenantChange
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantSettings

PAGING = {"limit": "Entries at most, 1 to 1000; 100 by default.", "after": "The `next` of the page before."}
LISTING = {**PAGING, "find": "Only entries with this text in their name."}


class AdminPage(msgspec.Struct, kw_only=True):
    """A page of a list. `next` is the value of `after` for the next page; null on the last page."""

    data: list[Any]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """A kind of object that is listed, shown and put in the same way."""

    name: str
    """Plural, as in paths and as the name of the table."""
    one: str
    """Singular, for texts."""
    identity: str
    """The field that identifies an object."""
    type: Any
    of: Callable[[Mapping[str, Any]], Any]
    put: Callable[[TenantChange, Any], Awaitable[None]]


KINDS = (
    ResourceKind(
        name="organisations",
        one="organisation",
        identity="id",
        type=OrganisationSettings,
        of=organisation_from_row,
        put=TenantChange.put_organisation,
    ),
    ResourceKind(
        name="plans",
        one="plan",
        identity="name",
        type=PlanSettings,
        of=plan_from_row,
        put=TenantChange.put_plan,
    ),
    ResourceKind(
        name="tenants",
        one="tenant",
        identity="id",
        type=TenantSettings,
        of=tenant_from_row,
        put=TenantChange.put_tenant,
    ),
)


def operations(file_plans: Callable[[], Collection[str]]) -> list[Operation]:
    """Return the operations. `file_plans`: names of the settings file's plans, which tenants may have too."""
    found = []
    for kind in KINDS:
        path = f"/{kind.name}/{{{kind.identity}}}"
        found += [
            Operation(
                method="GET",
                path=f"/{kind.name}",
                role="viewer",
                summary=f"List {kind.name}.",
                handle=_list(kind),
                response_type=AdminPage,
                query_parameters=LISTING,
            ),
            Operation(
                method="GET",
                path=path,
                role="viewer",
                summary=f"Show one {kind.one}.",
                handle=_show(kind),
                response_type=kind.type,
            ),
            Operation(
                method="PUT",
                path=path,
                role="operator",
                summary=f"Create or replace one {kind.one}.",
                handle=_put(kind, file_plans),
                response_type=kind.type,
                request_type=kind.type,
                conditional=True,
            ),
        ]
    return found


def _list(kind: ResourceKind) -> Handle:
    async def handle(request: OperationRequest) -> OperationResponse:
        parameters = request.query_parameters(*LISTING)
        limit = page_limit(parameters)
        rows = await request.store.page(
            kind.name, after=parameters.get("after", ""), limit=limit, containing=parameters.get("find", "")
        )
        following = rows[-1][kind.identity] if len(rows) == limit else None
        return OperationResponse(value=AdminPage(data=[kind.of(row) for row in rows], next=following))

    return handle


def _show(kind: ResourceKind) -> Handle:
    async def handle(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        row = await request.store.row(kind.name, request.path_parameter(kind.identity))
        if row is None:
            raise Problem(404, f"There is no {kind.one} {request.path_parameter(kind.identity)[:200]!r}.")
        return OperationResponse(value=kind.of(row), headers={"etag": _etag(row)})

    return handle


def _put(kind: ResourceKind, file_plans: Callable[[], Collection[str]]) -> Handle:
    async def handle(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        identity = request.path_parameter(kind.identity)
        value = await request.body(kind.type, **{kind.identity: identity})
        if getattr(value, "keys", ()):
            raise Problem(400, "$.keys: keys are created at /admin/v1/keys.")
        async with request.store.change() as change:
            before = await change.row(kind.name, identity)
            _check(request, before)
            plan = value.plan if isinstance(value, TenantSettings) else None
            if plan is not None and not await change.has_plan(plan, file_plans()):
                raise Problem(
                    409, f"There is no plan {plan!r}, neither in the database nor in the settings file."
                )
            await kind.put(change, value)
            after = await change.row(kind.name, identity)
        assert after is not None
        status = 201 if before is None else 200
        return OperationResponse(value=kind.of(after), status=status, headers={"etag": _etag(after)})

    return handle


def _check(request: OperationRequest, before: Mapping[str, Any] | None) -> None:
    """Check If-Match and If-None-Match against the object's state before the change. Raises Problem."""
    headers = request.http.headers
    wanted, unwanted = headers.get("If-Match"), headers.get("If-None-Match")
    if wanted is not None and (before is None or wanted not in ("*", _etag(before))):
        raise Problem(412, "The object has changed since you read it.")
    if unwanted is not None and (unwanted != "*" or before is not None):
        raise Problem(412, "The object exists already.")


def _etag(row: Mapping[str, Any]) -> str:
    return f'"{row["changed"]}"'
