"""Computes the chained hashes of a prompt's full blocks, from its tokens or its text.

    tokens   t0 t1 t2 t3 | t4 t5 t6 t7 | t8 t9          block size 4
    local        L0      |     L1      | (not full: no hash)
    chained      C0      |  H(C0, L1)  |

A chained hash names the whole prefix that ends with its block. Two prompts have a chained hash in common only if
everything up to that block is equal, and a worker that holds a block holds all blocks before it.

Local hash: XXH3-64 over the block's tokens as little-endian u32. Chain: XXH3-64 over little-endian u64
previous and u64 local; the first chained hash is the first local hash. Without a salt, and with SEED, these are the
hashes of NVIDIA Dynamo's router and of the Mooncake indexer standard (RFC 1403). A salted chain begins with
XXH3-64 over (salt bytes, local), so that two namespaces have no hash in common.

XXH3 hashes with a public seed can be forged in seconds, so a gateway's hashers have a secret seed and salt
(`hasher_for` of namespace.py). An index hash only guides routing; it never authorises the reuse of KV cache.
"""

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, NewType, TypeAlias

from xxhash import xxh3_64_intdigest

SEED = 1337
"""The public seed of unsalted hashes."""
TOKEN_BYTES = 4

COPIED_BYTES_MAX = 256 * 1024
"""Text up to this length is copied to be hashed; longer text is hashed in place."""

BlockHash = NewType("BlockHash", int)
"""A chained block hash: 0 <= h < 2**64."""

if TYPE_CHECKING:
    Hashes: TypeAlias = array[int]
    Tokens: TypeAlias = array[int]
else:
    # `array` takes no parameters at run time before Python 3.12.
    Hashes = array
    """Chained block hashes of one prompt, in order: array("Q"), 8 bytes a block."""

    Tokens = array
    """Token ids of one prompt: array("I"), 4 bytes a token."""

_PAIR = Struct("<QQ")
_SINGLE = Struct("<Q")


def pack_tokens(tokens: Iterable[int]) -> Tokens:
    """Return token ids (each 0 <= t < 2**32) as the packed array that the hasher reads."""
    return array("I", tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHasher:
    """Computes the block hashes of prompts in one namespace."""

    block_size: int
    """Tokens per block."""
    seed: int = SEED
    salt: bytes = b""
    """Mixed into the first block's hash, so that two namespaces have no hash in common; empty: no salt."""

    def of_tokens(self, tokens: Tokens) -> Hashes:
        """Return the chained hashes of the full blocks of a token array("I"); the unfinished tail has none."""
        if sys.byteorder == "big":
            tokens = tokens[:]
            tokens.byteswap()
        return self._chain(memoryview(tokens).cast("B"))

    def of_text(self, text: bytes | bytearray, before: bytes = b"") -> Hashes:
        """Return the chained hashes of canonical text, for models without a tokenizer.

        Four bytes count as one token, so a block of text has as many bytes as a block of packed tokens. `before` is
        hashed in front of the text; it is at most one block long.
        """
        rest = self.block_size * TOKEN_BYTES - len(before)
        if len(text) <= max(COPIED_BYTES_MAX, rest):
            return self._chain(memoryview(before + text))
        chained = self._chain(memoryview(before + text[:rest]))
        chained.extend(self._chain(memoryview(text)[rest:], chained[-1]))
        return chained

    def local_hashes(self, tokens: Tokens) -> Hashes:
        """Return the unchained hashes of the full blocks, as routers exchange them on the wire."""
        data, size = memoryview(tokens).cast("B"), self.block_size * TOKEN_BYTES
        starts = range(0, len(data) - size + 1, size)
        return array("Q", [xxh3_64_intdigest(data[at : at + size], self.seed) for at in starts])

    def next(self, previous: BlockHash | None, tokens: Tokens) -> BlockHash:
        """Return the chained hash of one full block that follows the block hashed `previous` (None: the first)."""
        if previous is None:
            return BlockHash(self.of_tokens(tokens)[0])
        return BlockHash(xxh3_64_intdigest(_PAIR.pack(previous, self.local_hashes(tokens)[0]), self.seed))

    def _chain(self, data: memoryview, previous: int | None = None) -> Hashes:
        """Cut packed tokens into full blocks, and return their chained hashes."""
        size, seed, pack = self.block_size * TOKEN_BYTES, self.seed, _PAIR.pack
        chained = []
        for (block,) in Struct(f"{size}s").iter_unpack(data[: len(data) - len(data) % size]):
            local = xxh3_64_intdigest(block, seed)
            if previous is not None:
                previous = xxh3_64_intdigest(pack(previous, local), seed)
            elif self.salt:
                previous = xxh3_64_intdigest(self.salt + _SINGLE.pack(local), seed)
            else:
                previous = local
            chained.append(previous)
        return array("Q", chained)
