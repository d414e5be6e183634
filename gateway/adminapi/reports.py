"""Usage of all tenants, and the audit log."""

from typing import Any

import msgspec

from gateway.adminapi.operation import OperationResponse, OperationRequest, Operation, page_limit
from gateway.adminapi.problems import Problem
from gateway.adminapi.resources import AdminPage
from gateway.database.audit_log import AuditEntry, AuditLog
from gateway.database.usage_query import ROW_COLUMNS, UsageReader
from gateway.ledger.usage_query_text import QueryProblem, moment_text, query_of, shown

USAGE_PARAMETERS = {
    "since": "A day (its beginning) or a moment.",
    "until": "A day (its end) or a moment.",
    "by": f"What sums are apart by, with commas: hour, day, {', '.join(ROW_COLUMNS)}, tag:NAME.",
    "tag": "NAME=VALUE; may be repeated.",
    **{name: f"Only this {name}." for name in ROW_COLUMNS},
    "limit": "Groups at most.",
    "offset": "Groups to leave out.",
}


class UsageShown(msgspec.Struct, kw_only=True):
    """`source`: days, hours or rows, of which the last are kept for the shortest time. Costs are millionths."""

    data: list[dict[str, Any]]
    source: str


class AuditShown(msgspec.Struct, kw_only=True):
    """`before`, `after`: what has been changed; null where there was nothing."""

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
    """`broken`: the first number that does not follow from those before; null if all do."""

    broken: int | None
    number: int
    hash: str


def operations(usage: UsageReader, audit: AuditLog) -> list[Operation]:
    async def sums(call: OperationRequest) -> OperationResponse:
        try:
            query = query_of(call.http.query.items())
        except QueryProblem as err:
            raise Problem(400, f"{err}.") from err
        found = await usage.sums(query)
        return OperationResponse(value=UsageShown(data=[shown(group) for group in found], source=query.source))

    async def log(call: OperationRequest) -> OperationResponse:
        asked = call.parameters("limit", "after", "kind", "subject")
        limit, after = page_limit(asked.get("limit")), asked.get("after")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):
            raise Problem(400, "after: expected the `next` of the page before.")
        found = await audit.page(
            before=int(after) if after is not None else None,
            limit=limit,
            kind=asked.get("kind"),
            subject=asked.get("subject"),
        )
        following = str(found[-1].number) if len(found) == limit else None
        return OperationResponse(value=AdminPage(data=[audit_shown(entry) for entry in found], next=following))

    async def verify(call: OperationRequest) -> OperationResponse:
        call.parameters()
        found = await audit.verify()
        return OperationResponse(value=AuditVerified(broken=found.broken, number=found.number, hash=found.hash))

    return [
        Operation(
            method="GET",
            path="/usage",
            role="viewer",
            does="Sums of what was used.",
            handle=sums,
            gives=UsageShown,
            parameters=USAGE_PARAMETERS,
        ),
        Operation(
            method="GET",
            path="/audit",
            role="viewer",
            does="Who changed what, the latest first.",
            handle=log,
            gives=AdminPage,
            parameters={
                "limit": "Entries at most, 1 to 1000; 100 by default.",
                "after": "The `next` of the page before.",
                "kind": "organisations, plans, tenants, keys or operators.",
                "subject": "Name of what was changed.",
            },
        ),
        Operation(
            method="GET",
            path="/audit/verification",
            role="viewer",
            does="Whether the log's chain is whole.",
            handle=verify,
            gives=AuditVerified,
        ),
    ]


def audit_shown(entry: AuditEntry) -> AuditShown:
    """As people read it."""
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
