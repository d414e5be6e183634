"""BrowserLogin with a browser: OpenID Connect's authorization code flow, with PKCE (RFC 7636), state and nonce.

    /ui/login ----303----> provider: who are you? ----303----> /ui/callback?code&state ----303----> /ui/
        |  cookie: state                                            |  the same state, in the same browser?
                                                                    |  code and verifier -> provider -> ID token
                                                                    |  its signature, audience, nonce; a role
                                                                    +--- cookie: session

Nonce and verifier follow from the state and a key of the deployment's: nothing is kept between the two steps, and
any gateway may take the second one. Practice: OpenID Connect Core 1.0, 3.1.3.7; RFC 9700.
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
from gateway.settings.token_issuers import OperatorIssuerSettings
from gateway.tenants.issuer import Description, Issuer, bounded
from gateway.tenants.key_set import KeysUnreadable
from gateway.tenants.token_failures import IssuerAway, TokenInvalid
from gateway.tenants.tokens import TOKEN_LENGTH_MAX, claim

log = logging.getLogger(__name__)

COOKIE = "radixgate_login"
LOGIN_SECONDS_MAX = 600.0
EXCHANGE_SECONDS_MAX = 5.0
HOME = "/ui/"
_PAGE = re.compile(r"/ui/[A-Za-z0-9._-]*")
_REASON = re.compile(r"[a-z_]{1,60}")

AWAY: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, TimeoutError, KeysUnreadable, ValueError)


class PendingLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A login that somebody has begun. `to`: the page that it was begun for. `ends`: Unix time."""

    state: str
    to: str
    ends: float


class _Answer(msgspec.Struct):
    id_token: str


