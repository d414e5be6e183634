"""OperatorTokenStore: who may use this API. A token is made here and shown once; only owners may look or change."""

import time
from typing import Any

import msgspec

from gateway.adminapi.operation import OperationResponse, OperationRequest, Operation
from gateway.adminapi.problems import Problem
from gateway.adminapi.resources import AdminPage
from gateway.database.operators import Operator
from gateway.settings.token_issuers import Role
from gateway.settings.types import Moment, Name
from gateway.tenants.operator_life import OperatorLife


class OperatorShown(msgspec.Struct, kw_only=True):
    """An operator, without the token."""

    id: str
    name: str
    role: str
    active: bool
    created: str
    expires: str | None
    revoked: str | None


class NewOperator(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`expires`: last day of use (UTC), or a moment with its zone."""

    name: Name
    role: Role
    expires: Moment | None = None


class OperatorMade(msgspec.Struct, kw_only=True):
    """`token` is shown now, and never again."""

    id: str
    token: str


def operations(life: OperatorLife) -> list[Operation]:
    async def create(call: OperationRequest) -> OperationResponse:
        asked = await call.body(NewOperator)
        expires = asked.expires.seconds if asked.expires is not None else None
        made = await life.acting(call.store).create(asked.name, asked.role, expires)
        return OperationResponse(value=OperatorMade(id=made.id, token=made.text), status=201)

    async def revoke(call: OperationRequest) -> OperationResponse:
        identity = call.part("id")
        if await call.store.operator(identity) is None:
            raise Problem(404, f"There is no operator {identity[:200]!r}.")
        return OperationResponse(value=shown(await life.acting(call.store).revoke(identity)))

    parts: list[dict[str, Any]] = [
        {"method": "GET", "path": "/operators", "does": "List operators.", "handle": _list, "gives": AdminPage},
        {
            "method": "POST",
            "path": "/operators",
            "does": "Make a token for an operator. It is shown once.",
            "handle": create,
            "gives": OperatorMade,
            "takes": NewOperator,
            "status": 201,
        },
        {
            "method": "POST",
            "path": "/operators/{id}/revoke",
            "does": "KeyExpiry a token at once and for ever.",
            "handle": revoke,
            "gives": OperatorShown,
        },
    ]
    return [Operation(role="owner", **part) for part in parts]


async def _list(call: OperationRequest) -> OperationResponse:
    call.parameters()
    return OperationResponse(value=AdminPage(data=[shown(operator) for operator in await call.store.operators()]))


def shown(operator: Operator) -> OperatorShown:
    """As it may be seen."""
    return OperatorShown(
        id=operator.id,
        name=operator.name,
        role=operator.role,
        active=operator.active(time.time()),
        created=Moment.at(operator.created).text,
        expires=_text(operator.expires),
        revoked=_text(operator.revoked),
    )


def _text(seconds: float | None) -> str | None:
    return Moment.at(seconds).text if seconds is not None else None
