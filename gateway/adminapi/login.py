"""Browser login of operators: the code flow of OpenID Connect (OIDC), with PKCE (RFC 7636), state and nonce.

    /ui/login ----303----> provider: the login ----303----> /ui/callback?code&state ----303----> /ui/
        |  cookie: state                                        |  the same state, in the same browser?
                                                                |  code and verifier -> provider -> ID token
                                                                |  its signature, audience, nonce; a role
                                                                +--- cookie: session

Nonce and verifier are derived from the state and a key of the deployment: no gateway stores anything between the
two steps, and any gateway can serve the second one. Sources: OpenID Connect Core 1.0, 3.1.3.7; RFC 9700.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import jwt
import msgspec
from aiohttp import web
from jwt.exceptions import PyJWTError

from gateway.adminapi.issuer_tokens import name_of, role_of
from gateway.adminapi.problems import HEADERS, Problem
from gateway.adminapi.sessions import OperatorSessions
from gateway.adminapi.signed_cookies import CookieValue
from gateway.settings.token_issuers import OperatorIssuerSettings
from gateway.tenants.issuer_key_set import KeysUnreadable
from gateway.tenants.token_errors import IssuerUnavailable, TokenInvalid
from gateway.tenants.token_issuer import Issuer, IssuerMetadata, read_bounded
from gateway.tenants.token_verifier import TOKEN_LENGTH_MAX, claim

log = logging.getLogger(__name__)

COOKIE = "radixgate_login"
LOGIN_SECONDS_MAX = 600.0
EXCHANGE_SECONDS_MAX = 5.0
HOME = "/ui/"
"""The page that a login leads to by default."""
_PAGE = re.compile(r"/ui/[A-Za-z0-9._-]*")
_REASON = re.compile(r"[a-z_]{1,60}")

PROVIDER_ERRORS: tuple[type[Exception], ...] = (
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    KeysUnreadable,
    ValueError,
)


class PendingLogin(CookieValue, frozen=True, kw_only=True):
    """A login that has begun, while the browser is at the provider."""

    cookie_kind = "PendingLogin"

    state: str
    to: str
    """The page that the login leads to."""
    ends: float
    """Unix time in seconds."""


class _TokenResponse(msgspec.Struct):
    id_token: str


class BrowserLogin:
    """The HTTP handlers of logins at one identity provider. They raise Problem."""

    def __init__(self, issuer: Issuer[OperatorIssuerSettings], sessions: OperatorSessions) -> None:
        assert issuer.rules.login is not None
        self._issuer = issuer
        self._rules = issuer.rules.login
        self._sessions = sessions

    async def begin(self, http: web.Request) -> web.StreamResponse:
        """Redirect the browser to the provider."""
        provider = await self._description()
        to = http.query.get("to", HOME)
        pending = PendingLogin(
            state=secrets.token_urlsafe(24),
            to=to if _PAGE.fullmatch(to) else HOME,
            ends=self._sessions.wall() + LOGIN_SECONDS_MAX,
        )
        challenge = hashlib.sha256(self._verifier(pending.state).encode()).digest()
        parameters = {
            "response_type": "code",
            "client_id": self._rules.client_id,
            "redirect_uri": self._callback(http),
            "scope": " ".join(dict.fromkeys(("openid", *self._rules.scopes))),
            "state": pending.state,
            "nonce": self._nonce(pending.state),
            "code_challenge": urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        response = _redirect(_with_query(str(provider.authorization_endpoint), parameters))
        response.set_cookie(
            COOKIE,
            self._sessions.signer.sign(pending),
            max_age=int(LOGIN_SECONDS_MAX),
            path="/ui/",
            httponly=True,
            secure=self._sessions.secure(http),
            samesite="Lax",
        )
        return response

    async def callback(self, http: web.Request) -> web.StreamResponse:
        """Complete a login, after the provider has sent the browser back."""
        pending = self._sessions.signer.verify(PendingLogin, http.cookies.get(COOKIE, ""))
        state = http.query.get("state", "").encode("utf-8", "replace")
        if (
            pending is None
            or pending.ends <= self._sessions.wall()
            or not hmac.compare_digest(pending.state.encode(), state)
        ):
            raise Problem(
                400, "This login was begun in another browser, or too long ago: begin again at /ui/login."
            )
        # RFC 9207: a response of another provider must not be accepted.
        if http.query.get("iss", self._issuer.rules.issuer) != self._issuer.rules.issuer:
            raise Problem(
                400, "The response comes from another identity provider than the one that was asked."
            )
        if "error" in http.query or not http.query.get("code"):
            reason = http.query.get("error", "")
            shown = reason if _REASON.fullmatch(reason) else "unknown reason"
            raise Problem(403, f"The identity provider has refused the login: {shown}.")
        claims = await self._claims(await self._exchange(http, pending), pending)
        rules = self._issuer.rules
        role, name = role_of(rules, claim(claims, rules.role_claim)), f"login:{name_of(claims)}"
        if role is None:
            raise Problem(403, "The identity provider knows you, but you have no role here.")
        response = _redirect(pending.to)
        response.del_cookie(COOKIE, path="/ui/")
        self._sessions.begin(http, response, name, role)
        log.info("%s has logged in as %s", name, role)
        return response

    async def logout(self, http: web.Request) -> web.StreamResponse:
        """End the session, and answer with the URL at which the provider's own session ends too."""
        response = web.Response(content_type="application/json", headers=HEADERS)
        session = await self._sessions.end(http, response)
        url = HOME
        if session is not None:
            log.info("%s has logged out", session.name)
            try:
                provider = await self._description()
            except Problem:
                pass  # The session here has ended all the same.
            else:
                if provider.end_session_endpoint is not None:
                    back = f"{self._sessions.base(http)}{HOME}"
                    parameters = {"client_id": self._rules.client_id, "post_logout_redirect_uri": back}
                    url = _with_query(provider.end_session_endpoint, parameters)
        response.body = msgspec.json.encode({"url": url})
        return response

    async def _exchange(self, http: web.Request, pending: PendingLogin) -> str:
        """Return the ID token that the provider gives for the code in the request."""
        provider = await self._description()
        fields = {
            "grant_type": "authorization_code",
            "code": http.query["code"],
            "redirect_uri": self._callback(http),
            "code_verifier": self._verifier(pending.state),
        }
        client, secret = self._rules.client_id, self._rules.client_secret
        headers = {}
        if secret is None:
            fields["client_id"] = client
        else:
            # RFC 6749, 2.3.1: both are form-encoded first.
            known = aiohttp.encode_basic_auth(quote(client, safe=""), quote(secret.reveal(), safe=""))
            headers["authorization"] = known
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
                async with self._issuer.http.post(
                    str(provider.token_endpoint), data=fields, headers=headers, allow_redirects=False
                ) as answer:
                    status, text = answer.status, await read_bounded(answer)
        except PROVIDER_ERRORS as err:
            raise _unavailable(str(err)) from err
        try:
            if status == 200:
                return msgspec.json.decode(text, type=_TokenResponse).id_token
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        # The body is not logged: it may repeat the code or the client secret.
        log.warning("login of an operator: %s answers %d to a code", self._issuer.rules.issuer, status)
        raise Problem(403, "The identity provider has not confirmed your identity: begin again at /ui/login.")

    async def _claims(self, token: str, pending: PendingLogin) -> Mapping[str, Any]:
        """Return the claims of an ID token, verified to be for this login."""
        client = self._rules.client_id
        try:
            if len(token) > TOKEN_LENGTH_MAX:
                raise TokenInvalid("the token is too long")
            header = jwt.get_unverified_header(token)
            claims = await self._issuer.claims(token, header, audiences=(client,))
            if not hmac.compare_digest(
                str(claims.get("nonce")).encode(), self._nonce(pending.state).encode()
            ):
                raise TokenInvalid("the token is of another login")
            several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
            if claims.get("azp", None if several else client) != client:
                raise TokenInvalid("the token is for another client")
        except IssuerUnavailable as err:
            raise _unavailable("its keys are not known") from err
        except (TokenInvalid, PyJWTError, ValueError) as err:
            log.warning("login of an operator: the ID token is invalid: %s", err)
            raise Problem(403, "The identity provider's token is invalid.") from err
        return claims

    async def _description(self) -> IssuerMetadata:
        """Return the provider's description, with the endpoints that a login needs. Raises Problem."""
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
                provider = await self._issuer.metadata()
        except PROVIDER_ERRORS as err:
            raise _unavailable(str(err) or "no answer") from err
        if provider.authorization_endpoint is None or provider.token_endpoint is None:
            raise _unavailable("it has no authorization endpoint or no token endpoint")
        return provider

    def _callback(self, http: web.Request) -> str:
        return f"{self._sessions.base(http)}/ui/callback"

    def _nonce(self, state: str) -> str:
        return self._sessions.signer.derive("nonce", state)

    def _verifier(self, state: str) -> str:
        return self._sessions.signer.derive("verifier", state)


def _redirect(url: str) -> web.Response:
    return web.Response(status=303, headers={**HEADERS, "location": url})


def _with_query(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"


def _unavailable(reason: str) -> Problem:
    log.warning("login of an operator: the identity provider does not answer: %s", reason)
    return Problem(503, "The identity provider does not answer at present.", {"retry-after": "1"})
