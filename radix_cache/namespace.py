"""Namespaces keep caches apart by model, isolation group and block size.

The same text has different block hashes in two namespaces, in the prefix index (`hasher_for`) and in the engine
(`cache_salt`); both depend on the deployment's secret too. A LoRA adapter is a model with a name of its own here.
Images and other media of a prompt differ by their tokens (gateway/media/media_parts.py). Parts are
length-prefixed before they are hashed, so that a crafted name cannot collide with another tenant's: ("ab", "c") and
("a", "bc") are different namespaces.
"""

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache

from radix_cache.blocks import BlockHasher

NAMESPACES_MAX = 4096
"""The number of namespaces for which bytes, ids and keys are cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """The identity of one cache: only prompts of the same namespace can share blocks."""

    model: str
    block_size: int
    """Tokens per block."""
    group: str = ""
    """The isolation group of tenants; empty: shared by all tenants."""

    def packed(self) -> bytes:
        """Return all parts, length-prefixed: equal bytes mean equal namespaces."""
        return _packed(self)

    @classmethod
    def unpack(cls, data: bytes) -> "Namespace":
        """Return the namespace for which `packed` returned these bytes. Raises ValueError for any other bytes."""
        parts, at = [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            parts.append(data[at + 4 : at + 4 + size].decode())
            at += 4 + size
        if len(parts) != 5:
            raise ValueError(f"a namespace has 5 parts, not {len(parts)}")
        model, _, group, _, block_size = parts
        found = cls(model=model, group=group, block_size=int(block_size))
        if found.packed() != data:
            raise ValueError("these bytes are not a packed namespace")
        return found


@lru_cache(maxsize=NAMESPACES_MAX)
def _packed(namespace: Namespace) -> bytes:
    # Two parts are always empty: so namespaces have the same bytes, and hashes, in the indexes of all versions.
    parts = (namespace.model, "", namespace.group, "", str(namespace.block_size))
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "little") + part for part in encoded)


@dataclass(frozen=True, slots=True)
class HashedNamespace:
    """A namespace together with the hasher of its blocks."""

    namespace: Namespace
    hasher: BlockHasher


def hasher_for(namespace: Namespace, secret: bytes) -> BlockHasher:
    """Return the namespace's block hasher, keyed with the deployment secret (seed and salt by HMAC-SHA-256)."""
    seed = hmac.digest(secret, b"radixgate index seed", hashlib.sha256)[:8]
    salt = hmac.digest(secret, b"radixgate index salt" + namespace.packed(), hashlib.sha256)[:16]
    return BlockHasher(block_size=namespace.block_size, seed=int.from_bytes(seed, "little"), salt=salt)


def cache_salt(group: str, secret: bytes) -> str:
    """Return the `cache_salt` that engines get for a group: opaque, stable, and not derivable without the secret.

    It depends on the isolation group alone, since engines keep models and adapters apart themselves.
    An empty group (shared by all tenants) has no salt.
    """
    if not group:
        return ""
    encoded = group.encode()
    text = b"radixgate cache salt" + len(encoded).to_bytes(4, "little") + encoded
    return hmac.digest(secret, text, hashlib.sha256)[:16].hex()
