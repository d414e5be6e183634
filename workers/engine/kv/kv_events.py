"""The KV events of the prefix tree: a block was stored, a block was removed, all blocks were cleared.

A block's hash names the whole prefix: SHA-256 over the digest of the block before and the tokens as little-endian
u32, of which the first 64 bits are published, as in SGLang. A salted chain begins with the digest of the salt, and
the chain of a LoRA adapter with the digest of its name and the salt.
"""

import hashlib
from dataclasses import dataclass
from struct import pack

EVENTS_MAX = 65536
"""Events kept between two readings. Above it the oldest are dropped: a gap for readers that count blocks."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A full block was put into the prefix tree."""

    hash: int
    parent: int | None
    """The hash of the block before it; None for the first block of a prefix."""
    tokens: tuple[int, ...]
    salt: str
    """The cache salt of the request; blocks with different salts are never shared."""
    lora: str = ""
    """The LoRA adapter that computed the block; empty: the model itself."""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block was evicted from the prefix tree."""

    hash: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole prefix tree was cleared."""


KVEvent = BlockStored | BlockRemoved | Cleared


def prefix_digest(parent: bytes | None, tokens: tuple[int, ...], salt: str, lora: str = "") -> bytes:
    """Return the SHA-256 digest that names a prefix with these tokens in its last block.

    Args:
        parent: the digest of the block before, None for the first block.
        tokens: the tokens of the last block.
        salt: the cache salt, which begins the chain where it is not empty.
        lora: the LoRA adapter, which begins the chain where it is not empty.
    """
    if parent is None:
        parent = _beginning(salt, lora)
    return hashlib.sha256(parent + pack(f"<{len(tokens)}I", *tokens)).digest()


def _beginning(salt: str, lora: str) -> bytes:
    """Return what the digests of a salt and a LoRA adapter begin with."""
    if lora:
        name = lora.encode()
        # The length keeps the name apart from the salt.
        return hashlib.sha256(b"lora" + len(name).to_bytes(4, "little") + name + salt.encode()).digest()
    return hashlib.sha256(b"cache salt" + salt.encode()).digest() if salt else b""


def block_hash(digest: bytes) -> int:
    """Return the published hash of a block: the first 64 bits of its digest, as a signed integer."""
    return int.from_bytes(digest[:8], "big", signed=True)
