"""OperatorSessions of operators who have logged in with a browser: a sealed cookie, good in every gateway until it ends, or
until its operator logs out of any of them.

It is sent by no page of somebody else's with a request that changes anything (SameSite=Lax), and what changes
something has to come from a page of ours besides: a cookie goes wherever its host does, whoever asks for it.
"""

import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from gateway.adminapi.ended_sessions import EndedSessions
from gateway.adminapi.signed_cookies import CookieSigner
from gateway.settings.token_issuers import OperatorIssuerSettings, Role

SECURE_COOKIE = "__Host-radixgate_session"
"""Browsers take it over https only, from this host only, for all of it (RFC 6265bis, 4.1.3)."""
COOKIE = "radixgate_session"

SAFE_METHODS = ("GET", "HEAD")


class OperatorSession(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: as the audit log knows whoever it is. `ends`: Unix time."""

    id: str
    name: str
    role: Role
    issuer: str
    ends: float


class OperatorSessions:
    """`rules`: of the issuer that people log in with. `wall`: Unix time in seconds."""

    def __init__(
        self,
        rules: OperatorIssuerSettings,
        signer: CookieSigner,
        ended: EndedSessions,
        wall: Callable[[], float] = time.time,
    ) -> None:
        assert rules.login is not None
        self.signer = signer
        self.wall = wall
        self._rules = rules
        self._login = rules.login
        self._ended = ended

    def base(self, http: web.BaseRequest) -> str:
        """Where the browser has found this listener, without a slash at the end."""
        if self._login.url is not None:
            return self._login.url.rstrip("/")
        # Whoever forges it is led astray alone: a provider sends people back to addresses that it knows.
        behind_tls = http.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"
        return f"{'https' if behind_tls or http.secure else 'http'}://{http.host}"

    def secure(self, http: web.BaseRequest) -> bool:
        return self.base(http).startswith("https:")

    def begin(self, http: web.BaseRequest, response: web.StreamResponse, name: str, role: Role) -> OperatorSession:
        """Somebody has logged in: the browser keeps it from here on."""
        seconds = self._login.session_seconds
        session = OperatorSession(
            id=secrets.token_urlsafe(16),
            name=name,
            role=role,
            issuer=self._rules.issuer,
            ends=self.wall() + seconds,
        )
        secure = self.secure(http)
        response.set_cookie(
            SECURE_COOKIE if secure else COOKIE,
            self.signer.seal(session),
            max_age=int(seconds),
            path="/",
            httponly=True,
            secure=secure,
            samesite="Lax",
        )
        return session

    async def find(self, http: web.BaseRequest) -> OperatorSession | None:
        """The session that a request comes with, if it may be used for that request."""
        name = SECURE_COOKIE if self.secure(http) else COOKIE
        session = self.signer.open(OperatorSession, http.cookies.get(name, ""))
        if session is None or session.ends <= self.wall() or session.issuer != self._rules.issuer:
            return None
        if not (http.method in SAFE_METHODS or self._own_page(http)):
            return None
        return session if not await self._ended.has(session.id) else None

    async def end(self, http: web.BaseRequest, response: web.StreamResponse) -> OperatorSession | None:
        """The browser forgets it; and no gateway takes a copy of it any more."""
        session = await self.find(http)
        if session is not None:
            await self._ended.add(session.id, session.ends)
        secure = self.secure(http)
        # A browser drops a cookie of this name only where it would have taken it.
        response.del_cookie(
            SECURE_COOKIE if secure else COOKIE, path="/", secure=secure, httponly=True, samesite="Lax"
        )
        return session

    def _own_page(self, http: web.BaseRequest) -> bool:
        site = http.headers.get("Sec-Fetch-Site")
        if site is not None:
            return site == "same-origin"
        origin = http.headers.get("Origin")
        return origin is not None and urlsplit(origin)[:2] == urlsplit(self.base(http))[:2]
