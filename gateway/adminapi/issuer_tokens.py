"""Tokens of identity providers (OpenID Connect) that operators come with: whose they are, and what they may do."""

from collections.abc import Sequence
from typing import Any

import jwt
from jwt.exceptions import PyJWTError

from gateway.adminapi.principal import Principal
from gateway.database.operators import ROLES
from gateway.settings.token_issuers import OperatorIssuerSettings, Role
from gateway.tenants.issuer import Issuer
from gateway.tenants.token_failures import TokenInvalid
from gateway.tenants.tokens import TOKEN_LENGTH_MAX, claim, words_of

NAME_MAX = 150


class IssuerTokenVerifier:
    """Of these issuers."""

    def __init__(self, issuers: Sequence[Issuer[OperatorIssuerSettings]]) -> None:
        self._issuers = {issuer.rules.issuer: issuer for issuer in issuers}

    async def asker(self, token: str) -> Principal | None:
        """Whom it names; None if it is no good token, or names no role. Raises IssuerAway."""
        if token.count(".") != 2 or not token.isascii() or len(token) > TOKEN_LENGTH_MAX:
            return None
        try:
            said = jwt.decode_complete(token, options={"verify_signature": False})
        except (PyJWTError, RecursionError, ValueError):
            return None
        # Nothing of it is verified yet: it only says who has to be asked.
        named = said["payload"].get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            return None
        try:
            claims = await issuer.claims(token, said["header"])
        except TokenInvalid:
            return None
        role = role_of(issuer.rules, claim(claims, issuer.rules.role_claim))
        return Principal(name=f"token:{name_of(claims)}", role=role) if role is not None else None


def role_of(rules: OperatorIssuerSettings, told: Any) -> Role | None:
    """The highest of those that a claim names; None if it names none."""
    words = told.split() if isinstance(told, str) else words_of(told)
    own: dict[str, Role] = {role: role for role in ROLES}
    found = [known for word in words if (known := (rules.roles or own).get(word)) is not None]
    return max(found, key=ROLES.index, default=None)


def name_of(claims: Any) -> str:
    """For the audit log."""
    subject = claims.get("sub")
    text = subject if isinstance(subject, str) else "nobody"
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable[:NAME_MAX]
