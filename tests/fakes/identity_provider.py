"""An identity provider on a real socket: it describes itself, shows its public keys, and signs what a test asks."""

import json
import time
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "radixgate"


def private_key(algorithm: str) -> Any:
    """A fresh key of the kind that this algorithm needs."""
    if algorithm.startswith("ES"):
        return ec.generate_private_key(
            {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
        )
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class IdentityProvider:
    """Use as `async with IdentityProvider() as provider`. `asked`: how often its keys were read."""

    def __init__(self, algorithm: str = "ES256") -> None:
        self.algorithm = algorithm
        self.asked = 0
        self.up = True
        self.describes = True
        self.document: bytes | None = None  # instead of its keys
        self.issuer = ""
        self.keys: dict[str, Any] = {}
        self.shown: dict[str, dict[str, Any]] = {}
        self._runner: web.AppRunner | None = None
        self.rotate("first")

    def rotate(self, name: str, *, keep: bool = True) -> None:
        """Signs with another key from now on; `keep`: the old ones are still shown."""
        key = private_key(self.algorithm)
        shown = json.loads(get_default_algorithms()[self.algorithm].to_jwk(key.public_key()))
        if not keep:
            self.shown.clear()
        self.keys[name] = key
        self.shown[name] = {**shown, "kid": name, "use": "sig", "alg": self.algorithm}
        self.signs_with = name

    def token(self, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token that is good for a minute, but for what is said here; None leaves a claim out."""
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
        }
        return web.json_response(told)

    async def _keys(self, http: web.Request) -> web.Response:
        self.asked += 1
        if not self.up:
            return web.Response(status=503)
        if self.document is not None:
            return web.Response(body=self.document)
        return web.json_response({"keys": list(self.shown.values())})
