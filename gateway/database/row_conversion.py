"""Conversion of rows to values of the settings' types, and back; a default value is NULL in its row."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from gateway.settings.tenants import (
    ApiKeySettings,
    ModelAccessSettings,
    OrganisationSettings,
    PlanSettings,
    TenantSettings,
)
from gateway.settings.types import Moment, Network

log = logging.getLogger(__name__)

Value = TypeVar("Value", bound=msgspec.Struct)
Made = TypeVar("Made")
DatabaseRow = Mapping[str, Any]

UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError)
"""The errors that a malformed row raises."""

_NO_COLUMN = ("keys",)
"""Fields without a column, since they have rows of their own."""

_JSON = ("limits", "models", "addresses", "scopes", "isolation", "context_lengths", "classes")


KeyState = Literal["active", "ended", "revoked"]


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key with the fields that only the database has; times are Unix times in seconds."""

    tenant: str
    key: ApiKeySettings
    created: float
    revoked: float | None = None

    def active(self, now: float) -> bool:
        """Return whether the key is valid now."""
        return self.state(now) == "active"

    def state(self, now: float) -> KeyState:
        """Return whether the key is active, has ended, or is revoked."""
        if self.revoked is not None:
            return "revoked"
        ends = self.key.expires
        return "active" if not self.key.disabled and (ends is None or ends.seconds > now) else "ended"


def read_or_disable(
    make: Callable[[DatabaseRow], Made], instead: Callable[[DatabaseRow], Made], row: DatabaseRow
) -> Made:
    """Return the value of a row; for a malformed row return the value of `instead`, which allows least.

    So one malformed row does not cause an outage.
    """
    try:
        return make(row)
    except UNREADABLE as err:
        log.error("the row of %r cannot be read: %s", row.get("id", row.get("name")), err)
        return instead(row)


def organisation_from_row(row: DatabaseRow) -> OrganisationSettings:
    """Return the organisation of a row."""
    return _value(OrganisationSettings, row)


def plan_from_row(row: DatabaseRow) -> PlanSettings:
    """Return the plan of a row."""
    return _value(PlanSettings, row)


def tenant_from_row(row: DatabaseRow) -> TenantSettings:
    """Return the tenant of a row."""
    return _value(TenantSettings, row)


def key_from_row(row: DatabaseRow) -> StoredKey:
    """Return the key of a row."""
    expires, revoked = row["expires_ms"], row["revoked_ms"]
    key = _value(ApiKeySettings, row)
    if expires is not None:
        key = msgspec.structs.replace(key, expires=Moment.at(expires / 1000))
    return StoredKey(
        tenant=row["tenant"],
        key=key,
        created=row["created_ms"] / 1000,
        revoked=revoked / 1000 if revoked is not None else None,
    )


def disabled_organisation(row: DatabaseRow) -> OrganisationSettings:
    """Return a disabled organisation in place of one that cannot be read."""
    return OrganisationSettings(id=row["id"], disabled=True)


def empty_plan(row: DatabaseRow) -> PlanSettings:
    """Return a plan without models in place of one that cannot be read."""
    return PlanSettings(name=row["name"], models=ModelAccessSettings(allow=()))


def disabled_tenant(row: DatabaseRow) -> TenantSettings:
    """Return a disabled tenant in place of one that cannot be read."""
    return TenantSettings(id=row["id"], disabled=True)


def disabled_key(row: DatabaseRow) -> StoredKey:
    """Return a disabled key in place of one that cannot be read."""
    key = ApiKeySettings(id=row["id"], hash=row["hash"], disabled=True)
    return StoredKey(tenant=row["tenant"], key=key, created=0.0)


def settings_row(value: msgspec.Struct) -> dict[str, Any]:
    """Return the columns of an organisation, a plan or a tenant."""
    return {name: _column(value, name) for name in value.__struct_fields__ if name not in _NO_COLUMN}


def key_row(stored: StoredKey) -> dict[str, Any]:
    """Return the columns of a key."""
    expires = stored.key.expires
    names = (name for name in ApiKeySettings.__struct_fields__ if name not in ("expires", *_NO_COLUMN))
    columns = {name: _column(stored.key, name) for name in names}
    return {
        **columns,
        "tenant": stored.tenant,
        "created_ms": round(stored.created * 1000),
        "expires_ms": round(expires.seconds * 1000) if expires is not None else None,
        "revoked_ms": round(stored.revoked * 1000) if stored.revoked is not None else None,
    }


def _value(kind: type[Value], row: DatabaseRow) -> Value:
    fields: dict[str, Any] = {}
    for name, written in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        column = row.get(name)
        if column is not None:
            fields[written] = msgspec.json.decode(column) if name in _JSON else column
    return msgspec.convert(fields, kind, dec_hook=lambda wanted, given: wanted(given))


def _column(value: msgspec.Struct, name: str) -> Any:
    inner = getattr(value, name)
    if name not in _JSON:
        return inner
    (field,) = (f for f in msgspec.structs.fields(value) if f.name == name)
    default = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return None if inner == default else msgspec.json.encode(inner, enc_hook=_text).decode()


def _text(value: Any) -> str:
    if isinstance(value, Moment | Network):
        return value.text
    raise NotImplementedError
