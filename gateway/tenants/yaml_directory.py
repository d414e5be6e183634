"""TenantDirectory from the settings file."""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from gateway.quotas.quota import REQUESTS, TOTAL_TOKENS, Limit, Scope
from gateway.settings import Isolation, Settings
from gateway.settings import Plan as PlanSettings
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import HASH_PREFIX, claimed_id, key_digest
from gateway.tenants.tenant import Plan, Tenant
from policies.gcra import Bucket

PERIOD_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
NO_DIGEST = bytes(32)
OPEN_GROUP = "tenant:default"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    digest: bytes
    expires: date | None
    tenant: Tenant


class YamlDirectory:
    """See TenantDirectory. `today`: the date in UTC."""

    def __init__(
        self,
        settings: Settings,
        pepper: bytes,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        self._pepper = pepper
        self._today = today
        self._entries: dict[str, _Entry] = {}
        plans = {plan.name: _plan(plan) for plan in settings.plans}
        for tenant in settings.tenants:
            plan = plans[tenant.plan] if tenant.plan is not None else Plan()
            known = Tenant(
                id=tenant.id,
                organisation=tenant.organisation or tenant.id,
                key_id="",
                plan=plan,
                group=isolation_group(tenant.id, tenant.isolation),
                scopes=(Scope(name=f"tenant:{tenant.id}", limits=plan.limits, concurrency=plan.concurrency),),
            )
            for key in tenant.keys:
                self._entries[key.id] = _Entry(
                    digest=bytes.fromhex(key.hash.removeprefix(HASH_PREFIX)),
                    expires=key.expires,
                    tenant=replace(known, key_id=key.id),
                )

    def by_key(self, presented: str | None) -> Tenant:
        presented = presented or ""
        entry = self._entries.get(claimed_id(presented))
        # Compared also where there is nothing to compare with: an unknown id takes as long as a wrong secret.
        digest = entry.digest if entry is not None else NO_DIGEST
        right = hmac.compare_digest(key_digest(presented, self._pepper), digest)
        if entry is None or not right or (entry.expires is not None and self._today() > entry.expires):
            raise UnknownKey
        return entry.tenant

    def groups(self) -> Iterable[str]:
        return {entry.tenant.group for entry in self._entries.values()}


class OpenDirectory:
    """TenantDirectory of a gateway without tenants, on loopback only: everybody is `default`."""

    def by_key(self, presented: str | None) -> Tenant:
        return Tenant(id="default", organisation="default", key_id="", plan=Plan(), group=OPEN_GROUP)

    def groups(self) -> Iterable[str]:
        return (OPEN_GROUP,)


def _plan(plan: PlanSettings) -> Plan:
    limits = []
    for limit in plan.limits:
        for unit, amount in ((REQUESTS, limit.requests), (TOTAL_TOKENS, limit.total_tokens)):
            if amount is not None:
                bucket = Bucket(amount=amount, period_seconds=PERIOD_SECONDS[limit.per])
                limits.append(Limit(unit=unit, bucket=bucket))
    return Plan(
        name=plan.name,
        limits=tuple(limits),
        concurrency=plan.concurrency,
        allow=plan.models.allow,
        deny=plan.models.deny,
        context_length_max=plan.context_length_max,
    )


def isolation_group(tenant: str, isolation: Isolation) -> str:
    """Whose cache a tenant shares. Names of tenants and groups cannot be confused: each carries its kind."""
    if isolation.mode == "shared":
        return ""
    return f"group:{isolation.group}" if isolation.mode == "group" else f"tenant:{tenant}"
