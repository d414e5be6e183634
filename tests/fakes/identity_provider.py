"""An identity provider on a real socket: discovery document, public keys, and tokens with the claims a test wants.

It has logins too (OpenID Connect's authorization code flow). Every login succeeds at once as `person`. A code can
be exchanged for a token once, by the client that the code was made for, with the verifier of its challenge (PKCE).
"""

import hashlib
import json
import secrets
import time
from base64 import b64decode, urlsafe_b64encode
from typing import Any
from urllib.parse import quote, urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "radixgate"
CLIENT, CLIENT_SECRET = "radixgate operators", "a secret: of the client's"


def private_key(algorithm: str) -> Any:
    """Return a fresh private key of the kind that this signature algorithm needs."""
    if algorithm.startswith("ES"):
        return ec.generate_private_key(
            {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
        )
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class IdentityProvider:
    """An OpenID Connect provider: `async with IdentityProvider() as provider`."""

    def __init__(self, algorithm: str = "ES256") -> None:
        self.algorithm = algorithm
        self.asked = 0  # how often its public keys were read
        self.up = True  # False: keys and tokens are answered with 503
        self.describes = True  # False: the discovery document names another issuer
        self.document: bytes | None = None  # the body of the key set, in place of the real keys
        self.issuer = ""
        self.keys: dict[str, Any] = {}
        self.shown: dict[str, dict[str, Any]] = {}  # the public keys in the key set, by key id
        self.person: dict[str, Any] = {"sub": "ada", "roles": ["operator"]}  # the claims of every login
        self.refuses: str | None = None  # the OAuth error code with which logins are refused
        self.begun: list[dict[str, str]] = []  # the query of each authorization request
        self.codes: dict[str, dict[str, str]] = {}  # codes that were not exchanged yet, with their queries
        self._runner: web.AppRunner | None = None
        self.rotate("first")

    def rotate(self, name: str, *, keep: bool = True) -> None:
        """Sign with a new key from now on; with `keep`, older public keys stay in the key set."""
        key = private_key(self.algorithm)
        shown = json.loads(get_default_algorithms()[self.algorithm].to_jwk(key.public_key()))
        if not keep:
            self.shown.clear()
        self.keys[name] = key
        self.shown[name] = {**shown, "kid": name, "use": "sig", "alg": self.algorithm}
        self.signs_with = name

    def token(self, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a signed token that is valid for a minute, with these claims changed; None leaves a claim out."""
        now = time.time()
        said = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "somebody",
            "iat": now,
            "exp": now + 60,
            "tenant": "acme",
            **claims,
        }
        payload = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(
            payload,
            self.keys[self.signs_with],
            algorithm=self.algorithm,
            headers={
                name: value
                for name, value in {"kid": self.signs_with, **(headers or {})}.items()
                if value is not None
            },
        )

    async def __aenter__(self) -> "IdentityProvider":
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._describe)
        app.router.add_get("/keys", self._keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.issuer = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _describe(self, http: web.Request) -> web.Response:
        told = {
            "issuer": self.issuer if self.describes else "http://elsewhere",
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "end_session_endpoint": f"{self.issuer}/logout",
        }
        return web.json_response(told)

    async def _keys(self, http: web.Request) -> web.Response:
        self.asked += 1
        if not self.up:
            return web.Response(status=503)
        if self.document is not None:
            return web.Response(body=self.document)
        return web.json_response({"keys": list(self.shown.values())})

    async def _authorize(self, http: web.Request) -> web.Response:
        asked = dict(http.query)
        self.begun.append(asked)
        if asked["client_id"] != CLIENT or asked["response_type"] != "code":
            return web.Response(status=400)
        told = {"state": asked["state"], "iss": self.issuer}
        if self.refuses is not None:
            told["error"] = self.refuses
        else:
            told["code"] = secrets.token_urlsafe()
            self.codes[told["code"]] = asked
        return web.Response(status=302, headers={"location": f"{asked['redirect_uri']}?{urlencode(told)}"})

    async def _token(self, http: web.Request) -> web.Response:
        given = await http.post()
        asked = self.codes.pop(str(given["code"]), None)
        kind, _, who = http.headers.get("Authorization", "").partition(" ")
        known = kind == "Basic" and b64decode(who).decode() == f"{quote(CLIENT)}:{quote(CLIENT_SECRET)}"
        if not self.up:
            return web.Response(status=503)
        if not known:
            return web.json_response({"error": "invalid_client"}, status=401)
        digest = hashlib.sha256(str(given.get("code_verifier")).encode()).digest()
        if (
            asked is None
            or asked["redirect_uri"] != given["redirect_uri"]
            or asked["code_challenge"] != urlsafe_b64encode(digest).rstrip(b"=").decode()
            or given["grant_type"] != "authorization_code"
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        said = {"aud": CLIENT, "nonce": asked["nonce"], **self.person}
        return web.json_response(
            {"access_token": "x", "token_type": "Bearer", "id_token": self.token(**said)}
        )
