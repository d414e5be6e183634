"""Keys: listed and shown without what opens them; made and replaced, shown that once; ended one by one or many."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.adminapi.operation import OperationResponse, OperationRequest, Operation, page_limit
from gateway.adminapi.problems import Problem
from gateway.adminapi.resources import LISTING, AdminPage
from gateway.database.rows import KeyState, StoredKey, guarded, key_of, no_key
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.types import Identifier, Moment, Name
from gateway.tenants.key_life import UNMADE

IDENTITIES_MAX = 10_000
GRACE_SECONDS_MAX = 366 * 86_400


class KeyShown(msgspec.Struct, kw_only=True):
    """A key, without what opens it. `rules`: as in the settings, less `id` and `hash`."""

    id: str
    tenant: str
    state: KeyState
    created: str
    revoked: str | None
    rules: dict[str, Any]


class KeyMade(msgspec.Struct, kw_only=True):
    """A key that was just made. `key` is shown now, and never again."""

    id: str
    tenant: str
    key: str


class KeyCreation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key to be made. `rules`: as in the settings, less `id` and `hash`."""

    tenant: Identifier
    rules: dict[str, Any] = {}


class Rotation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`grace_seconds`: how long the old key stays good."""

    grace_seconds: Annotated[float, Meta(ge=0, le=GRACE_SECONDS_MAX)] = 86_400.0


class KeyExpiry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`expires`: last day of use (UTC), or a moment with its zone."""

    expires: Moment


class Revocation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which: `ids`, or all active ones of `tenant`. `dry_run`: only say which."""

    ids: Annotated[list[Name], Meta(max_length=IDENTITIES_MAX)] | None = None
    tenant: Identifier | None = None
    dry_run: bool = False


class Revoked(msgspec.Struct, kw_only=True):
    """`ids`: those that were (or would be) revoked. `already`: of these, those that were of no use before."""

    ids: list[str]
    already: list[str]
    dry_run: bool


def operations() -> list[Operation]:
    return [
        Operation(
            method="GET",
            path="/keys",
            role="viewer",
            does="List keys; never what they are.",
            handle=_list,
            gives=AdminPage,
            parameters={**LISTING, "tenant": "Only this tenant's."},
        ),
        Operation(
            method="POST",
            path="/keys",
            role="operator",
            does="Make a key. It is shown once.",
            handle=_create,
            gives=KeyMade,
            takes=KeyCreation,
            status=201,
        ),
        Operation(
            method="POST",
            path="/keys/revoke",
            role="operator",
            does="KeyExpiry many keys at once and for ever: all that are named, or none.",
            handle=_revoke,
            gives=Revoked,
            takes=Revocation,
        ),
        Operation(
            method="GET", path="/keys/{id}", role="viewer", does="Show one key.", handle=_show, gives=KeyShown
        ),
        Operation(
            method="POST",
            path="/keys/{id}/rotate",
            role="operator",
            does="Make a key in place of another, which stays good for a grace period.",
            handle=_rotate,
            gives=KeyMade,
            takes=Rotation,
            status=201,
        ),
        Operation(
            method="POST",
            path="/keys/{id}/expire",
            role="operator",
            does="Let a key end at a moment.",
            handle=_expire,
            gives=KeyShown,
            takes=KeyExpiry,
        ),
        Operation(
            method="POST",
            path="/keys/{id}/revoke",
            role="operator",
            does="KeyExpiry a key at once and for ever.",
            handle=_revoke_one,
            gives=KeyShown,
        ),
    ]


async def _list(call: OperationRequest) -> OperationResponse:
    asked = call.parameters("limit", "after", "tenant")
    limit, tenant = page_limit(asked.get("limit")), asked.get("tenant")
    where = {"tenant": tenant} if tenant is not None else {}
    rows = await call.store.page("keys", after=asked.get("after", ""), limit=limit, **where)
    following = rows[-1]["id"] if len(rows) == limit else None
    return OperationResponse(value=AdminPage(data=[_shown(guarded(key_of, no_key, row)) for row in rows], next=following))


async def _show(call: OperationRequest) -> OperationResponse:
    call.parameters()
    return OperationResponse(value=await _one(call))


async def _create(call: OperationRequest) -> OperationResponse:
    asked = await call.body(KeyCreation)
    made = await call.life.create(asked.tenant, _rules(asked.rules))
    return OperationResponse(value=KeyMade(id=made.id, tenant=asked.tenant, key=made.text), status=201)


async def _rotate(call: OperationRequest) -> OperationResponse:
    asked, old = await call.body(Rotation), await _one(call)
    made = await call.life.rotate(old.id, asked.grace_seconds)
    return OperationResponse(value=KeyMade(id=made.id, tenant=old.tenant, key=made.text), status=201)


async def _expire(call: OperationRequest) -> OperationResponse:
    asked, old = await call.body(KeyExpiry), await _one(call)
    await call.life.expire(old.id, asked.expires)
    return OperationResponse(value=await _one(call))


async def _revoke_one(call: OperationRequest) -> OperationResponse:
    old = await _one(call)
    await call.life.revoke([old.id])
    return OperationResponse(value=await _one(call))


async def _revoke(call: OperationRequest) -> OperationResponse:
    asked = await call.body(Revocation)
    if (asked.ids is None) == (asked.tenant is None):
        raise Problem(400, "Name keys (ids), or all keys of one tenant (tenant).")
    chosen = await call.life.chosen(asked.ids, asked.tenant)
    if not asked.dry_run:
        await call.life.revoke(chosen.ids)
    return OperationResponse(value=Revoked(ids=list(chosen.ids), already=list(chosen.already), dry_run=asked.dry_run))


async def _one(call: OperationRequest) -> KeyShown:
    row = await call.store.row("keys", call.part("id"))
    if row is None:
        raise Problem(404, f"There is no key {call.part('id')[:200]!r}.")
    return _shown(guarded(key_of, no_key, row))


def _rules(given: Mapping[str, Any]) -> ApiKeySettings:
    """Raises Problem."""
    for name in UNMADE:
        if name in given:
            raise Problem(400, f"$.rules.{name}: is made here, and nowhere else.")
    return OperationRequest.converted({**given, **UNMADE}, ApiKeySettings, "$.rules")


def _shown(stored: StoredKey) -> KeyShown:
    rules = msgspec.to_builtins(stored.key, enc_hook=str)
    return KeyShown(
        id=stored.key.id,
        tenant=stored.tenant,
        state=stored.state(time.time()),
        created=Moment.at(stored.created).text,
        revoked=Moment.at(stored.revoked).text if stored.revoked is not None else None,
        rules={name: value for name, value in rules.items() if name not in UNMADE},
    )
