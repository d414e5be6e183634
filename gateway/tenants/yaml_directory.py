"""TenantDirectory from the settings file."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gateway.domain.tenant import Plan, Tenant
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.tree import Settings
from gateway.tenants.directory import TenantDirectory, UnknownKey
from gateway.tenants.register import Register

OPEN_GROUP = "tenant:default"


def yaml_directory(settings: Settings, pepper: bytes, wall: Callable[[], float] = time.time) -> Register:
    """What the settings say. `wall`: Unix time in seconds."""
    register = Register(pepper, wall)
    for organisation in settings.organisations:
        register.put_organisation(organisation)
    for plan in settings.plans:
        register.put_plan(plan)
    for tenant in settings.tenants:
        register.put_tenant(msgspec.structs.replace(tenant, keys=()))
        for key in tenant.keys:
            register.put_key(tenant.id, key)
    return register


class FileDirectory(TenantDirectory, Protocol):
    """A directory that the settings file has a say in."""

    def restate(self, file: Register) -> None:
        """The file says this now, and what it said before no more."""
        ...


class MayHaveTenants(FileDirectory, Protocol):
    """One that knows whether there is anybody in it."""

    @property
    def has_tenants(self) -> bool: ...


class OpenUntilTenants:
    """TenantDirectory on loopback only: as long as another one has no tenants, everybody is `default`."""

    def __init__(self, inner: MayHaveTenants) -> None:
        self._inner = inner
        self._open = OpenDirectory()
        self._groups = [*self._open.groups()]

    @property
    def asks_for_keys(self) -> bool:
        return self._inner.has_tenants

    def restate(self, file: Register) -> None:
        """See FileDirectory."""
        self._inner.restate(file)

    def by_key(self, presented: str | None) -> Tenant:
        return (self._inner if self._inner.has_tenants else self._open).by_key(presented)

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        return self._inner.by_id(tenant, rules)

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        return (self._inner if self._inner.has_tenants else self._open).by_key_id(tenant, key_id)

    def groups(self) -> Sequence[str]:
        # Everybody's comes first, so that the list only grows.
        self._groups += self._inner.groups()[len(self._groups) - 1 :]
        return self._groups


class OpenDirectory:
    """TenantDirectory of a gateway without tenants, on loopback only: everybody is `default`."""

    asks_for_keys = False

    def by_key(self, presented: str | None) -> Tenant:
        return Tenant(id="default", organisation="default", key_id="", plan=Plan(), group=OPEN_GROUP)

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        raise UnknownKey

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        if (tenant, key_id) != ("default", ""):
            raise UnknownKey
        return self.by_key(None)

    def groups(self) -> Sequence[str]:
        return (OPEN_GROUP,)
