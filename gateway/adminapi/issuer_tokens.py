"""Operators' tokens of identity providers (OpenID Connect): the principal and the role that a token names."""

from collections.abc import Sequence
from typing import Any

import jwt
from jwt.exceptions import PyJWTError

from gateway.adminapi.principal import Principal
from gateway.database.operators import ROLES
from gateway.settings.token_issuers import OperatorIssuerSettings, Role
from gateway.tenants.token_errors import TokenInvalid
from gateway.tenants.token_issuer import Issuer
from gateway.tenants.token_verifier import TOKEN_LENGTH_MAX, claim, texts_of

NAME_LENGTH_MAX = 150
"""Characters of a subject's name in the audit log."""


class IssuerTokenVerifier:
    """Verifies the tokens of the configured identity providers."""

    def __init__(self, issuers: Sequence[Issuer[OperatorIssuerSettings]]) -> None:
        self._issuers = {issuer.rules.issuer: issuer for issuer in issuers}

    async def principal(self, token: str) -> Principal | None:
        """Return the principal that a token names; None for an invalid token or one without a role.

        Raises IssuerUnavailable.
        """
        if token.count(".") != 2 or not token.isascii() or len(token) > TOKEN_LENGTH_MAX:
            return None
        try:
            unverified = jwt.decode_complete(token, options={"verify_signature": False})
        except (PyJWTError, RecursionError, ValueError):
            return None
        # Not verified yet; the claim only selects the issuer that verifies the token.
        named = unverified["payload"].get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            return None
        try:
            claims = await issuer.claims(token, unverified["header"])
        except TokenInvalid:
            return None
        role = role_of(issuer.rules, claim(claims, issuer.rules.role_claim))
        return Principal(name=f"token:{name_of(claims)}", role=role) if role is not None else None


def role_of(rules: OperatorIssuerSettings, role_claim: Any) -> Role | None:
    """Return the highest role that a claim names; None if it names none."""
    words = role_claim.split() if isinstance(role_claim, str) else texts_of(role_claim)
    own: dict[str, Role] = {role: role for role in ROLES}
    found = [known for word in words if (known := (rules.roles or own).get(word)) is not None]
    return max(found, key=ROLES.index, default=None)


def name_of(claims: Any) -> str:
    """Return the subject of a token for the audit log, without control characters."""
    subject = claims.get("sub")
    text = subject if isinstance(subject, str) else "unknown"
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable[:NAME_LENGTH_MAX]
