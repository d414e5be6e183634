"""Authorizes callers of the operators' listener: finds the principal of a request, and the principal's role.

    admin.token of the settings             owner
    a token of `radixgate operators`        its role, until it expires or is revoked
    a token of one of admin.issuers         the highest role that it names
    a session of a login at such an issuer  the role that it had at its login
    none, on loopback, without admin.token  viewer, unless a browser login is configured

A token is sent as a bearer token, never in a cookie or in a URL. An address that presents wrong tokens too often
has to wait. Meanwhile admin.token is not accepted from it either, so that it cannot be guessed. Operators' tokens
are accepted even then, like tenants' API keys, because they are random.
"""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.adminapi.principal import Principal
from gateway.adminapi.problems import Problem
from gateway.adminapi.sessions import OperatorSessions
from gateway.database import schema
from gateway.database.tenant_store import TenantStore
from gateway.domain.errors import Unauthenticated
from gateway.domain.request_headers import bearer_token, credential_header
from gateway.settings.listeners import AdminSettings, is_loopback, names_loopback
from gateway.settings.token_issuers import Role
from gateway.settings.types import address_of
from gateway.tenants.auth_throttle import AuthThrottle
from gateway.tenants.keys import HASH_PREFIX, OPERATOR_PREFIX, claimed_id, key_digest
from gateway.tenants.token_errors import IssuerUnavailable

if TYPE_CHECKING:  # imports PyJWT, which is needed only where issuers are configured
    from gateway.adminapi.issuer_tokens import IssuerTokenVerifier


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTokenStore:
    """The database of operators' tokens, with the secret and options for checking a token."""

    store: TenantStore
    pepper: bytes
    """The secret of the tokens' hashes."""
    upgrades: bool
    """Whether tables of an older version are upgraded."""


class Authorization:
    """Authorizes requests to the operators' listener."""

    def __init__(
        self,
        admin: AdminSettings,
        operators: OperatorTokenStore | None,
        auth_throttle: AuthThrottle,
        tokens: "IssuerTokenVerifier | None" = None,
        sessions: OperatorSessions | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create the authorization.

        Args:
            admin: Settings of the listener.
            operators: The tokens of `radixgate operators`; None without a database.
            auth_throttle: Counts wrong tokens by address.
            tokens: Verifies the tokens of identity providers; None where none is configured.
            sessions: The sessions of browser logins; None where none is configured.
            wall: Unix time in seconds.
        """
        self.sessions = sessions
        self.open = admin.token is None and sessions is None and is_loopback(admin.host)
        """Whether every caller on this machine is a viewer."""
        self._token = admin.token.reveal() if admin.token is not None else None
        self._metrics_token = admin.metrics_token.reveal() if admin.metrics_token is not None else None
        self._loopback = is_loopback(admin.host)
        self._operators = operators
        self._auth_throttle = auth_throttle
        self._tokens = tokens
        self._wall = wall

    async def authorize(self, http: web.Request, least: Role) -> Principal:
        """Return the principal of a request, if it has at least the given role.

        Args:
            http: The request.
            least: The role that is needed.

        Raises:
            Problem: With status 401, 403, 429 or 503.
            DatabaseDown: The database does not answer.
            TimeoutError: The database is too slow.
        """
        token = _presented_token(http)
        try:
            principal = await (self._principal_of(token, http) if token else self._without_token(http))
        except IssuerUnavailable as err:
            raise Problem(
                503,
                "The identity provider does not answer: tokens cannot be checked at present.",
                {"retry-after": "1"},
            ) from err
        if principal is None:
            raise self._problem(http, token)
        if not principal.has_role(least):
            raise Problem(403, f"This needs the role {least}; yours is {principal.role}.")
        return principal

    @property
    def has_admin_token(self) -> bool:
        """Whether the settings name a token for this listener."""
        return self._token is not None

    def authorize_metrics(self, http: web.Request) -> None:
        """Check whether a request may read the metrics. Raises Problem with status 401, 403 or 429."""
        if self._metrics_token is None:
            if self._loopback and not names_loopback(http.headers.get("Host", "")):
                raise Problem(
                    403, "Without admin.metrics_token the metrics answer to names of this machine only."
                )
            return
        token = _presented_token(http)
        if self._may_try(http) and (
            hmac.compare_digest(_bytes(token), _bytes(self._metrics_token))
            or self._matches_admin_token(token)
        ):
            return
        raise self._problem(http, token)

    def is_admin_token(self, token: str, http: web.Request) -> bool:
        """Return whether a token is admin.token of the settings, and may be tried from this address now."""
        return self._may_try(http) and self._matches_admin_token(token)

    def _may_try(self, http: web.Request) -> bool:
        return not self._auth_throttle.seconds_to_wait(address_of(http.remote or ""))

    def _matches_admin_token(self, token: str) -> bool:
        """Return whether a token is admin.token of the settings, compared in constant time."""
        return self._token is not None and hmac.compare_digest(_bytes(token), _bytes(self._token))

    async def _principal_of(self, token: str, http: web.Request) -> Principal | None:
        if self.is_admin_token(token, http):
            return Principal(name="admin.token", role="owner")
        principal = await self._operator_principal(token)
        if principal is None and self._tokens is not None:
            return await self._tokens.principal(token)
        return principal

    async def _operator_principal(self, token: str) -> Principal | None:
        identity = claimed_id(token, OPERATOR_PREFIX)
        if self._operators is None or not identity or not identity.isalnum():
            return None
        store = self._operators.store
        await schema.ensure_current(store.database, upgrades=self._operators.upgrades)
        found = await store.operator(identity)
        digest = HASH_PREFIX + key_digest(token, self._operators.pepper).hex()
        matches = hmac.compare_digest(digest, found.hash if found is not None else HASH_PREFIX)
        if found is None or not matches or not found.active(self._wall()):
            return None
        return Principal(name=f"operator:{found.id}", role=found.role)

    async def _without_token(self, http: web.Request) -> Principal | None:
        session = await self.sessions.find(http) if self.sessions is not None else None
        if session is not None:
            return Principal(name=session.name, role=session.role)
        return Principal(name="loopback", role="viewer") if self.open else None

    def _problem(self, http: web.Request, token: str) -> Problem:
        wait = self._auth_throttle.record_failure(address_of(http.remote or "")) if token else 0.0
        if wait:
            return Problem(
                429, "Too many wrong tokens came from your address.", {"retry-after": str(int(wait) + 1)}
            )
        ways = ["a token of an operator, as `Authorization: Bearer`"]
        if self.sessions is not None:
            ways.append("a login at /ui/login")
        needs = f"This address needs {', or '.join(ways)}."
        if self._token is None and self.sessions is None:
            needs += " The settings may name one: admin.token; or a login: admin.issuers[].login."
        return Problem(401, needs, {"www-authenticate": "Bearer"})


def _presented_token(http: web.Request) -> str:
    """Return the bearer token of a request; empty without one. Raises Problem (401) for different ones."""
    try:
        return bearer_token(credential_header(http.headers, "authorization") or "") or ""
    except Unauthenticated as err:
        raise Problem(err.status, err.message, err.headers()) from err


def _bytes(text: str) -> bytes:
    # A header may contain any bytes, even bytes that are not valid text.
    return text.encode("utf-8", "surrogatepass")
