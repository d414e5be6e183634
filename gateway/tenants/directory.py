"""TenantDirectory: the Protocol that finds the tenant of an API key.

Answers come from memory, without I/O or waiting. Unknown, revoked, expired and malformed keys all raise UnknownKey
and take the same path, so that neither text nor timing distinguishes them.

Every implementation passes tests/conformance/test_tenant_directory.py.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.tenant import Tenant
from gateway.settings.tenants import ApiKeySettings
from gateway.tenants.keys import HASH_PREFIX

NO_KEY = ApiKeySettings(id="none", hash=HASH_PREFIX + "0" * 64)
"""The key settings for a look-up of a tenant without a key."""


class UnknownKey(Exception):
    """The key is not valid: it is unknown, revoked, expired or malformed."""


class DirectoryUnavailable(Exception):
    """The key is not known here, and the database, which may have it, does not answer."""


class TenantDirectory(Protocol):
    """Finds tenants by their API keys and by their ids."""

    def by_key(self, presented: str | None) -> Tenant:
        """Return the tenant of a key as the client presented it (None: no key at all).

        Raises UnknownKey, DirectoryUnavailable.
        """
        ...

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        """Return a tenant for a client that was identified by other means than a key.

        `rules` is used in place of a key's settings. Raises UnknownKey if there is no such tenant,
        DirectoryUnavailable.
        """
        ...

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        """Return a tenant with the settings of one of its keys, for later work on behalf of that key.

        Raises UnknownKey for a key that is no longer valid, DirectoryUnavailable.
        """
        ...

    def groups(self) -> Sequence[str]:
        """Return the isolation groups of all tenants that were ever known; new ones are only appended."""
        ...

    @property
    def requires_keys(self) -> bool:
        """Whether requests need a key; False: every client is accepted."""
        ...


def tenant_named(directory: TenantDirectory, name: str) -> Tenant:
    """Return the tenant with this name, as operators see it, without a key.

    If there are no tenants, this also finds the unlisted tenant of requests without a key. Raises UnknownKey,
    DirectoryUnavailable.
    """
    try:
        return directory.by_id(name, NO_KEY)
    except UnknownKey:
        keyless = directory.by_key(None)
        if keyless.id != name:
            raise
        return keyless
