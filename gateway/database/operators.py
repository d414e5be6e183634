"""Operators of the admin API: their tokens and roles, as rows of the database."""

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from gateway.settings.token_issuers import Role

ROLES: tuple[Role, ...] = get_args(Role)


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """A token of the admin API; times are Unix times in seconds."""

    id: str
    name: str
    role: Role
    hash: str  # made as for keys
    created: float
    expires: float | None = None
    revoked: float | None = None

    def active(self, now: float) -> bool:
        """Return whether the token is valid now."""
        return self.revoked is None and (self.expires is None or self.expires > now)


def operator_from_row(row: Mapping[str, Any]) -> Operator:
    """Return the operator of a row. Raises msgspec.ValidationError for a malformed row."""
    times = {name: _seconds(row[f"{name}_ms"]) for name in ("created", "expires", "revoked")}
    return msgspec.convert(
        {**{name: row[name] for name in ("id", "name", "role", "hash")}, **times}, Operator
    )


def operator_row(operator: Operator) -> dict[str, Any]:
    """Return the columns of an operator."""
    return {
        "id": operator.id,
        "name": operator.name,
        "role": operator.role,
        "hash": operator.hash,
        "created_ms": _ms(operator.created),
        "expires_ms": _ms(operator.expires),
        "revoked_ms": _ms(operator.revoked),
    }


def _ms(seconds: float | None) -> int | None:
    return round(seconds * 1000) if seconds is not None else None


def _seconds(ms: int | None) -> float | None:
    return ms / 1000 if ms is not None else None
