"""TenantDirectory: the Protocol that finds the tenant of an API key.

Answers come from memory: no I/O, no waiting. Unknown, revoked, expired and malformed keys all raise UnknownKey, and
take the same path, so that neither text nor timing tells them apart.

Every implementation passes tests/conformance/test_tenant_directory.py.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.tenant import Tenant
from gateway.settings.tenants import ApiKeySettings
from gateway.tenants.keys import HASH_PREFIX

NO_KEY = ApiKeySettings(id="none", hash=HASH_PREFIX + "0" * 64)
"""Stands for the settings of a key where a tenant is looked at without one."""


class UnknownKey(Exception):
    """The key is not valid: it is unknown, revoked, expired or malformed."""


class DirectoryUnavailable(Exception):
    """The key is not known here, and the database that might know it does not answer."""


class TenantDirectory(Protocol):
    """Finds tenants by their API keys and by their ids."""

    def by_key(self, presented: str | None) -> Tenant:
        """Return the tenant of a key as the client presented it (None: no key at all).

        Raises UnknownKey, DirectoryUnavailable.
        """
        ...

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        """Return a tenant for a client that was identified by other means than a key.

        `rules` stands for the settings of a key. Raises UnknownKey if there is no such tenant,
        DirectoryUnavailable.
        """
        ...

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        """Return a tenant as one of its keys presents it, for work on behalf of a key that was presented earlier.

        Raises UnknownKey for a key that is no longer valid, DirectoryUnavailable.
        """
        ...

    def groups(self) -> Sequence[str]:
        """Return the isolation groups of all tenants that were ever known; the sequence only grows, at its end."""
        ...

    @property
    def requires_keys(self) -> bool:
        """Whether requests need a key; False: every client is accepted."""
        ...


def tenant_named(directory: TenantDirectory, name: str) -> Tenant:
    """Return the tenant of this name, as an operator sees it: without a key.

    Where there are no tenants, requests without a key belong to a tenant that is in no list. Raises UnknownKey,
    DirectoryUnavailable.
    """
    try:
        return directory.by_id(name, NO_KEY)
    except UnknownKey:
        keyless = directory.by_key(None)
        if keyless.id != name:
            raise
        return keyless
