"""Waste of KV memory: the shares of the pool that hold tokens or nothing (Kwon et al., SOSP 2023, figure 2).

pool  |  used  | reserved | internal |        free         |
                                     |  external  |  rest  |

used       slots of computed tokens, each block counted once however many sequences share it
reserved   allocated for output that may still come
internal   allocated and of no use: the rest of a last block (internal fragmentation)
external   free, yet too scattered for the first waiting request (external fragmentation)
"""

from dataclasses import dataclass

from workers.engine.kv.baseline_tables import ContiguousTable
from workers.engine.kv.block_pool import BlockPool
from workers.engine.scheduler.scheduler import Scheduler
from workers.engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class KVWaste:
    """The use of the KV pool at one moment, in slots of one token each; see the module."""

    pool: int
    used: int
    reserved: int
    internal: int
    external: int

    @property
    def lost_share(self) -> float:
        """The share of the allocated and the unusable slots that hold no token."""
        lost = self.reserved + self.internal + self.external
        return lost / (self.used + lost) if lost else 0.0


def measure_kv_waste(scheduler: Scheduler, pool: BlockPool) -> KVWaste:
    """Return how the running sequences use the pool at this moment."""
    size = pool.block_size
    used: dict[int, int] = {}
    reserved = 0
    for sequence in scheduler.running:
        for index, block in enumerate(sequence.blocks.ids):
            if block:
                filled = min(size, max(0, sequence.num_computed - index * size))
                used[block] = max(filled, used.get(block, 0))
        if isinstance(sequence.table, ContiguousTable):
            reserved += sequence.num_prompt + sequence.params.max_tokens - sequence.num_computed
    taken = len(used) * size
    return KVWaste(
        pool=pool.capacity * size,
        used=sum(used.values()),
        reserved=reserved,
        internal=taken - sum(used.values()) - reserved,
        external=_scattered(scheduler.waiting, scheduler, pool) * size,
    )


def _scattered(waiting: list[Sequence], scheduler: Scheduler, pool: BlockPool) -> int:
    """Return the free blocks that would be enough for the first waiting request, if they were consecutive."""
    contiguous = any(isinstance(sequence.table, ContiguousTable) for sequence in scheduler.running)
    if not waiting or not contiguous:
        return 0
    needed = -(-(waiting[0].num_prompt + waiting[0].params.max_tokens) // pool.block_size)
    return pool.free_blocks if pool.longest_run < needed <= pool.free_blocks else 0
