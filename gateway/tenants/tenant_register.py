"""TenantRegister: organisations, plans, tenants and keys in memory; finds the tenant of a key.

    presented --public id------> entry --digest equal?--> tenant, assembled when it is first needed
        +------digest----------> entry
        +------plain SHA-256---> entry

A key that this gateway made contains its id; a key of any other form is found by the digest of the whole text, or,
if it was taken over from another gateway, by its plain SHA-256. A tenant is assembled from several entries. When
one of these changes, all assembled tenants are dropped, and assembled again when they are next requested.
"""

import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from hashlib import sha256
from math import inf
from typing import Any

import msgspec

from gateway.domain.tenant import ContextBounds, ModelAccess, Plan, Tenant
from gateway.quotas.limit import Scope
from gateway.settings.tenants import (
    ApiKeySettings,
    ModelAccessSettings,
    OrganisationSettings,
    PlanSettings,
    TenantSettings,
)
from gateway.tenants.directory import UnknownKey
from gateway.tenants.isolation_group import isolation_group
from gateway.tenants.keys import HASH_PREFIX, PLAIN_HASH_PREFIX, KeyDigests, claimed_id
from gateway.tenants.limits import limits_at, next_end, override_limits
from gateway.tenants.sealed_tenants import KnownKey, KnownTenants

Names = dict[str, set[str]]
"""Names by kind: `organisations`, `plans`, `tenants` and `keys`."""


class KeyEntry(msgspec.Struct, kw_only=True):
    """One API key in the register, with the tenant that was last assembled for it."""

    key: ApiKeySettings
    tenant_id: str
    digest: bytes
    plain: bool  # the digest is SHA-256 without the pepper
    expires: float  # Unix time
    tenant: Tenant | None = None
    generation: int = 0  # of the register when `tenant` was assembled
    good_until: float = inf  # Unix time at which a limit of `tenant` ends


UNKNOWN_KEY = KeyEntry(
    key=ApiKeySettings(id="unknown", hash=HASH_PREFIX + "0" * 64),
    tenant_id="",
    digest=bytes(32),
    plain=False,
    expires=0.0,
)
"""The entry with which an unknown key is compared; it has expired, in case its preimage is ever found."""


