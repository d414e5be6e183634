"""Gate: who asks, and as what. A bearer token, never a cookie: no page of somebody else's can send one.

    admin.token of the settings             owner
    a token of `radixgate operators`        its role, for as long as it lives
    a token of one of admin.issuers         the highest role that it names
    none, on loopback, without admin.token  viewer

Who presents what opens nothing is made to wait, as at the tenants' door.
"""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.adminapi.problems import Problem
from gateway.database.operators import ROLES
from gateway.database.tenant_store import TenantStore
from gateway.settings.listeners import Admin, is_loopback
from gateway.settings.tokens import Role
from gateway.settings.types import address_of
from gateway.tenants.keys import HASH_PREFIX, OPERATOR_PREFIX, claimed_id, key_digest
from gateway.tenants.penalties import Penalties
from gateway.tenants.token_failures import IssuerAway

if TYPE_CHECKING:  # who takes no such tokens need not have what they are verified with
    from gateway.adminapi.issuers import OperatorTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """`name`: as the audit log knows whoever it is."""

    name: str
    role: Role

    def may(self, least: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(least)


class Gate:
    """`pepper`: of the hashes of tokens. `tokens`: of identity providers; None where there are none."""

    def __init__(
        self,
        admin: Admin,
        store: TenantStore,
        pepper: bytes,
        penalties: Penalties,
        tokens: "OperatorTokens | None" = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._token = admin.token.reveal() if admin.token is not None else None
        self._open = self._token is None and is_loopback(admin.host)
        self._store = store
        self._pepper = pepper
        self._penalties = penalties
        self._tokens = tokens
        self._wall = wall

    async def admit(self, http: web.Request, least: Role) -> Asker:
        """Whoever asks, if that is enough. Raises Problem (401, 403, 429), DatabaseDown."""
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        try:
            asker = await self._asker(token) if token else self._anybody()
        except IssuerAway as err:
            raise Problem(503, "Tokens cannot be checked at present.", {"retry-after": "1"}) from err
        if asker is None:
            wait = self._penalties.failed(address_of(http.remote or ""))
            if token and wait:
                raise Problem(
                    429, "Too many wrong tokens came from your address.", {"retry-after": str(int(wait) + 1)}
                )
            raise Problem(
                401,
                "This address needs a token of an operator, as `Authorization: Bearer`.",
                {"www-authenticate": "Bearer"},
            )
        if not asker.may(least):
            raise Problem(403, f"This needs the role {least}; yours is {asker.role}.")
        return asker

    async def _asker(self, token: str) -> Asker | None:
        if self._token is not None and hmac.compare_digest(_bytes(token), _bytes(self._token)):
            return Asker(name="admin.token", role="owner")
        identity = claimed_id(token, OPERATOR_PREFIX)
        found = await self._store.operator(identity) if identity and identity.isalnum() else None
        digest = HASH_PREFIX + key_digest(token, self._pepper).hex()
        right = hmac.compare_digest(digest, found.hash if found is not None else HASH_PREFIX)
        if found is None or not right or not found.active(self._wall()):
            return await self._tokens.asker(token) if self._tokens is not None else None
        return Asker(name=f"operator:{found.id}", role=found.role)

    def _anybody(self) -> Asker | None:
        return Asker(name="loopback", role="viewer") if self._open else None


def _bytes(text: str) -> bytes:
    # Any bytes may come in a header, also such as are no text.
    return text.encode("utf-8", "surrogatepass")