class BrowserLogin:
    """Of one provider. What its handlers raise is Problem."""

    def __init__(self, issuer: Issuer[OperatorIssuerSettings], sessions: OperatorSessions) -> None:
        assert issuer.rules.login is not None
        self._issuer = issuer
        self._rules = issuer.rules.login
        self._sessions = sessions

    async def begin(self, http: web.Request) -> web.StreamResponse:
        """Sends the browser to the provider."""
        told = await self._description()
        to = http.query.get("to", HOME)
        begun = PendingLogin(
            state=secrets.token_urlsafe(24),
            to=to if _PAGE.fullmatch(to) else HOME,
            ends=self._sessions.wall() + LOGIN_SECONDS_MAX,
        )
        challenge = hashlib.sha256(self._verifier(begun.state).encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._rules.client_id,
            "redirect_uri": self._callback(http),
            "scope": " ".join(dict.fromkeys(("openid", *self._rules.scopes))),
            "state": begun.state,
            "nonce": self._nonce(begun.state),
            "code_challenge": urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        response = _see(_with_query(str(told.authorization_endpoint), asked))
        response.set_cookie(
            COOKIE,
            self._sessions.signer.seal(begun),
            max_age=int(LOGIN_SECONDS_MAX),
            path="/ui/",
            httponly=True,
            secure=self._sessions.secure(http),
            samesite="Lax",
        )
        return response

    async def come_back(self, http: web.Request) -> web.StreamResponse:
        """The provider has sent the browser back."""
        begun = self._sessions.signer.open(PendingLogin, http.cookies.get(COOKIE, ""))
        state = http.query.get("state", "").encode("utf-8", "replace")
        if (
            begun is None
            or begun.ends <= self._sessions.wall()
            or not hmac.compare_digest(begun.state.encode(), state)
        ):
            raise Problem(400, "This login was begun elsewhere, or too long ago: begin again at /ui/login.")
        # RFC 9207: an answer of another provider's must not be taken for this one's.
        if http.query.get("iss", self._issuer.rules.issuer) != self._issuer.rules.issuer:
            raise Problem(400, "Another identity provider has answered than was asked.")
        if "error" in http.query or not http.query.get("code"):
            reason = http.query.get("error", "")
            said = reason if _REASON.fullmatch(reason) else "no reason that could be repeated"
            raise Problem(403, f"The identity provider has not let you in: {said}.")
        claims = await self._claims(await self._exchange(http, begun), begun)
        rules = self._issuer.rules
        role, name = role_of(rules, claim(claims, rules.role_claim)), f"login:{name_of(claims)}"
        if role is None:
            raise Problem(403, "You are known, but have no role here.")
        response = _see(begun.to)
        response.del_cookie(COOKIE, path="/ui/")
        self._sessions.begin(http, response, name, role)
        log.info("%s has logged in as %s", name, role)
        return response

    async def leave(self, http: web.Request) -> web.StreamResponse:
        """Ends the session. Tells the page where to go, so that the provider's own session ends too."""
        response = web.Response(content_type="application/json", headers=HEADERS)
        session = await self._sessions.end(http, response)
        url = HOME
        if session is not None:
            log.info("%s has logged out", session.name)
            try:
                told = await self._description()
            except Problem:
                pass  # Ours has ended all the same.
            else:
                if told.end_session_endpoint is not None:
                    back = f"{self._sessions.base(http)}{HOME}"
                    asked = {"client_id": self._rules.client_id, "post_logout_redirect_uri": back}
                    url = _with_query(told.end_session_endpoint, asked)
        response.body = msgspec.json.encode({"url": url})
        return response

    async def _exchange(self, http: web.Request, begun: PendingLogin) -> str:
        """The ID token for the code that came."""
        told = await self._description()
        fields = {
            "grant_type": "authorization_code",
            "code": http.query["code"],
            "redirect_uri": self._callback(http),
            "code_verifier": self._verifier(begun.state),
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
                    str(told.token_endpoint), data=fields, headers=headers, allow_redirects=False
                ) as answer:
                    status, text = answer.status, await bounded(answer)
        except AWAY as err:
            raise _away(str(err)) from err
        try:
            if status == 200:
                return msgspec.json.decode(text, type=_Answer).id_token
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        # What it says may hold what it was told: the code, the secret.
        log.warning("the login of an operator: %s answers %d to a code", self._issuer.rules.issuer, status)
        raise Problem(403, "The identity provider has not confirmed who you are: begin again at /ui/login.")

    async def _claims(self, token: str, begun: PendingLogin) -> Mapping[str, Any]:
        """What the ID token says, if it is for this login."""
        client = self._rules.client_id
        try:
            if len(token) > TOKEN_LENGTH_MAX:
                raise TokenInvalid("it is too long")
            header = jwt.get_unverified_header(token)
            claims = await self._issuer.claims(token, header, audiences=(client,))
            if not hmac.compare_digest(str(claims.get("nonce")).encode(), self._nonce(begun.state).encode()):
                raise TokenInvalid("it is of another login")
            several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
            if claims.get("azp", None if several else client) != client:
                raise TokenInvalid("it is for another client")
        except IssuerAway as err:
            raise _away("its keys are not known") from err
        except (TokenInvalid, PyJWTError, ValueError) as err:
            log.warning("the login of an operator: the ID token is not good: %s", err)
            raise Problem(403, "The identity provider's word on who you are is not good.") from err
        return claims

    async def _description(self) -> Description:
        """With the addresses that a login needs."""
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
                told = await self._issuer.description()
        except AWAY as err:
            raise _away(str(err) or "no answer") from err
        if told.authorization_endpoint is None or told.token_endpoint is None:
            raise _away("it describes no logins")
        return told

    def _callback(self, http: web.Request) -> str:
        return f"{self._sessions.base(http)}/ui/callback"

    def _nonce(self, state: str) -> str:
        return self._sessions.signer.derived("nonce", state)

    def _verifier(self, state: str) -> str:
        return self._sessions.signer.derived("verifier", state)


def _see(url: str) -> web.Response:
    return web.Response(status=303, headers={**HEADERS, "location": url})


def _with_query(url: str, asked: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"


def _away(why: str) -> Problem:
    log.warning("the login of an operator: the identity provider: %s", why)
    return Problem(503, "The identity provider does not answer at present.", {"retry-after": "1"})
