"""Tenant: who asks, what it may use, and whose cache it shares."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.quotas.limit import Limit, Scope
from gateway.settings.types import Address, Network

INFERENCE, USAGE, ADMIN = "inference", "usage", "admin"
"""What a key may be used for."""

SUBJECT_PREFIX = "token-"
"""What stands in a key's place begins with this, where somebody has presented an issuer's token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which models may be used: those that a pattern of `allow` has and none of `deny`."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    def allows(self, model: str) -> bool:
        """May this model be used? Deny wins."""
        if self.allow == ("*",) and not self.deny:
            return True
        return _allows(self.allow, self.deny, model)


@lru_cache(maxsize=4096)
def _allows(allow: tuple[str, ...], deny: tuple[str, ...], model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in allow) and not any(
        fnmatchcase(model, pattern) for pattern in deny
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBounds:
    """How long prompt and answer may be together: of all models, and of those of these patterns."""

    longest: int | None = None
    by_models: tuple[tuple[tuple[str, ...], int], ...] = ()

    def of(self, model: str) -> int | None:
        """The least that holds for this model; None for no bound."""
        if not self.by_models:
            return self.longest
        bounds = [longest for patterns, longest in self.by_models if _allows(patterns, (), model)]
        return min([*bounds, *([self.longest] if self.longest is not None else [])], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a tenant may use. No limits: as much as there is. `weight`: share in the queue. `classes`:
    service classes that it may have, the first by default; none: all."""

    name: str = "unlimited"
    limits: tuple[Limit, ...] = ()
    models: Access = Access()
    weight: float = 1.0
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant, as one of its keys presents it.

    `scopes`: the accounts that its requests are charged to, the widest first: organisation, tenant, key. `group`:
    the isolation group; tenants with equal groups may hit each other's cached prefixes, and the empty one is shared
    by everybody who chose so. `access`: what tenant and key say of models, besides the plan. `may`: what the key is
    for. `networks`: every one of these sets has to have the caller's address in it. `closed`: it is refused while
    quotas cannot be decided together. `cache_blocks_max`: of its group, in the index. `service_class`: the key's.
    `overflows`: its prompts may go to providers outside.
    """

    id: str
    organisation: str
    key_id: str
    plan: Plan
    group: str
    scopes: tuple[Scope, ...] = ()
    access: tuple[Access, ...] = ()
    may: frozenset[str] = frozenset({INFERENCE, USAGE})
    networks: tuple[tuple[Network, ...], ...] = ()
    disabled: bool = False
    context: ContextBounds = ContextBounds()
    closed: bool = False
    cache_blocks_max: int | None = None
    service_class: str | None = None
    overflows: bool = False

    def allows(self, model: str) -> bool:
        """Return whether this model may be used: plan, tenant and key all have to allow it."""
        for level in self.access:
            if not level.allows(model):
                return False
        return self.plan.models.allows(model)

    def allows_from(self, address: Address | None) -> bool:
        """May it ask from there? An address that is not known is in no set."""
        return all(
            address is not None and any(address in network for network in networks)
            for networks in self.networks
        )
