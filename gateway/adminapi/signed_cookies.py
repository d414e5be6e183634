"""Signed cookies: values that a browser holds and returns, and that only the gateway can make or change.

    base64url(JSON) . base64url(HMAC-SHA-256 over kind and JSON)

A signed value is readable by its holder: it is not encrypted. All gateways of a deployment share the key, because a
browser may come back to any of them.
"""

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import ClassVar, TypeVar

import msgspec

SIGNED_LENGTH_MAX = 4096


class CookieValue(msgspec.Struct, frozen=True):
    """A value that is sent in a signed cookie."""

    cookie_kind: ClassVar[str]
    """Part of the signature, so that a value of one kind is not accepted as another."""


Value = TypeVar("Value", bound=CookieValue)


class CookieSigner:
    """Signs and verifies values with a key of 32 secret bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def from_deployment_secret(cls, deployment_secret: bytes) -> "CookieSigner":
        """Return the signer of a deployment, with a key derived from the deployment's secret."""
        return cls(hmac.digest(deployment_secret, b"radixgate operator sessions", hashlib.sha256))

    def sign(self, value: CookieValue) -> str:
        """Return a value as signed text, which verifies only as a value of the same kind."""
        text = msgspec.json.encode(value)
        return f"{_base64(text)}.{_base64(self._mac(value.cookie_kind, text))}"

    def verify(self, kind: type[Value], signed: str) -> Value | None:
        """Return the value of a signed text; None if the signature is invalid or of another kind."""
        if len(signed) > SIGNED_LENGTH_MAX or not signed.isascii():
            return None
        head, _, tail = signed.partition(".")
        try:
            text, mac = urlsafe_b64decode(head + "=="), urlsafe_b64decode(tail + "==")
            if not hmac.compare_digest(mac, self._mac(kind.cookie_kind, text)):
                return None
            return msgspec.json.decode(text, type=kind)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            return None

    def derive(self, name: str, source: str) -> str:
        """Return 43 characters derived from a name and a source, which cannot be computed without the key."""
        return _base64(hmac.digest(self._key, f"{len(name)}:{name}{source}".encode(), hashlib.sha256))

    def _mac(self, cookie_kind: str, text: bytes) -> bytes:
        name = cookie_kind.encode()
        return hmac.digest(self._key, b"%d:%b" % (len(name), name) + text, hashlib.sha256)


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
