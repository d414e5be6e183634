"""Operations that report the usage of all tenants, and the audit log."""

from typing import Any

import msgspec

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.adminapi.query_parameters import page_limit
from gateway.adminapi.resources import AdminPage
from gateway.database.audit_log import AuditEntry, AuditLog
from gateway.database.usage_query import ROW_COLUMNS, UsageReader
from gateway.ledger.usage_query_parsing import QueryProblem, moment_text, parse_query, shown
from gateway.models.catalogue import Catalogue
from gateway.quotas.leases import Leases
from gateway.quotas.limit_report import LimitReport, limit_reports
from gateway.quotas.quota_store import QuotaStoreUnavailable
from gateway.tenants.directory import DirectoryUnavailable, TenantDirectory, UnknownKey, tenant_named

USAGE_PARAMETERS = {
    "since": "A day (from its beginning) or a time.",
    "until": "A day (to its end) or a time.",
    "by": f"Dimensions of the groups, separated by commas: hour, day, {', '.join(ROW_COLUMNS)}, tag:NAME.",
    "tag": "NAME=VALUE; may be repeated.",
    **{name: f"Only this {name}." for name in ROW_COLUMNS},
    "limit": "Largest number of groups.",
    "offset": "Number of groups to skip.",
}


class UsageShown(msgspec.Struct, kw_only=True):
    """Sums of usage. `source`: days, hours or rows; rows are kept for the shortest time. Costs are in millionths.

    `saved` of a group: how much more its cached tokens would have cost at today's price of uncached tokens.
    """

    data: list[dict[str, Any]]
    source: str


class LimitsShown(msgspec.Struct, kw_only=True):
    """What is left of a tenant's limits, of its organisation's too. Nothing is charged."""

    data: list[LimitReport]


class AuditShown(msgspec.Struct, kw_only=True):
    """An entry of the audit log. `before` and `after`: the changed object; null where it did not exist."""

    number: int
    at: str
    who: str
    action: str
    kind: str
    subject: str
    before: Any
    after: Any
    hash: str


class AuditVerified(msgspec.Struct, kw_only=True):
    """The result of a verification. `broken`: the first entry that does not follow from those before, or null."""

    broken: int | None
    number: int
    hash: str


def operations(
    usage: UsageReader, audit: AuditLog, catalogue: Catalogue, directory: TenantDirectory, leases: Leases
) -> list[Operation]:
    """Return the operations that report usage and changes."""

    async def sums(request: OperationRequest) -> OperationResponse:
        try:
            query = parse_query(request.http.query.items())
        except QueryProblem as err:
            raise Problem(400, f"{err}.") from err
        found = await usage.sums(query, catalogue.discounts())
        return OperationResponse(
            value=UsageShown(data=[shown(group) for group in found], source=query.source)
        )

    async def limits(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        name = request.path_parameter("id")
        try:
            tenant = tenant_named(directory, name)
            found = await limit_reports(leases, tenant.organisation, tenant.id, tenant.scopes)
        except UnknownKey:
            raise Problem(404, f"There is no tenant {name!r}.") from None
        except (DirectoryUnavailable, QuotaStoreUnavailable) as err:
            raise Problem(503, "Tenants or their limits are not known at present.") from err
        return OperationResponse(value=LimitsShown(data=found))

    async def log(request: OperationRequest) -> OperationResponse:
        parameters = request.query_parameters("limit", "after", "kind", "subject")
        limit, after = page_limit(parameters), parameters.get("after")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):
            raise Problem(400, "after: expected the `next` of the page before.")
        found = await audit.page(
            before=int(after) if after is not None else None,
            limit=limit,
            kind=parameters.get("kind"),
            subject=parameters.get("subject"),
        )
        following = str(found[-1].number) if len(found) == limit else None
        return OperationResponse(
            value=AdminPage(data=[audit_shown(entry) for entry in found], next=following)
        )

    async def verify(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        found = await audit.verify()
        return OperationResponse(
            value=AuditVerified(broken=found.broken, number=found.number, hash=found.hash)
        )

    return [
        Operation(
            method="GET",
            path="/usage",
            role="viewer",
            summary="Sum the usage of all tenants.",
            handle=sums,
            response_type=UsageShown,
            query_parameters=USAGE_PARAMETERS,
        ),
        Operation(
            method="GET",
            path="/tenants/{id}/limits",
            role="viewer",
            summary="Show what is left of a tenant's limits.",
            handle=limits,
            response_type=LimitsShown,
        ),
        Operation(
            method="GET",
            path="/audit",
            role="viewer",
            summary="List changes, the latest first.",
            handle=log,
            response_type=AdminPage,
            query_parameters={
                "limit": "Entries at most, 1 to 1000; 100 by default.",
                "after": "The `next` of the page before.",
                "kind": "organisations, plans, tenants, keys or operators.",
                "subject": "Name of the changed object.",
            },
        ),
        Operation(
            method="GET",
            path="/audit/verification",
            role="viewer",
            summary="Verify the hash chain of the audit log.",
            handle=verify,
            response_type=AuditVerified,
        ),
    ]


def audit_shown(entry: AuditEntry) -> AuditShown:
    """Return an entry as the API shows it."""
    return AuditShown(
        number=entry.number,
        at=moment_text(entry.at_ms),
        who=entry.who,
        action=entry.action,
        kind=entry.kind,
        subject=entry.subject,
        before=_json(entry.before),
        after=_json(entry.after),
        hash=entry.hash,
    )


def _json(text: str | None) -> Any:
    return msgspec.json.decode(text) if text is not None else None
