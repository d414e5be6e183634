"""What the prefix tree tells others: blocks stored, blocks removed, all cleared.

A block's hash names the whole prefix: SHA-256 over the digest of the block before and the tokens as little-endian
u32, of which the first 64 bits go out, as in SGLang. A salted chain begins with the digest of the salt.
"""

import hashlib
from dataclasses import dataclass
from struct import pack

EVENTS_MAX = 65536
"""More than that between two readings: the oldest are dropped, and whoever counts will notice."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """One full block behind `parent`."""

    hash: int
    parent: int | None
    tokens: tuple[int, ...]
    salt: str


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    hash: int


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


KVEvent = BlockStored | BlockRemoved | Cleared


def prefix_digest(parent: bytes | None, tokens: tuple[int, ...], salt: str) -> bytes:
    """The digest that names a prefix which ends with these tokens."""
    if parent is None:
        parent = hashlib.sha256(b"cache salt" + salt.encode()).digest() if salt else b""
    return hashlib.sha256(parent + pack(f"<{len(tokens)}I", *tokens)).digest()


def block_hash(digest: bytes) -> int:
    """The 64 bits that go out, signed."""
    return int.from_bytes(digest[:8], "big", signed=True)
