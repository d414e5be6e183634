"""Where KV blocks lie, from the fastest place to the slowest, and how many leading blocks lie how near.

    path of a worker        [ B0 B1 B2 B3 | B4 B5 | B6 ]
    it has them             on the GPU      host    disk        TierBlocks(gpu=4, host=6, all=7)

Counts are cumulative: who can read a block from one tier can from those after it, so each count is that of a path's
beginning, and a whole path on the GPU is the plain case: three equal numbers, packed as the number itself.
"""

from enum import IntEnum
from typing import NamedTuple

BITS = 10
"""Of a packed count; lua/holders.lua packs alike. Runs are no longer than 512 blocks."""

MASK = (1 << BITS) - 1


class Tier(IntEnum):
    """`DISK` stands for anything slower than host memory, and as a bound for all there is."""

    GPU = 0
    HOST = 1
    DISK = 2


_MEDIA = {"GPU": Tier.GPU, "CPU": Tier.HOST, "CPU_PINNED": Tier.HOST, "HOST": Tier.HOST}


def tier_of(medium: str) -> Tier:
    """Of an event's medium: vLLM says GPU, CPU, STORAGE; SGLang GPU, CPU_PINNED, DISK, EXTERNAL."""
    return _MEDIA.get(medium.upper(), Tier.DISK)


class TierBlocks(NamedTuple):
    """Leading blocks on the GPU; on the GPU or in host memory; anywhere: gpu <= host <= all."""

    gpu: int = 0
    host: int = 0
    all: int = 0

    def within(self, tier: Tier) -> int:
        """Leading blocks in this tier or one before it."""
        return self[tier]

    def raised(self, tier: Tier, blocks: int) -> "TierBlocks":
        """At least so many lie in this tier, and count in those after it."""
        return TierBlocks(*(max(held, blocks) if at >= tier else held for at, held in enumerate(self)))

    def lowered(self, tier: Tier, blocks: int) -> "TierBlocks":
        """At most so many lie in this tier, and so in those before it."""
        return TierBlocks(*(min(held, blocks) if at <= tier else held for at, held in enumerate(self)))

    def behind(self, blocks: int) -> "TierBlocks":
        """What is left of it without so many leading blocks."""
        return TierBlocks(*(max(held - blocks, 0) for held in self))


def all_on_gpu(blocks: int) -> TierBlocks:
    """All of it on the GPU: the usual case, made in advance for what prompts have."""
    return _PLAIN[blocks] if blocks < len(_PLAIN) else TierBlocks(blocks, blocks, blocks)


_PLAIN = [TierBlocks(blocks, blocks, blocks) for blocks in range(1024)]


def pack_tiers(held: TierBlocks) -> int:
    """all + (all - host) * 2^10 + (all - gpu) * 2^20, each below 2^10."""
    return held.all + ((held.all - held.host) << BITS) + ((held.all - held.gpu) << 2 * BITS)


def unpack_tiers(value: int) -> TierBlocks:
    """What `packed` gave the number for."""
    if value <= MASK:
        return all_on_gpu(value)
    blocks = value & MASK
    return TierBlocks(blocks - (value >> 2 * BITS), blocks - (value >> BITS & MASK), blocks)
