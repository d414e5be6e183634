"""Verifies tokens (JWT, RFC 7519) that are presented in place of API keys.

    presented -seen before?--> its identity, until it ends
        +-----`iss` of ours?-> signature, audience, times (token_issuer.py) -> claims -> tenant and rules

Verified tokens are cached by the digest of the whole token, never by a part of it (CVE-2026-35030), and dropped
when they end or their issuer's keys change. Practice: RFC 8725.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, get_args

import aiohttp
import jwt
from jwt.exceptions import PyJWTError

from gateway.domain.tenant import SUBJECT_PREFIX
from gateway.settings.tenants import ApiKeySettings, KeyScope
from gateway.settings.token_issuers import TenantIssuerSettings
from gateway.settings.types import IDENTIFIER
from gateway.tenants.keys import PLAIN_HASH_PREFIX
from gateway.tenants.token_errors import NoTenantNamed
from gateway.tenants.token_issuer import Issuer

TOKENS_MAX = 10_000
TOKEN_LENGTH_MAX = 12 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIdentity:
    """The tenant of a verified token, and the rules for its use."""

    tenant: str
    organisation: str | None  # must be the tenant's; None: any
    rules: ApiKeySettings  # used like the settings of a key
    issuer: Issuer[TenantIssuerSettings]
    version: int  # of the issuer's keys when it was verified
    ends: float  # Unix time


class TokenVerifier:
    """Verifies tokens of the tenants' issuers and caches verified ones; `wall` is Unix time in seconds."""

    def __init__(
        self, issuers: Sequence[Issuer[TenantIssuerSettings]], wall: Callable[[], float] = time.time
    ) -> None:
        self._issuers = {issuer.rules.issuer: issuer for issuer in issuers}
        self._wall = wall
        self._seen: OrderedDict[bytes, TokenIdentity] = OrderedDict()

    @classmethod
    def of(cls, settings: Sequence[TenantIssuerSettings], http: aiohttp.ClientSession) -> "TokenVerifier":
        """Make a verifier for the issuers in the settings."""
        return cls([Issuer(rules, http) for rules in settings])

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def issuers(self) -> Sequence[Issuer[TenantIssuerSettings]]:
        """All issuers, in the order of the settings."""
        return tuple(self._issuers.values())

    def loops(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Return the loops that keep the issuers' keys up to date, by name."""
        return [(f"keys of {name}", issuer.run) for name, issuer in self._issuers.items()]

    def close(self) -> None:
        """Cancel reads of keys that are under way."""
        for issuer in self._issuers.values():
            issuer.close()

    async def identity(self, presented: str | None) -> TokenIdentity | None:
        """Return the identity of a token; None if the text is not a token of a known issuer.

        Raises TokenInvalid, NoTenantNamed, IssuerUnavailable.
        """
        if presented is None or presented.count(".") != 2 or len(presented) > TOKEN_LENGTH_MAX:
            return None
        if not presented.isascii():
            return None
        digest = sha256(presented.encode()).digest()
        known = self._seen.get(digest)
        if known is not None:
            issuer = known.issuer
            if known.ends > self._wall() and known.version == issuer.version and issuer.fresh:
                return known
            del self._seen[digest]
        found = self._claimed(presented)
        if found is None:
            return None
        issuer, header = found
        identity = _identity(issuer, await issuer.claims(presented, header))
        self._seen[digest] = identity
        if len(self._seen) > TOKENS_MAX:
            self._seen.popitem(last=False)
        return identity

    def _claimed(self, token: str) -> tuple[Issuer[TenantIssuerSettings], Mapping[str, Any]] | None:
        """Return the issuer that the token claims, and its header, neither of them verified yet."""
        try:
            decoded = jwt.decode_complete(token, options={"verify_signature": False})
        except (PyJWTError, RecursionError, ValueError):
            return None
        name = decoded["payload"].get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        return (issuer, decoded["header"]) if issuer is not None else None


def _identity(issuer: Issuer[TenantIssuerSettings], claims: Mapping[str, Any]) -> TokenIdentity:
    """Return the identity for verified claims. Raises NoTenantNamed."""
    rules = issuer.rules
    names = texts_of(claim(claims, rules.tenant_claim))
    tenants = (
        {rules.tenants[name] for name in names if name in rules.tenants} if rules.tenants else set(names)
    )
    if len(tenants) != 1:
        # Several tenants are refused like none; a client with a choice might choose the cheapest.
        raise NoTenantNamed
    organisation = None
    if rules.organisation_claim is not None:
        organisation = claim(claims, rules.organisation_claim)
        if not isinstance(organisation, str):
            raise NoTenantNamed
    return TokenIdentity(
        tenant=tenants.pop(),
        organisation=organisation,
        rules=ApiKeySettings(id=_subject(claims), hash=PLAIN_HASH_PREFIX, scopes=_scopes(rules, claims)),
        issuer=issuer,
        version=issuer.version,
        ends=float(claims["exp"]) + rules.leeway_seconds,
    )


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name, or by its path (`realm_access.roles`); names may contain dots themselves."""
    if path in claims:
        return claims[path]
    first, dot, rest = path.partition(".")
    inner = claims.get(first) if dot else None
    return claim(inner, rest) if isinstance(inner, Mapping) else None


def _scopes(rules: TenantIssuerSettings, claims: Mapping[str, Any]) -> tuple[KeyScope, ...]:
    if rules.scope_claim is None:
        return ApiKeySettings(id="", hash="").scopes
    found = claim(claims, rules.scope_claim)
    words = found.split() if isinstance(found, str) else texts_of(found)
    own: dict[str, KeyScope] = {scope: scope for scope in get_args(KeyScope)}
    known = rules.scopes or own
    return tuple(dict.fromkeys(known[word] for word in words if word in known))


def _subject(claims: Mapping[str, Any]) -> str:
    """Return the name of the token's subject for records, in place of a key's id: short, and a valid identifier."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        return SUBJECT_PREFIX + "unknown"
    name = SUBJECT_PREFIX + subject
    return name if IDENTIFIER.fullmatch(name) else SUBJECT_PREFIX + sha256(subject.encode()).hexdigest()[:16]


def texts_of(value: Any) -> list[str]:
    """Return a claim that is a text, or a list of texts, as a list of texts."""
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