class TenantRegister:
    """Organisations, plans, tenants and keys in memory, as a TenantDirectory; `wall` is Unix time in seconds."""

    def __init__(self, pepper: bytes, wall: Callable[[], float] = time.time) -> None:
        self._digests = KeyDigests(pepper)
        self._wall = wall
        self._generation = 0
        self._organisations: dict[str, OrganisationSettings] = {}
        self._plans: dict[str, PlanSettings] = {}
        self._tenants: dict[str, TenantSettings] = {}
        self._entries: dict[str, KeyEntry] = {}
        self._by_digest: dict[bytes, KeyEntry] = {}
        self._by_plain_digest: dict[bytes, KeyEntry] = {}
        self._groups: dict[str, None] = {}
        self._group_list: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def requires_keys(self) -> bool:
        """Always true."""
        return True

    @property
    def has_tenants(self) -> bool:
        """Whether there is any tenant."""
        return bool(self._tenants)

    def names(self) -> Names:
        """Return all names in the register, by kind."""
        return {
            "organisations": set(self._organisations),
            "plans": set(self._plans),
            "tenants": set(self._tenants),
            "keys": set(self._entries),
        }

    def known(self, read_at: float, without: Names) -> KnownTenants:
        """Return the content of the register without these names; `read_at` is the Unix time of the reading."""
        return KnownTenants(
            read_at=read_at,
            organisations=tuple(
                v for k, v in self._organisations.items() if k not in without["organisations"]
            ),
            plans=tuple(v for k, v in self._plans.items() if k not in without["plans"]),
            tenants=tuple(v for k, v in self._tenants.items() if k not in without["tenants"]),
            keys=tuple(
                KnownKey(e.tenant_id, e.key) for k, e in self._entries.items() if k not in without["keys"]
            ),
        )

    def put_known(self, known: KnownTenants, without: Names) -> None:
        """Add the content of a sealed copy, without these names."""
        for organisation in known.organisations:
            if organisation.id not in without["organisations"]:
                self.put_organisation(organisation)
        for plan in known.plans:
            if plan.name not in without["plans"]:
                self.put_plan(plan)
        for tenant in known.tenants:
            if tenant.id not in without["tenants"]:
                self.put_tenant(tenant)
        for each in known.keys:
            if each.key.id not in without["keys"] and each.tenant not in without["tenants"]:
                self.put_key(each.tenant, each.key)

    def by_key(self, presented: str | None) -> Tenant:
        """Return the tenant of a presented key. Raises UnknownKey."""
        return self.tenant_of(self.valid_entry(presented))

    def valid_entry(self, presented: str | None) -> KeyEntry:
        """Return the entry of a presented key if its digest is equal and it has not expired. Raises UnknownKey."""
        text = presented or ""
        digest = self._digests.of(text)
        entry = self._entries.get(claimed_id(text)) or self._by_digest.get(digest) or UNKNOWN_KEY
        if not hmac.compare_digest(digest, entry.digest):
            # Also computed if it cannot succeed, so that an unknown id takes as long as a wrong secret.
            plain = sha256(text.encode("utf-8", "surrogatepass")).digest()
            entry = self._by_plain_digest.get(plain, UNKNOWN_KEY)
            if not hmac.compare_digest(plain, entry.digest):
                raise UnknownKey
        if entry.expires <= self._wall():
            raise UnknownKey
        return entry

    def tenant_of(self, entry: KeyEntry) -> Tenant:
        """Return the tenant with the settings of this key.

        Raises UnknownKey if the key's tenant no longer exists.
        """
        if entry.tenant is None or entry.generation != self._generation or entry.good_until <= self._wall():
            entry.tenant, entry.good_until = self._assemble(entry, self._wall())
            entry.generation = self._generation
        return entry.tenant

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        """Return the tenant with that id, with `rules` in place of a key's settings. Raises UnknownKey."""
        entry = KeyEntry(key=rules, tenant_id=tenant, digest=b"", plain=False, expires=float("inf"))
        return self._assemble(entry, self._wall())[0]

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        """Return the tenant of one of its keys, found by id. Raises UnknownKey."""
        return self.tenant_of(self.entry_of(tenant, key_id))

    def entry_of(self, tenant: str, key_id: str) -> KeyEntry:
        """Return the entry of a tenant's key that is valid now. Raises UnknownKey."""
        entry = self._entries.get(key_id)
        if entry is None or entry.tenant_id != tenant or entry.expires <= self._wall():
            raise UnknownKey
        return entry

    def groups(self) -> Sequence[str]:
        """Return the isolation groups of all tenants that were ever known."""
        return self._group_list

    def drop(self, names: Mapping[str, Iterable[str]]) -> None:
        """Remove the entries with these names, by kind; see `names`."""
        for key in names.get("keys", ()):
            self.drop_key(key)
        known: tuple[tuple[str, dict[str, Any]], ...] = (
            ("organisations", self._organisations),
            ("plans", self._plans),
            ("tenants", self._tenants),
        )
        for kind, there in known:
            for name in names.get(kind, ()):
                there.pop(name, None)
        self._generation += 1

    def put_all(self, other: "TenantRegister") -> None:
        """Add all entries of the other register."""
        for organisation in other._organisations.values():
            self.put_organisation(organisation)
        for plan in other._plans.values():
            self.put_plan(plan)
        for tenant in other._tenants.values():
            self.put_tenant(tenant)
        for entry in other._entries.values():
            self.put_key(entry.tenant_id, entry.key)

    def reconfigure(self, file: "TenantRegister") -> None:
        """Replace the whole content by that of the register of the settings file."""
        self.drop(subtract_names(self.names(), file.names()))
        self.put_all(file)

    def keys_of(self, tenants: Set[str]) -> set[str]:
        """Return the ids of the keys of these tenants."""
        return {name for name, entry in self._entries.items() if entry.tenant_id in tenants}

    def put_organisation(self, organisation: OrganisationSettings) -> None:
        """Add or replace an organisation."""
        self._organisations[organisation.id] = organisation
        self._generation += 1

    def put_plan(self, plan: PlanSettings) -> None:
        """Add or replace a plan."""
        self._plans[plan.name] = plan
        self._generation += 1

    def put_tenant(self, tenant: TenantSettings) -> None:
        """Add or replace a tenant without its keys, which are put one by one."""
        self._tenants[tenant.id] = tenant
        group = isolation_group(tenant.id, tenant.isolation)
        if group not in self._groups:
            self._groups[group] = None
            self._group_list.append(group)
        self._generation += 1

    def put_key(self, tenant_id: str, key: ApiKeySettings) -> None:
        """Add or replace a key; a disabled key is removed."""
        self.drop_key(key.id)
        if key.disabled:
            return
        plain = key.hash.startswith(PLAIN_HASH_PREFIX)
        entry = KeyEntry(
            key=key,
            tenant_id=tenant_id,
            digest=bytes.fromhex(key.hash.removeprefix(PLAIN_HASH_PREFIX if plain else HASH_PREFIX)),
            plain=plain,
            expires=key.expires.seconds if key.expires is not None else float("inf"),
        )
        self._entries[key.id] = entry
        (self._by_plain_digest if plain else self._by_digest)[entry.digest] = entry

    def drop_key(self, key_id: str) -> None:
        """Remove a key, which is unknown from then on."""
        entry = self._entries.pop(key_id, None)
        if entry is not None:
            by_digest = self._by_plain_digest if entry.plain else self._by_digest
            if by_digest.get(entry.digest) is entry:
                del by_digest[entry.digest]

    def _assemble(self, entry: KeyEntry, now: float) -> tuple[Tenant, float]:
        """Return the tenant, and the Unix time at which its next limit ends.

        A tenant's own limit replaces that of its plan of the same kind.
        """
        key, tenant = entry.key, self._tenants.get(entry.tenant_id)
        if tenant is None:
            raise UnknownKey
        organisation_id = tenant.organisation or tenant.id
        organisation = self._organisations.get(organisation_id)
        plan = self._plans.get(tenant.plan, NOTHING_ALLOWED) if tenant.plan is not None else UNLIMITED
        own = limits_at(now, tenant.limits, tenant.concurrency)
        limits = override_limits(limits_at(now, plan.limits, plan.concurrency), own)
        scopes = _scopes(now, organisation, Scope(name=f"tenant:{tenant.id}", limits=limits), key)
        access = (_access(tenant.models), _access(key.models))
        found = Tenant(
            id=tenant.id,
            organisation=organisation_id,
            key_id=key.id,
            plan=Plan(
                name=plan.name,
                limits=limits,
                models=_access(plan.models),
                weight=plan.weight,
                classes=plan.classes,
            ),
            group=isolation_group(tenant.id, tenant.isolation),
            scopes=scopes,
            model_access=tuple(level for level in access if level != ModelAccess()),
            key_scopes=frozenset(key.scopes),
            networks=tuple(networks for networks in (tenant.addresses, key.addresses) if networks),
            disabled=tenant.disabled or (organisation is not None and organisation.disabled),
            context_bounds=_context_bounds(tenant, plan),
            refused_without_redis=(tenant.without_redis or plan.without_redis) == "closed",
            cache_blocks_max=tenant.cache_blocks_max or plan.cache_blocks_max,
            service_class=key.service_class,
            may_overflow=(tenant.overflow or plan.overflow) == "allow",
        )
        of_organisation = organisation.limits if organisation is not None else ()
        return found, next_end(now, tenant.limits, plan.limits, key.limits, of_organisation)


