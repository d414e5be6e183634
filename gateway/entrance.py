"""Entrance: from what a client presents to the tenant that it may act for, or the reason why not."""

from collections.abc import Callable

from gateway.errors import (
    AccountDisabled,
    AddressNotAllowed,
    KeysUnavailable,
    ScopeNotAllowed,
    TooManyFailures,
    Unauthenticated,
)
from gateway.settings_types import Address
from gateway.tenants.directory import DirectoryAway, TenantDirectory, UnknownKey
from gateway.tenants.penalties import Penalties
from gateway.tenants.tenant import INFERENCE, Tenant


class Entrance:
    """Who comes in, and who is kept waiting."""

    def __init__(self, directory: TenantDirectory, penalties: Penalties) -> None:
        self.directory = directory
        self.penalties = penalties

    def admit(
        self, presented: str | None, address: Callable[[], Address | None], scope: str = INFERENCE
    ) -> Tenant:
        """The tenant of a key that may be used for this, from there.

        `address` is asked only where it matters. Raises Unauthenticated, TooManyFailures, KeysUnavailable; for a
        key that is right all the same, AccountDisabled, AddressNotAllowed, ScopeNotAllowed.
        """
        try:
            tenant = self.directory.by_key(presented)
        except UnknownKey:
            wait = self.penalties.failed(address())
            if wait:
                raise TooManyFailures(wait) from None
            raise Unauthenticated from None
        except DirectoryAway as err:
            raise KeysUnavailable from err
        if tenant.disabled:
            raise AccountDisabled
        if tenant.networks and not tenant.allows_from(address()):
            raise AddressNotAllowed
        if scope not in tenant.may:
            raise ScopeNotAllowed(scope)
        return tenant
