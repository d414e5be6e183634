"""Tenant: who asks, what it may use, and whose cache it shares."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.quotas.quota import Limit, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a tenant may use. No limits, no concurrency: as much as there is."""

    name: str = "unlimited"
    limits: tuple[Limit, ...] = ()
    concurrency: int | None = None
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    context_length_max: int | None = None

    def allows(self, model: str) -> bool:
        """May this model be used? Deny wins."""
        return any(fnmatchcase(model, pattern) for pattern in self.allow) and not any(
            fnmatchcase(model, pattern) for pattern in self.deny
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant, as one of its keys presents it.

    `scopes`: the accounts that its requests are charged to. `group`: the isolation group; tenants with equal groups
    may hit each other's cached prefixes, and the empty one is shared by everybody who chose so.
    """

    id: str
    organisation: str
    key_id: str
    plan: Plan
    group: str
    scopes: tuple[Scope, ...] = ()
