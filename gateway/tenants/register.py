"""Register: organisations, plans, tenants and keys in memory, and the tenant that a key stands for.

    presented --public id--> entry --digest equal?--> tenant, put together when it is first asked for
        +------digest------> entry

A key of our own carries its id; a key of any other shape is found by the digest of the whole of it. What a tenant
is put together from may change: then all that was put together is forgotten, and made again when it is asked for.
"""

import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from hashlib import sha256
from math import inf
from typing import Any

import msgspec

from gateway.domain.tenant import Access, ContextBounds, Plan, Tenant
from gateway.quotas.limit import Scope
from gateway.settings.tenants import (
    ApiKeySettings,
    IsolationSettings,
    ModelAccessSettings,
    OrganisationSettings,
    PlanSettings,
    TenantSettings,
)
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import HASH_PREFIX, PLAIN_HASH_PREFIX, claimed_id, key_digest
from gateway.tenants.limits import in_place_of, limits_at, next_end

Names = dict[str, set[str]]
"""Of organisations, plans, tenants and keys, by these words."""


class Entry(msgspec.Struct, kw_only=True):
    """One key. `plain`: its digest is SHA-256 without the pepper. `tenant`: put together under `generation`, and
    good until a limit of it ends."""

    key: ApiKeySettings
    tenant_id: str
    digest: bytes
    plain: bool
    expires: float
    tenant: Tenant | None = None
    generation: int = 0
    good_until: float = inf


NOBODYS = Entry(
    key=ApiKeySettings(id="nobodys", hash=HASH_PREFIX + "0" * 64),
    tenant_id="",
    digest=bytes(32),
    plain=False,
    expires=0.0,
)
"""What an unknown key is compared with. It has expired, should anybody ever find its preimage."""


