"""Operations on API keys: list and show (without the secret), create, rotate, expire, revoke one or many."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.adminapi.operation import Handle, Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.adminapi.query_parameters import page_limit
from gateway.adminapi.resources import PAGING, AdminPage
from gateway.database.row_conversion import KeyState, StoredKey, disabled_key, key_from_row, read_or_disable
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.types import Identifier, Moment, Name
from gateway.tenants.key_lifecycle import KEY_PLACEHOLDER

IDENTITIES_MAX = 10_000
"""Keys that one request may revoke."""
GRACE_SECONDS_MAX = 366 * 86_400


class KeyShown(msgspec.Struct, kw_only=True):
    """An API key without its secret. `rules` are the key's settings, without `id` and `hash`."""

    id: str
    tenant: str
    state: KeyState
    created: str
    revoked: str | None
    rules: dict[str, Any]


class KeyMade(msgspec.Struct, kw_only=True):
    """An API key that was just created. `key` is the secret, which is shown only now."""

    id: str
    tenant: str
    key: str


class KeyCreation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An API key to create. `rules` are the key's settings, without `id` and `hash`."""

    tenant: Identifier
    rules: dict[str, Any] = {}


class Rotation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The replacement of an API key. The old key stays valid for `grace_seconds`."""

    grace_seconds: Annotated[float, Meta(ge=0, le=GRACE_SECONDS_MAX)] = 86_400.0


class KeyExpiry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The expiry of an API key. `expires` is the last day of use (UTC), or a time with its zone."""

    expires: Moment


class Revocation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The API keys to revoke: those in `ids`, or all active ones of `tenant`. A `dry_run` only lists them."""

    ids: Annotated[list[Name], Meta(max_length=IDENTITIES_MAX)] | None = None
    tenant: Identifier | None = None
    dry_run: bool = False


class Revoked(msgspec.Struct, kw_only=True):
    """The API keys that were revoked, or would be. `already` names those of them that were invalid before."""

    ids: list[str]
    already: list[str]
    dry_run: bool


def operations(file_tenants: Callable[[], Collection[str]]) -> list[Operation]:
    """Return the operations on API keys. `file_tenants`: tenants of the settings file, which wins."""
    return [
        Operation(
            method="GET",
            path="/keys",
            role="viewer",
            summary="List API keys, without their secrets.",
            handle=_list,
            response_type=AdminPage,
            query_parameters={**PAGING, "tenant": "Only keys of this tenant."},
        ),
        Operation(
            method="POST",
            path="/keys",
            role="operator",
            summary="Create an API key. Its secret is shown once.",
            handle=_create(file_tenants),
            response_type=KeyMade,
            request_type=KeyCreation,
            status=201,
        ),
        Operation(
            method="POST",
            path="/keys/revoke",
            role="operator",
            summary="Revoke many API keys at once, permanently: all that are named, or none.",
            handle=_revoke,
            response_type=Revoked,
            request_type=Revocation,
        ),
        Operation(
            method="GET",
            path="/keys/{id}",
            role="viewer",
            summary="Show an API key.",
            handle=_show,
            response_type=KeyShown,
        ),
        Operation(
            method="POST",
            path="/keys/{id}/rotate",
            role="operator",
            summary="Replace an API key. The old key stays valid for a grace period.",
            handle=_rotate,
            response_type=KeyMade,
            request_type=Rotation,
            status=201,
        ),
        Operation(
            method="POST",
            path="/keys/{id}/expire",
            role="operator",
            summary="Set the expiry of an API key.",
            handle=_expire,
            response_type=KeyShown,
            request_type=KeyExpiry,
        ),
        Operation(
            method="POST",
            path="/keys/{id}/revoke",
            role="operator",
            summary="Revoke an API key at once, permanently.",
            handle=_revoke_one,
            response_type=KeyShown,
        ),
    ]


async def _list(request: OperationRequest) -> OperationResponse:
    query = request.query_parameters("limit", "after", "tenant")
    limit, tenant = page_limit(query), query.get("tenant")
    where = {"tenant": tenant} if tenant is not None else {}
    rows = await request.store.page("keys", after=query.get("after", ""), limit=limit, **where)
    following = rows[-1]["id"] if len(rows) == limit else None
    return OperationResponse(
        value=AdminPage(
            data=[_shown(read_or_disable(key_from_row, disabled_key, row)) for row in rows], next=following
        )
    )


async def _show(request: OperationRequest) -> OperationResponse:
    request.query_parameters()
    return OperationResponse(value=await _one(request))


def _create(file_tenants: Callable[[], Collection[str]]) -> Handle:
    async def handle(request: OperationRequest) -> OperationResponse:
        body = await request.body(KeyCreation)
        rules = _rules(body.rules)
        if body.tenant in file_tenants():
            raise Problem(
                409,
                f"The tenant {body.tenant!r} is in the settings file, which wins: a key in the database would "
                "be refused. Put the key into the settings file (`radixgate keys new` prints an entry).",
            )
        made = await request.key_lifecycle.create(body.tenant, rules)
        return OperationResponse(value=KeyMade(id=made.id, tenant=body.tenant, key=made.text), status=201)

    return handle


async def _rotate(request: OperationRequest) -> OperationResponse:
    body, old = await request.body(Rotation), await _one(request)
    made = await request.key_lifecycle.rotate(old.id, body.grace_seconds)
    return OperationResponse(value=KeyMade(id=made.id, tenant=old.tenant, key=made.text), status=201)


async def _expire(request: OperationRequest) -> OperationResponse:
    body, old = await request.body(KeyExpiry), await _one(request)
    await request.key_lifecycle.expire(old.id, body.expires)
    return OperationResponse(value=await _one(request))


async def _revoke_one(request: OperationRequest) -> OperationResponse:
    old = await _one(request)
    await request.key_lifecycle.revoke([old.id])
    return OperationResponse(value=await _one(request))


async def _revoke(request: OperationRequest) -> OperationResponse:
    body = await request.body(Revocation)
    if (body.ids is None) == (body.tenant is None):
        raise Problem(400, "Name keys (ids), or all keys of one tenant (tenant).")
    chosen = await request.key_lifecycle.select(body.ids, body.tenant)
    if not body.dry_run:
        await request.key_lifecycle.revoke(chosen.ids)
    return OperationResponse(
        value=Revoked(ids=list(chosen.ids), already=list(chosen.already), dry_run=body.dry_run)
    )


async def _one(request: OperationRequest) -> KeyShown:
    """Return the key that the path names. Raises Problem."""
    row = await request.store.row("keys", request.path_parameter("id"))
    if row is None:
        raise Problem(404, f"There is no key {request.path_parameter('id')[:200]!r}.")
    return _shown(read_or_disable(key_from_row, disabled_key, row))


def _rules(given: Mapping[str, Any]) -> ApiKeySettings:
    """Return the settings of a new key. Raises Problem."""
    for name in KEY_PLACEHOLDER:
        if name in given:
            raise Problem(400, f"$.rules.{name}: the gateway makes this value itself.")
    return OperationRequest.convert({**given, **KEY_PLACEHOLDER}, ApiKeySettings, "$.rules")


def _shown(stored: StoredKey) -> KeyShown:
    rules = msgspec.to_builtins(stored.key, enc_hook=str)
    return KeyShown(
        id=stored.key.id,
        tenant=stored.tenant,
        state=stored.state(time.time()),
        created=Moment.at(stored.created).text,
        revoked=Moment.at(stored.revoked).text if stored.revoked is not None else None,
        rules={name: value for name, value in rules.items() if name not in KEY_PLACEHOLDER},
    )