def subtract_names(names: Names, others: Names) -> Names:
    """Return the names that are not among the others."""
    return {kind: found - others[kind] for kind, found in names.items()}


UNLIMITED = PlanSettings(name="unlimited")
NOTHING_ALLOWED = PlanSettings(name="missing", models=ModelAccessSettings(allow=()))
"""The plan that is used if a tenant's plan does not exist, since a lost row must not lift all limits."""


def _scopes(
    now: float, organisation: OrganisationSettings | None, tenant: Scope, key: ApiKeySettings
) -> tuple[Scope, ...]:
    """Return the accounts whose limits all hold for a request: of its organisation, its tenant and its key."""
    scopes = [tenant]
    if organisation is not None and (organisation.limits or organisation.concurrency):
        shared = limits_at(now, organisation.limits, organisation.concurrency)
        scopes.insert(0, Scope(name=f"organisation:{organisation.id}", limits=shared))
    if key.limits or key.concurrency:
        name = f"key:{key.family or key.id}"
        scopes.append(Scope(name=name, limits=limits_at(now, key.limits, key.concurrency)))
    return tuple(scopes)


def _context_bounds(tenant: TenantSettings, plan: PlanSettings) -> ContextBounds:
    lengths = tenant.context_lengths or plan.context_lengths
    return ContextBounds(
        tokens_max=tenant.context_length_max or plan.context_length_max,
        by_model_patterns=tuple((bound.models, bound.max) for bound in lengths),
    )


def _access(models: ModelAccessSettings) -> ModelAccess:
    return ModelAccess(allow=models.allow, deny=models.deny)
