"""Authorization: who asks, and as what.

    admin.token of the settings             owner
    a token of `radixgate operators`        its role, for as long as it lives
    a token of one of admin.issuers         the highest role that it names
    a session of a login at such an issuer  the role that it had at its login
    none, on loopback, without admin.token  viewer; not where people can log in

A token comes as a bearer token. Pages take admin.token as ?token= too, and from a cookie of their own, which the
API never takes. Who presents what opens nothing is made to wait, as at the tenants' door.
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
from gateway.settings.listeners import AdminSettings, is_loopback
from gateway.settings.token_issuers import Role
from gateway.settings.types import address_of
from gateway.tenants.auth_throttle import AuthThrottle
from gateway.tenants.keys import HASH_PREFIX, OPERATOR_PREFIX, claimed_id, key_digest
from gateway.tenants.token_errors import IssuerUnavailable

if TYPE_CHECKING:  # who takes no such tokens need not have what they are verified with
    from gateway.adminapi.issuer_tokens import IssuerTokenVerifier

PAGE_COOKIE = "radixgate_admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTokenStore:
    """Where operators' tokens are kept. `pepper`: of their hashes. `upgrades`: of tables of an older version."""

    store: TenantStore
    pepper: bytes
    upgrades: bool


class Authorization:
    """`operators`: None without a database. `tokens`, `sessions`: None where there is no such issuer."""

    def __init__(
        self,
        admin: AdminSettings,
        operators: OperatorTokenStore | None,
        auth_throttle: AuthThrottle,
        tokens: "IssuerTokenVerifier | None" = None,
        sessions: OperatorSessions | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.sessions = sessions
        self.open = admin.token is None and sessions is None and is_loopback(admin.host)
        """May whoever is on this machine look?"""
        self._token = admin.token.reveal() if admin.token is not None else None
        self._operators = operators
        self._auth_throttle = auth_throttle
        self._tokens = tokens
        self._wall = wall

    async def admit(self, http: web.Request, least: Role, *, page: bool = False) -> Principal:
        """Whoever asks, if that is enough. `page`: a page, or what one shows.

        Raises Problem (401, 403, 429, 503), DatabaseDown, TimeoutError.
        """
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        try:
            asker = await self._asker(token) if token else await self._without_token(http, page)
        except IssuerUnavailable as err:
            raise Problem(503, "Tokens cannot be checked at present.", {"retry-after": "1"}) from err
        if asker is None:
            raise self._refusal(http, token or (page and http.query.get("token")), page)
        if not asker.has_role(least):
            raise Problem(403, f"This needs the role {least}; yours is {asker.role}.")
        return asker

    def is_admin_token(self, token: str) -> bool:
        return self._token is not None and hmac.compare_digest(_bytes(token), _bytes(self._token))

    async def _asker(self, token: str) -> Principal | None:
        if self.is_admin_token(token):
            return Principal(name="admin.token", role="owner")
        asker = await self._operator(token)
        if asker is None and self._tokens is not None:
            return await self._tokens.asker(token)
        return asker

    async def _operator(self, token: str) -> Principal | None:
        identity = claimed_id(token, OPERATOR_PREFIX)
        if self._operators is None or not identity or not identity.isalnum():
            return None
        store = self._operators.store
        await schema.ready(store.database, upgrades=self._operators.upgrades)
        found = await store.operator(identity)
        digest = HASH_PREFIX + key_digest(token, self._operators.pepper).hex()
        right = hmac.compare_digest(digest, found.hash if found is not None else HASH_PREFIX)
        if found is None or not right or not found.active(self._wall()):
            return None
        return Principal(name=f"operator:{found.id}", role=found.role)

    async def _without_token(self, http: web.Request, page: bool) -> Principal | None:
        given = http.query.get("token") or http.cookies.get(PAGE_COOKIE) if page else None
        if given and self.is_admin_token(given):
            return Principal(name="admin.token", role="owner")
        session = await self.sessions.find(http) if self.sessions is not None else None
        if session is not None:
            return Principal(name=session.name, role=session.role)
        return Principal(name="loopback", role="viewer") if self.open else None

    def _refusal(self, http: web.Request, given: object, page: bool) -> Problem:
        wait = self._auth_throttle.record_failure(address_of(http.remote or "")) if given else 0.0
        if wait:
            return Problem(
                429, "Too many wrong tokens came from your address.", {"retry-after": str(int(wait) + 1)}
            )
        if page and not given and self._token is None and self.sessions is None:
            return Problem(
                403,
                "Set admin.token or admin.issuers[].login to use this address on a listener that others can reach.",
            )
        ways = ["a token of an operator, as `Authorization: Bearer`"]
        if page and self._token is not None:
            ways.append("the admin token as ?token=")
        if self.sessions is not None:
            ways.append("a login at /ui/login")
        return Problem(401, f"This address needs {', or '.join(ways)}.", {"www-authenticate": "Bearer"})


def _bytes(text: str) -> bytes:
    # Any bytes may come in a header, also such as are no text.
    return text.encode("utf-8", "surrogatepass")
