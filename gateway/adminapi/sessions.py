"""Browser sessions of operators, each in a signed cookie.

Every gateway accepts a session until it ends, or until its operator logs out at any gateway. Browsers do not send
the cookie with changing requests of other sites' pages (SameSite=Lax). A changing request must also come from a
page of this listener, because a cookie is sent to every port of its host.
"""

import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web

from gateway.adminapi.ended_sessions import EndedSessions
from gateway.adminapi.signed_cookies import CookieSigner, CookieValue
from gateway.settings.token_issuers import OperatorIssuerSettings, Role

SECURE_COOKIE = "__Host-radixgate_session"
"""Browsers accept a cookie with this prefix over https only, and only for its whole host (RFC 6265bis, 4.1.3)."""
COOKIE = "radixgate_session"

SAFE_METHODS = ("GET", "HEAD")


class OperatorSession(CookieValue, frozen=True, kw_only=True):
    """The session of a logged-in operator."""

    cookie_kind = "Session"

    id: str
    name: str
    """The name under which the audit log records the operator."""
    role: Role
    issuer: str
    ends: float
    """Unix time in seconds."""


class OperatorSessions:
    """The browser sessions of operators."""

    def __init__(
        self,
        rules: OperatorIssuerSettings,
        signer: CookieSigner,
        ended: EndedSessions,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create the sessions.

        Args:
            rules: Settings of the issuer at which operators log in.
            signer: Signs the cookies.
            ended: The sessions that were ended before their time.
            wall: Unix time in seconds.
        """
        assert rules.login is not None
        self.signer = signer
        self.wall = wall
        self._rules = rules
        self._login = rules.login
        self._ended = ended

    def base(self, http: web.BaseRequest) -> str:
        """Return the URL at which the browser reached this listener, without a trailing slash."""
        if self._login.url is not None:
            return self._login.url.rstrip("/")
        # A forged header misleads only its sender, since providers redirect browsers to registered addresses only.
        behind_tls = http.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"
        return f"{'https' if behind_tls or http.secure else 'http'}://{http.host}"

    def secure(self, http: web.BaseRequest) -> bool:
        """Return whether the browser has found this listener by https."""
        return self.base(http).startswith("https:")

    def begin(
        self, http: web.BaseRequest, response: web.StreamResponse, name: str, role: Role
    ) -> OperatorSession:
        """Begin the session of an operator after the login, and set its cookie."""
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
            self.signer.sign(session),
            max_age=int(seconds),
            path="/",
            httponly=True,
            secure=secure,
            samesite="Lax",
        )
        return session

    async def find(self, http: web.BaseRequest) -> OperatorSession | None:
        """Return the valid session of a request, if it may be used for that request."""
        name = SECURE_COOKIE if self.secure(http) else COOKIE
        session = self.signer.verify(OperatorSession, http.cookies.get(name, ""))
        if session is None or session.ends <= self.wall() or session.issuer != self._rules.issuer:
            return None
        if not (http.method in SAFE_METHODS or self._own_page(http)):
            return None
        return session if not await self._ended.has(session.id) else None

    async def end(self, http: web.BaseRequest, response: web.StreamResponse) -> OperatorSession | None:
        """End the session of a request: delete its cookie, and make every gateway refuse copies of it."""
        session = await self.find(http)
        if session is not None:
            await self._ended.add(session.id, session.ends)
        secure = self.secure(http)
        # A browser deletes a cookie with this prefix only if the attributes are those that it requires to set one.
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
