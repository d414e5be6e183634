"""Authentication: finds the tenant for the credential of a client, or raises an error.

The credential is an API key, which `valid_entry` of tenant_register.py looks up by its hash, or a token of an
issuer that the settings name, which token_verifier.py verifies. Scope and client address are checked here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.domain.errors import (
    AccountDisabled,
    AddressNotAllowed,
    GatewayError,
    InvalidToken,
    KeysUnavailable,
    ScopeNotAllowed,
    TenantNotNamed,
    TooManyFailures,
    Unauthenticated,
)
from gateway.domain.tenant import INFERENCE, SUBJECT_PREFIX, Tenant
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.types import Address
from gateway.tenants.auth_throttle import AuthThrottle
from gateway.tenants.directory import DirectoryUnavailable, TenantDirectory, UnknownKey
from gateway.tenants.keys import PLAIN_HASH_PREFIX
from gateway.tenants.token_errors import IssuerUnavailable, NoTenantNamed, TokenInvalid

if TYPE_CHECKING:  # the packages that verify tokens are needed only where tokens are accepted
    from gateway.tenants.token_verifier import TokenVerifier


class Authentication:
    """Finds the tenant of a key or a token, and throttles wrong ones.

    `tokens` is None where only keys are accepted.
    """

    def __init__(
        self, directory: TenantDirectory, auth_throttle: AuthThrottle, tokens: "TokenVerifier | None" = None
    ) -> None:
        self.directory = directory
        self.auth_throttle = auth_throttle
        self.tokens = tokens

    async def authenticate(
        self, presented: str | None, address: Callable[[], Address | None], scope: str = INFERENCE
    ) -> Tenant:
        """Return the tenant of a key or token that may be used in this scope from this address.

        `address` is called only where it matters. Raises Unauthenticated, InvalidToken, TooManyFailures,
        KeysUnavailable; for valid credentials also TenantNotNamed, AccountDisabled, AddressNotAllowed,
        ScopeNotAllowed. It waits, shortly, only for the issuer of a token that was signed with an unknown key.
        """
        try:
            if self.tokens is None:
                tenant = self.directory.by_key(presented)
            else:
                tenant = await self._tenant_of_token(self.tokens, presented)
        except UnknownKey:
            raise self._refusal(address(), Unauthenticated()) from None
        except TokenInvalid as err:
            raise self._refusal(address(), InvalidToken(str(err))) from err
        except NoTenantNamed:
            raise TenantNotNamed from None
        except (DirectoryUnavailable, IssuerUnavailable) as err:
            raise KeysUnavailable from err
        if tenant.disabled:
            raise AccountDisabled
        if tenant.networks and not tenant.allows_from(address()):
            raise AddressNotAllowed
        if scope not in tenant.key_scopes:
            raise ScopeNotAllowed(scope)
        return tenant

    def reauthenticate(self, tenant: str, key_id: str) -> Tenant:
        """Return the tenant of a client that was authenticated earlier, for work that is done later.

        Raises Unauthenticated if the key has ended meanwhile, AccountDisabled, ScopeNotAllowed, KeysUnavailable.
        """
        try:
            if self.tokens is not None and key_id.startswith(SUBJECT_PREFIX):
                found = self.directory.by_id(tenant, ApiKeySettings(id=key_id, hash=PLAIN_HASH_PREFIX))
            else:
                found = self.directory.by_key_id(tenant, key_id)
        except UnknownKey:
            raise Unauthenticated from None
        except DirectoryUnavailable as err:
            raise KeysUnavailable from err
        if found.disabled:
            raise AccountDisabled
        if INFERENCE not in found.key_scopes:
            raise ScopeNotAllowed(INFERENCE)
        return found

    async def _tenant_of_token(self, tokens: "TokenVerifier", presented: str | None) -> Tenant:
        """Return the tenant of a token, or of a key if the text is not a token."""
        identity = await tokens.identity(presented)
        if identity is None:
            return self.directory.by_key(presented)
        try:
            tenant = self.directory.by_id(identity.tenant, identity.rules)
        except UnknownKey:
            raise NoTenantNamed from None
        if identity.organisation not in (None, tenant.organisation):
            raise NoTenantNamed
        return tenant

    def _refusal(self, address: Address | None, refusal: GatewayError) -> GatewayError:
        wait = self.auth_throttle.record_failure(address)
        return TooManyFailures(wait) if wait else refusal
