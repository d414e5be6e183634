"""TenantDirectory: the promise of whoever knows which key belongs to whom.

Answers come from memory: no I/O, no waiting. Unknown, revoked, expired and malformed keys are all UnknownKey, and
take the same path, so that neither text nor timing tells them apart.

Every implementation passes tests/conformance/test_tenant_directory.py.
"""

from collections.abc import Iterable
from typing import Protocol

from gateway.tenants.tenant import Tenant


class UnknownKey(Exception):
    """This key opens nothing."""


class TenantDirectory(Protocol):
    def by_key(self, presented: str | None) -> Tenant:
        """The tenant of a key as the client presented it (None: no key at all). Raises UnknownKey."""
        ...

    def groups(self) -> Iterable[str]:
        """The isolation groups of all tenants, each once or more."""
        ...
