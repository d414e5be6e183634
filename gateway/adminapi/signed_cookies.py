"""CookieSigner: values that go out in a cookie and come back as they were, or not at all.

    base64url(JSON) . base64url(HMAC-SHA-256 over kind and JSON)

What is sealed can be read by whoever holds it, and changed by nobody. All gateways of a deployment share the key: a
browser may come back to any of them.
"""

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TypeVar

import msgspec

SEALED_MAX = 4096

Value = TypeVar("Value", bound=msgspec.Struct)


class CookieSigner:
    """`key`: 32 bytes that nobody else has."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, deployment_secret: bytes) -> "CookieSigner":
        return cls(hmac.digest(deployment_secret, b"radixgate operator sessions", hashlib.sha256))

    def seal(self, value: msgspec.Struct) -> str:
        """One that only opens as a value of the same type."""
        text = msgspec.json.encode(value)
        return f"{_text(text)}.{_text(self._mac(type(value), text))}"

    def open(self, kind: type[Value], sealed: str) -> Value | None:
        """None for what was not sealed here, or as something else."""
        if len(sealed) > SEALED_MAX or not sealed.isascii():
            return None
        head, _, tail = sealed.partition(".")
        try:
            text, mac = urlsafe_b64decode(head + "=="), urlsafe_b64decode(tail + "==")
            if not hmac.compare_digest(mac, self._mac(kind, text)):
                return None
            return msgspec.json.decode(text, type=kind)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            return None

    def derived(self, name: str, of: str) -> str:
        """43 characters that follow from these two, and that nobody else can know."""
        return _text(hmac.digest(self._key, f"{len(name)}:{name}{of}".encode(), hashlib.sha256))

    def _mac(self, kind: type, text: bytes) -> bytes:
        name = kind.__name__.encode()
        return hmac.digest(self._key, b"%d:%b" % (len(name), name) + text, hashlib.sha256)


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
