"""Operations on operators' tokens: list, create, revoke. Only owners may use them; a token is shown once."""

import time
from typing import Any

import msgspec

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.adminapi.resources import AdminPage
from gateway.database.operators import Operator
from gateway.settings.token_issuers import Role
from gateway.settings.types import Moment, Name
from gateway.tenants.operator_lifecycle import OperatorLifecycle


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
    """An operator to create. `expires` is the last day of use (UTC), or a time with its zone."""

    name: Name
    role: Role
    expires: Moment | None = None


class OperatorMade(msgspec.Struct, kw_only=True):
    """An operator that was just created. `token` is shown only now."""

    id: str
    token: str


def operations(lifecycle: OperatorLifecycle) -> list[Operation]:
    """Return the operations on operators."""

    async def create(request: OperationRequest) -> OperationResponse:
        body = await request.body(NewOperator)
        expires = body.expires.seconds if body.expires is not None else None
        made = await lifecycle.acting(request.store).create(body.name, body.role, expires)
        return OperationResponse(value=OperatorMade(id=made.id, token=made.text), status=201)

    async def revoke(request: OperationRequest) -> OperationResponse:
        identity = request.path_parameter("id")
        if await request.store.operator(identity) is None:
            raise Problem(404, f"There is no operator {identity[:200]!r}.")
        return OperationResponse(value=shown(await lifecycle.acting(request.store).revoke(identity)))

    parts: list[dict[str, Any]] = [
        {
            "method": "GET",
            "path": "/operators",
            "summary": "List operators.",
            "handle": _list,
            "response_type": AdminPage,
        },
        {
            "method": "POST",
            "path": "/operators",
            "summary": "Create a token for an operator. It is shown once.",
            "handle": create,
            "response_type": OperatorMade,
            "request_type": NewOperator,
            "status": 201,
        },
        {
            "method": "POST",
            "path": "/operators/{id}/revoke",
            "summary": "Revoke an operator's token at once, permanently.",
            "handle": revoke,
            "response_type": OperatorShown,
        },
    ]
    return [Operation(role="owner", **part) for part in parts]


async def _list(request: OperationRequest) -> OperationResponse:
    request.query_parameters()
    return OperationResponse(
        value=AdminPage(data=[shown(operator) for operator in await request.store.operators()])
    )


def shown(operator: Operator) -> OperatorShown:
    """Return an operator as the API shows it."""
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
