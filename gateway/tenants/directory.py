"""TenantDirectory: the promise of whoever knows which key belongs to whom.

Answers come from memory: no I/O, no waiting. Unknown, revoked, expired and malformed keys are all UnknownKey, and
take the same path, so that neither text nor timing tells them apart.

Every implementation passes tests/conformance/test_tenant_directory.py.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.tenant import Tenant
from gateway.settings.tenants import ApiKeySettings


class UnknownKey(Exception):
    """This key opens nothing."""


class DirectoryAway(Exception):
    """The key is not known here, and who might know it cannot be asked now."""


class TenantDirectory(Protocol):
    def by_key(self, presented: str | None) -> Tenant:
        """The tenant of a key as the client presented it (None: no key at all).

        Raises UnknownKey, DirectoryAway.
        """
        ...

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        """A tenant as somebody presents it who has shown by other means than a key who he is.

        `rules`: what would stand in a key's settings. Raises UnknownKey if there is no such tenant, DirectoryAway.
        """
        ...

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        """A tenant as one of its keys presents it, which was presented before: now nobody holds it.

        Raises UnknownKey for a key that opens nothing any more, DirectoryAway.
        """
        ...

    def groups(self) -> Sequence[str]:
        """The isolation groups of all tenants that were ever known. It only grows, at its end."""
        ...

    @property
    def asks_for_keys(self) -> bool:
        """False: everybody is let in, key or not."""
        ...
