"""API keys: how they are made, parsed and hashed.

    rg-7Kq3xYb1-<43 characters: 256 random bits><6 characters: checksum>
       ^ public id: may stand in logs, names the key in settings

By the checksum (CRC-32) scanners and commands recognise a key; requests do not verify it. Of a key that was
made here only the HMAC-SHA-256 under a server pepper is stored. It has 256 random bits, so no slow hash is needed,
and without the pepper a stolen list of hashes cannot even be tested. Keys that were taken over from another gateway
may be stored as the plain SHA-256 that it had (PLAIN_HASH_PREFIX).
"""

import hashlib
import hmac
import secrets
import zlib
from dataclasses import dataclass

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX = "rg-"
OPERATOR_PREFIX = "rgop-"
ID_LENGTH = 8
SECRET_LENGTH = 43
CHECKSUM_LENGTH = 6
BLOCK_BYTES = 64
"""The block size of SHA-256."""
HASH_PREFIX = "hmac-sha256:"
PLAIN_HASH_PREFIX = "sha256:"
"""Prefix of hashes without the pepper, for keys from another gateway product that stored only this hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made; its `text` is shown once, its `hash` is stored."""

    id: str
    text: str
    hash: str


def pepper(deployment_secret: bytes) -> bytes:
    """Return the server pepper of all key hashes."""
    return hmac.digest(deployment_secret, b"radixgate key pepper", hashlib.sha256)


def new_key(pepper: bytes, prefix: str = PREFIX) -> NewKey:
    """Make a key with 256 bits of randomness."""
    public = "".join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))
    body = f"{prefix}{public}-{_base62(secrets.randbits(256), SECRET_LENGTH)}"
    text = body + _checksum(body)
    return NewKey(id=public, text=text, hash=HASH_PREFIX + key_digest(text, pepper).hex())


def key_id(presented: str) -> str | None:
    """Return the public id of a well-formed key; None for any other text. The key need not be valid."""
    public, dash, rest = presented.removeprefix(PREFIX).rpartition("-")
    if not presented.startswith(PREFIX) or not dash or len(rest) != SECRET_LENGTH + CHECKSUM_LENGTH:
        return None
    body = presented[:-CHECKSUM_LENGTH]
    return public if presented.isascii() and _checksum(body) == presented[-CHECKSUM_LENGTH:] else None


def claimed_id(presented: str, prefix: str = PREFIX) -> str:
    """Return the public id of a text that has the shape of a key; empty for any other text.

    The checksum is not verified, since a key with a wrong checksum has another digest.
    """
    dash = len(presented) - SECRET_LENGTH - CHECKSUM_LENGTH - 1
    if dash < len(prefix) or presented[dash] != "-" or not presented.startswith(prefix):
        return ""
    return presented[len(prefix) : dash]


def key_digest(presented: str, pepper: bytes) -> bytes:
    """Return the HMAC-SHA-256 of the whole text as presented, whatever it is."""
    return hmac.digest(pepper, presented.encode("utf-8", "surrogatepass"), "sha256")


class KeyDigests:
    """Computes `key_digest` for many keys under one pepper: the two halves of HMAC (RFC 2104) begin in advance.

    A general HMAC looks its hash function up and prepares both halves for every key, at six times the cost.
    """

    def __init__(self, pepper: bytes) -> None:
        key = (hashlib.sha256(pepper).digest() if len(pepper) > BLOCK_BYTES else pepper).ljust(
            BLOCK_BYTES, b"\0"
        )
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def of(self, presented: str) -> bytes:
        """Return the digest of the whole text as presented, whatever it is."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(presented.encode("utf-8", "surrogatepass"))
        outer.update(inner.digest())
        return outer.digest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
