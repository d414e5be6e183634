"""KeySet: the public keys of an issuer (JWKS, RFC 7517), and the choice of the key that may have signed a token.

A key is valid only for the algorithms of its own kind, or for fewer if it has an `alg`. A token's claims about its
signature never decide how a key is used (RFC 8725, 3.1). Secret keys, weak keys, keys for other purposes than
signatures, and keys beyond KEYS_MAX are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

KEYS_MAX = 100
RSA_BITS_MIN = 2048
"""The shortest RSA key that is accepted (RFC 7518, 3.3)."""

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class KeysUnreadable(Exception):
    """The document could not be read, is not a JWKS, or has no usable key."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One public key of an issuer."""

    id: str | None
    key: Any  # as PyJWT takes it
    algorithms: frozenset[str]  # with which it may be used


class KeySet:
    """The usable keys of a JWKS document. Raises KeysUnreadable."""

    def __init__(self, json: bytes) -> None:
        try:
            entries = msgspec.json.decode(json, type=_Document).keys
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise KeysUnreadable(f"not a JWKS: {err}") from err
        self.keys = tuple(_usable(entries[:KEYS_MAX]))
        if not self.keys:
            raise KeysUnreadable("the JWKS has no key that can be used")

    def find(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """Return the key with that id for that algorithm; without an id, the only key for the algorithm.

        Returns None if there is no such key.
        """
        found = [
            key for key in self.keys if algorithm in key.algorithms and (key_id is None or key.id == key_id)
        ]
        return found[0] if len(found) == 1 or (found and key_id is not None) else None


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


def _usable(entries: Iterable[Mapping[str, Any]]) -> Iterable[PublicKey]:
    for entry in entries:
        operations = entry.get("key_ops")
        if entry.get("use", "sig") != "sig" or (isinstance(operations, list) and "verify" not in operations):
            continue
        try:
            # `alg` is left out, because it restricts a key's use and does not matter for reading the key.
            key = PyJWK({name: value for name, value in entry.items() if name != "alg"}).key
        except (PyJWTError, ValueError, TypeError, AttributeError, KeyError):
            continue
        algorithms, key_id, algorithm = _algorithms(key), entry.get("kid"), entry.get("alg")
        if algorithm is not None:
            algorithms = algorithms & {algorithm} if isinstance(algorithm, str) else frozenset()
        if algorithms:
            yield PublicKey(key_id if isinstance(key_id, str) else None, key, algorithms)


def _algorithms(key: object) -> frozenset[str]:
    """Return the algorithms of a key's kind; none if it is not an accepted public key."""
    if isinstance(key, RSAPublicKey):
        return frozenset(_RSA if key.key_size >= RSA_BITS_MIN else ())
    if isinstance(key, EllipticCurvePublicKey):
        return frozenset({_CURVES[key.curve.name]} if key.curve.name in _CURVES else ())
    return frozenset({"EdDSA"} if isinstance(key, Ed25519PublicKey) else ())
