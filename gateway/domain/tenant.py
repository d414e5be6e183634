"""A tenant as one of its API keys presents it: plan, permissions, and the group that it shares its cache with."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.quotas.limit import Limit, Scope
from gateway.settings.types import Address, Network

INFERENCE, USAGE, ADMIN = "inference", "usage", "admin"
"""The scopes of an API key: inference, reading usage, and the admin API."""

SUBJECT_PREFIX = "token-"
"""Prefix of the key id of a request that presented a token of an issuer in place of an API key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """The models that may be used: those that match a pattern of `allow` and none of `deny`."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    def allows(self, model: str) -> bool:
        """Return whether this model may be used; a match in `deny` wins."""
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
    """Bounds on the tokens that prompt and answer may have together, below those of the models themselves."""

    tokens_max: int | None = None
    """The bound for all models; None for no bound."""
    by_model_patterns: tuple[tuple[tuple[str, ...], int], ...] = ()
    """Bounds for the models that match one of the patterns."""

    def tokens_max_of(self, model: str) -> int | None:
        """Return the smallest bound that applies to this model; None for no bound."""
        if not self.by_model_patterns:
            return self.tokens_max
        bounds = [bound for patterns, bound in self.by_model_patterns if _allows(patterns, (), model)]
        return min([*bounds, *([self.tokens_max] if self.tokens_max is not None else [])], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a tenant may use; the default plan sets no limits."""

    name: str = "unlimited"
    limits: tuple[Limit, ...] = ()
    models: ModelAccess = ModelAccess()
    weight: float = 1.0
    """The tenant's share in the queue, relative to the weights of other tenants."""
    classes: tuple[str, ...] = ()
    """The service classes that the tenant may request, the default one first; empty for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant, as one of its keys presents it."""

    id: str
    organisation: str
    key_id: str
    plan: Plan
    group: str
    """The isolation group: tenants of one group may hit each other's cached prefixes. The tenants that chose to
    share their cache with all others have the empty group."""
    scopes: tuple[Scope, ...] = ()
    """The quota scopes that requests are charged to, the widest first: organisation, tenant, key."""
    model_access: tuple[ModelAccess, ...] = ()
    """The models that tenant and key allow, besides the plan."""
    key_scopes: frozenset[str] = frozenset({INFERENCE, USAGE})
    """What the key may be used for."""
    networks: tuple[tuple[Network, ...], ...] = ()
    """Sets of networks; the client's address has to be in each set."""
    disabled: bool = False
    context_bounds: ContextBounds = ContextBounds()
    refused_without_redis: bool = False
    """Whether requests are refused while quotas cannot be checked together with the other gateways."""
    cache_blocks_max: int | None = None
    """Blocks that the isolation group may have in the prefix index; None for no bound."""
    service_class: str | None = None
    """The default service class of the key."""
    may_overflow: bool = False
    """Whether prompts may go to external providers."""

    def allows(self, model: str) -> bool:
        """Return whether this model may be used: plan, tenant and key all have to allow it."""
        for access in self.model_access:
            if not access.allows(model):
                return False
        return self.plan.models.allows(model)

    def allows_from(self, address: Address | None) -> bool:
        """Return whether the key may be used from an address; an unknown address is in no network."""
        return all(
            address is not None and any(address in network for network in networks)
            for networks in self.networks
        )