class Register:
    """See TenantDirectory. `wall`: Unix time in seconds."""

    def __init__(self, pepper: bytes, wall: Callable[[], float] = time.time) -> None:
        self._pepper = pepper
        self._wall = wall
        self._generation = 0
        self._organisations: dict[str, OrganisationSettings] = {}
        self._plans: dict[str, PlanSettings] = {}
        self._tenants: dict[str, TenantSettings] = {}
        self._entries: dict[str, Entry] = {}
        self._by_digest: dict[bytes, Entry] = {}
        self._by_plain_digest: dict[bytes, Entry] = {}
        self._groups: dict[str, None] = {}
        self._group_list: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def asks_for_keys(self) -> bool:
        return True

    @property
    def has_tenants(self) -> bool:
        return bool(self._tenants)

    def names(self) -> Names:
        """What there is now, of each kind."""
        return {
            "organisations": set(self._organisations),
            "plans": set(self._plans),
            "tenants": set(self._tenants),
            "keys": set(self._entries),
        }

    def by_key(self, presented: str | None) -> Tenant:
        return self.tenant_of(self.entry(presented))

    def entry(self, presented: str | None) -> Entry:
        """What is known of a key that may be used now. Raises UnknownKey."""
        text = presented or ""
        digest = key_digest(text, self._pepper)
        entry = self._entries.get(claimed_id(text)) or self._by_digest.get(digest) or NOBODYS
        if not hmac.compare_digest(digest, entry.digest):
            # Done also where nothing can come of it: an unknown id takes as long as a wrong secret.
            plain = sha256(text.encode("utf-8", "surrogatepass")).digest()
            entry = self._by_plain_digest.get(plain, NOBODYS)
            if not hmac.compare_digest(plain, entry.digest):
                raise UnknownKey
        if entry.expires <= self._wall():
            raise UnknownKey
        return entry

    def tenant_of(self, entry: Entry) -> Tenant:
        """The tenant as this key presents it. Raises UnknownKey for one whose tenant has gone."""
        if entry.tenant is None or entry.generation != self._generation or entry.good_until <= self._wall():
            entry.tenant, entry.good_until = self._put_together(entry, self._wall())
            entry.generation = self._generation
        return entry.tenant

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        entry = Entry(key=rules, tenant_id=tenant, digest=b"", plain=False, expires=float("inf"))
        return self._put_together(entry, self._wall())[0]

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        return self.tenant_of(self.entry_of(tenant, key_id))

    def entry_of(self, tenant: str, key_id: str) -> Entry:
        """What is known of a tenant's key that may be used now. Raises UnknownKey."""
        entry = self._entries.get(key_id)
        if entry is None or entry.tenant_id != tenant or entry.expires <= self._wall():
            raise UnknownKey
        return entry

    def groups(self) -> Sequence[str]:
        return self._group_list

    def drop(self, names: Mapping[str, Iterable[str]]) -> None:
        """These are not there any more; see `names`."""
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

    def put_all(self, other: "Register") -> None:
        """Everything that is in the other one."""
        for organisation in other._organisations.values():
            self.put_organisation(organisation)
        for plan in other._plans.values():
            self.put_plan(plan)
        for tenant in other._tenants.values():
            self.put_tenant(tenant)
        for entry in other._entries.values():
            self.put_key(entry.tenant_id, entry.key)

    def restate(self, file: "Register") -> None:
        """The settings file says this now, and all that is here is the file's."""
        self.drop(apart(self.names(), file.names()))
        self.put_all(file)

    def keys_of(self, tenants: Set[str]) -> set[str]:
        """Ids of the keys of these tenants."""
        return {name for name, entry in self._entries.items() if entry.tenant_id in tenants}

    def put_organisation(self, organisation: OrganisationSettings) -> None:
        self._organisations[organisation.id] = organisation
        self._generation += 1

    def put_plan(self, plan: PlanSettings) -> None:
        self._plans[plan.name] = plan
        self._generation += 1

    def put_tenant(self, tenant: TenantSettings) -> None:
        """Its keys are put one by one."""
        self._tenants[tenant.id] = tenant
        group = isolation_group(tenant.id, tenant.isolation)
        if group not in self._groups:
            self._groups[group] = None
            self._group_list.append(group)
        self._generation += 1

    def put_key(self, tenant_id: str, key: ApiKeySettings) -> None:
        """In place of the key of that id, if there is one. A disabled one is forgotten."""
        self.drop_key(key.id)
        if key.disabled:
            return
        plain = key.hash.startswith(PLAIN_HASH_PREFIX)
        entry = Entry(
            key=key,
            tenant_id=tenant_id,
            digest=bytes.fromhex(key.hash.removeprefix(PLAIN_HASH_PREFIX if plain else HASH_PREFIX)),
            plain=plain,
            expires=key.expires.seconds if key.expires is not None else float("inf"),
        )
        self._entries[key.id] = entry
        (self._by_plain_digest if plain else self._by_digest)[entry.digest] = entry

    def drop_key(self, key_id: str) -> None:
        """It opens nothing any more."""
        entry = self._entries.pop(key_id, None)
        if entry is not None:
            by_digest = self._by_plain_digest if entry.plain else self._by_digest
            if by_digest.get(entry.digest) is entry:
                del by_digest[entry.digest]

    def _put_together(self, entry: Entry, now: float) -> tuple[Tenant, float]:
        """The tenant, and the Unix time until which it stays so by itself."""
        key, tenant = entry.key, self._tenants.get(entry.tenant_id)
        if tenant is None:
            raise UnknownKey
        organisation_id = tenant.organisation or tenant.id
        organisation = self._organisations.get(organisation_id)
        plan = self._plans.get(tenant.plan, NOTHING_ALLOWED) if tenant.plan is not None else UNLIMITED
        own = limits_at(now, tenant.limits, tenant.concurrency)
        limits = in_place_of(limits_at(now, plan.limits, plan.concurrency), own)
        scopes = [Scope(name=f"tenant:{tenant.id}", limits=limits)]
        if organisation is not None and (organisation.limits or organisation.concurrency):
            shared = limits_at(now, organisation.limits, organisation.concurrency)
            scopes.insert(0, Scope(name=f"organisation:{organisation_id}", limits=shared))
        if key.limits or key.concurrency:
            name = f"key:{key.family or key.id}"
            scopes.append(Scope(name=name, limits=limits_at(now, key.limits, key.concurrency)))
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
            scopes=tuple(scopes),
            access=tuple(level for level in access if level != Access()),
            may=frozenset(key.scopes),
            networks=tuple(networks for networks in (tenant.addresses, key.addresses) if networks),
            disabled=tenant.disabled or (organisation is not None and organisation.disabled),
            context=_context(tenant, plan),
            closed=(tenant.without_redis or plan.without_redis) == "closed",
            cache_blocks_max=tenant.cache_blocks_max or plan.cache_blocks_max,
            service_class=key.service_class,
            overflows=(tenant.overflow or plan.overflow) == "allow",
        )
        of_all = organisation.limits if organisation is not None else ()
        return found, next_end(now, tenant.limits, plan.limits, key.limits, of_all)


def apart(names: Names, others: Names) -> Names:
    """Of these names, those that are not among the others."""
    return {kind: found - others[kind] for kind, found in names.items()}


UNLIMITED = PlanSettings(name="unlimited")
NOTHING_ALLOWED = PlanSettings(name="missing", models=ModelAccessSettings(allow=()))
"""In place of a plan that is not there: no limits must not come of a lost row."""


def _context(tenant: TenantSettings, plan: PlanSettings) -> ContextBounds:
    lengths = tenant.context_lengths or plan.context_lengths
    return ContextBounds(
        longest=tenant.context_length_max or plan.context_length_max,
        by_models=tuple((bound.models, bound.max) for bound in lengths),
    )


def isolation_group(tenant: str, isolation: IsolationSettings) -> str:
    """Whose cache a tenant shares. Names of tenants and groups cannot be confused: each carries its kind."""
    if isolation.mode == "shared":
        return ""
    return f"group:{isolation.group}" if isolation.mode == "group" else f"tenant:{tenant}"


def _access(models: ModelAccessSettings) -> Access:
    return Access(allow=models.allow, deny=models.deny)
