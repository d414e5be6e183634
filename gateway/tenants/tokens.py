"""Tokens (JWT, RFC 7519) in place of API keys: whose they are, whom they name, what they may be used for.

    presented -seen before?--> what it stands for, until it ends
        +-----`iss` of ours?-> signature, audience, times (issuer.py) -> claims -> tenant and rules

What is remembered is found by the digest of the whole token, never by a part of it (CVE-2026-35030), and forgotten
when it ends or its issuer's keys change. Practice: RFC 8725.
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
from gateway.tenants.issuer import Issuer
from gateway.tenants.keys import PLAIN_HASH_PREFIX
from gateway.tenants.token_failures import NoTenantNamed

TOKENS_MAX = 10_000
TOKEN_LENGTH_MAX = 12 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a token stands for. `rules`: what stands in a key's place. `organisation`: has to be the tenant's."""

    tenant: str
    organisation: str | None
    rules: ApiKeySettings
    issuer: Issuer[TenantIssuerSettings]
    version: int
    ends: float


class Tokens:
    """`wall`: Unix time in seconds."""

    def __init__(
        self, issuers: Sequence[Issuer[TenantIssuerSettings]], wall: Callable[[], float] = time.time
    ) -> None:
        self._issuers = {issuer.rules.issuer: issuer for issuer in issuers}
        self._wall = wall
        self._seen: OrderedDict[bytes, Identity] = OrderedDict()

    @classmethod
    def of(cls, settings: Sequence[TenantIssuerSettings], http: aiohttp.ClientSession) -> "Tokens":
        return cls([Issuer(rules, http) for rules in settings])

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def issuers(self) -> Sequence[Issuer[TenantIssuerSettings]]:
        return tuple(self._issuers.values())

    def loops(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What has to run, by name."""
        return [(f"keys of {name}", issuer.run) for name, issuer in self._issuers.items()]

    def close(self) -> None:
        for issuer in self._issuers.values():
            issuer.close()

    async def identity(self, presented: str | None) -> Identity | None:
        """Whom it stands for; None if it is no token, or of nobody that is known here.

        Raises TokenInvalid, NoTenantNamed, IssuerAway.
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
        """Whose it says that it is, and its header. Nothing of it is verified yet."""
        try:
            said = jwt.decode_complete(token, options={"verify_signature": False})
        except (PyJWTError, RecursionError, ValueError):
            return None
        name = said["payload"].get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        return (issuer, said["header"]) if issuer is not None else None


def _identity(issuer: Issuer[TenantIssuerSettings], claims: Mapping[str, Any]) -> Identity:
    """What verified claims mean. Raises NoTenantNamed."""
    rules = issuer.rules
    words = words_of(claim(claims, rules.tenant_claim))
    named = {rules.tenants[word] for word in words if word in rules.tenants} if rules.tenants else set(words)
    if len(named) != 1:
        # Several are as bad as none: whoever could choose might choose the one that pays less.
        raise NoTenantNamed
    organisation = None
    if rules.organisation_claim is not None:
        told = claim(claims, rules.organisation_claim)
        if not isinstance(told, str):
            raise NoTenantNamed
        organisation = told
    return Identity(
        tenant=named.pop(),
        organisation=organisation,
        rules=ApiKeySettings(id=_subject(claims), hash=PLAIN_HASH_PREFIX, scopes=_scopes(rules, claims)),
        issuer=issuer,
        version=issuer.version,
        ends=float(claims["exp"]) + rules.leeway_seconds,
    )


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its name, or by its place: `realm_access.roles`. Names may have dots themselves."""
    if path in claims:
        return claims[path]
    first, dot, rest = path.partition(".")
    inner = claims.get(first) if dot else None
    return claim(inner, rest) if isinstance(inner, Mapping) else None


def _scopes(rules: TenantIssuerSettings, claims: Mapping[str, Any]) -> tuple[KeyScope, ...]:
    if rules.scope_claim is None:
        return ApiKeySettings(id="", hash="").scopes
    told = claim(claims, rules.scope_claim)
    words = told.split() if isinstance(told, str) else words_of(told)
    own: dict[str, KeyScope] = {scope: scope for scope in get_args(KeyScope)}
    known = rules.scopes or own
    return tuple(dict.fromkeys(known[word] for word in words if word in known))


def _subject(claims: Mapping[str, Any]) -> str:
    """What stands in a key's place in records: short, and fit for them."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        return SUBJECT_PREFIX + "nobody"
    name = SUBJECT_PREFIX + subject
    return name if IDENTIFIER.fullmatch(name) else SUBJECT_PREFIX + sha256(subject.encode()).hexdigest()[:16]


def words_of(told: Any) -> list[str]:
    """A text, or the texts of a list."""
    if isinstance(told, str):
        return [told]
    return [word for word in told if isinstance(word, str)] if isinstance(told, list) else []
