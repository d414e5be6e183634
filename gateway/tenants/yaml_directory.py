"""Tenant directories of the settings file, and of a gateway on loopback without any tenants."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gateway.domain.tenant import Plan, Tenant
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.tree import Settings
from gateway.tenants.directory import DirectoryUnavailable, TenantDirectory, UnknownKey
from gateway.tenants.tenant_register import TenantRegister

OPEN_GROUP = "tenant:default"


def register_from_settings(
    settings: Settings, pepper: bytes, wall: Callable[[], float] = time.time
) -> TenantRegister:
    """Return a register of the tenants and keys in the settings; `wall` is Unix time in seconds."""
    register = TenantRegister(pepper, wall)
    add_settings(register, settings)
    return register


def add_settings(register: TenantRegister, settings: Settings) -> None:
    """Add the organisations, plans, tenants and keys in the settings to a register."""
    for organisation in settings.organisations:
        register.put_organisation(organisation)
    for plan in settings.plans:
        register.put_plan(plan)
    for tenant in settings.tenants:
        register.put_tenant(msgspec.structs.replace(tenant, keys=()))
        for key in tenant.keys:
            register.put_key(tenant.id, key)


class ReloadableDirectory(TenantDirectory, Protocol):
    """A tenant directory that follows changes of the settings file."""

    def reconfigure(self, file: TenantRegister) -> None:
        """Replace the content of the settings file by this register."""
        ...


class MayHaveTenants(ReloadableDirectory, Protocol):
    """A directory of the settings file that may be empty."""

    @property
    def has_tenants(self) -> bool:
        """Whether there is any tenant."""
        ...


class OpenUntilTenants:
    """A directory for loopback only: while `inner` has no tenants, every client is the tenant `default`."""

    def __init__(self, inner: MayHaveTenants) -> None:
        self._inner = inner
        self._open = OpenDirectory()
        self._groups = [*self._open.groups()]

    @property
    def requires_keys(self) -> bool:
        """Whether there is any tenant."""
        return self._inner.has_tenants

    def reconfigure(self, file: TenantRegister) -> None:
        """Replace the content of the settings file by this register."""
        self._inner.reconfigure(file)

    def by_key(self, presented: str | None) -> Tenant:
        """Return the tenant of a presented key, or `default`. Raises UnknownKey, DirectoryUnavailable."""
        try:
            return self._inner.by_key(presented)
        except (UnknownKey, DirectoryUnavailable):
            # Checked only after a failure, since the key of a served request belongs to a tenant.
            if self._inner.has_tenants:
                raise
        return self._open.by_key(presented)

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        """Return the tenant of that id. Raises UnknownKey, DirectoryUnavailable."""
        return self._inner.by_id(tenant, rules)

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        """Return the tenant of one of its keys, or `default`. Raises UnknownKey, DirectoryUnavailable."""
        return (self._inner if self._inner.has_tenants else self._open).by_key_id(tenant, key_id)

    def groups(self) -> Sequence[str]:
        """Return all isolation groups, that of `default` first."""
        # The group of `default` comes first, so that new groups are only appended.
        self._groups += self._inner.groups()[len(self._groups) - 1 :]
        return self._groups


class OpenDirectory:
    """A directory without tenants, for loopback only: every client is the tenant `default`."""

    requires_keys = False

    def by_key(self, presented: str | None) -> Tenant:
        """Return the tenant `default`, whatever the key is."""
        return Tenant(id="default", organisation="default", key_id="", plan=Plan(), group=OPEN_GROUP)

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        """Raise UnknownKey, since no tenant can be found by id."""
        raise UnknownKey

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        """Return the tenant `default`, for its own earlier work. Raises UnknownKey for any other id."""
        if (tenant, key_id) != ("default", ""):
            raise UnknownKey
        return self.by_key(None)

    def groups(self) -> Sequence[str]:
        """Return the one isolation group."""
        return (OPEN_GROUP,)
