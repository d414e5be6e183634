"""Storage tiers of KV blocks, from fastest to slowest, and the number of leading blocks in each.

    path on a worker        [ B0 B1 B2 B3 | B4 B5 | B6 ]
    where the blocks lie    on the GPU      host    disk        TierBlocks(gpu=4, host=6, all=7)

Counts are cumulative: a block in one tier also counts in the slower tiers, so that each count describes a beginning
of the path. Usually a path is entirely on the GPU; its three equal counts are packed as that number itself.
"""

from enum import IntEnum
from typing import NamedTuple

BITS = 10
"""Bits of one count in a packed number, as in lua/holders.lua. Runs have at most 512 blocks."""

MASK = (1 << BITS) - 1


class Tier(IntEnum):
    """A storage tier of KV blocks; `DISK` is anything slower than host memory. As a bound it means all tiers."""

    GPU = 0
    HOST = 1
    DISK = 2


_MEDIA = {"GPU": Tier.GPU, "CPU": Tier.HOST, "CPU_PINNED": Tier.HOST, "HOST": Tier.HOST}


def tier_of(medium: str) -> Tier:
    """Return the tier of an event's medium (vLLM: GPU, CPU, STORAGE; SGLang: GPU, CPU_PINNED, DISK, EXTERNAL)."""
    return _MEDIA.get(medium.upper(), Tier.DISK)


class TierBlocks(NamedTuple):
    """Cumulative counts of leading blocks by tier: gpu <= host <= all."""

    gpu: int = 0
    """Leading blocks on the GPU."""
    host: int = 0
    """Leading blocks on the GPU or in host memory."""
    all: int = 0
    """Leading blocks in any tier."""

    def within(self, tier: Tier) -> int:
        """Return the leading blocks in this tier or a faster one."""
        return self[tier]

    def at_least(self, tier: Tier, blocks: int) -> "TierBlocks":
        """Return the counts with at least `blocks` in this tier, and so in slower ones."""
        return TierBlocks(*(max(held, blocks) if at >= tier else held for at, held in enumerate(self)))

    def at_most(self, tier: Tier, blocks: int) -> "TierBlocks":
        """Return the counts with at most `blocks` in this tier, and so in faster ones."""
        return TierBlocks(*(min(held, blocks) if at <= tier else held for at, held in enumerate(self)))

    def without_first(self, blocks: int) -> "TierBlocks":
        """Return the counts of the blocks after the first `blocks`."""
        return TierBlocks(*(max(held - blocks, 0) for held in self))


def all_on_gpu(blocks: int) -> TierBlocks:
    """Return the counts of a path that is entirely on the GPU; common lengths are precomputed."""
    return _ALL_ON_GPU[blocks] if blocks < len(_ALL_ON_GPU) else TierBlocks(blocks, blocks, blocks)


_ALL_ON_GPU = [TierBlocks(blocks, blocks, blocks) for blocks in range(1024)]


def pack_tiers(held: TierBlocks) -> int:
    """Return the counts as one number: all + (all - host) * 2^10 + (all - gpu) * 2^20, each below 2^10."""
    return held.all + ((held.all - held.host) << BITS) + ((held.all - held.gpu) << 2 * BITS)


def unpack_tiers(value: int) -> TierBlocks:
    """Return the counts for which `pack_tiers` returned this number."""
    if value <= MASK:
        return all_on_gpu(value)
    blocks = value & MASK
    return TierBlocks(blocks - (value >> 2 * BITS), blocks - (value >> BITS & MASK), blocks)
