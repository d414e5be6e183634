"""Two ways to lay out KV that paging replaced, kept so that what paging brings can be measured.

    contiguous   [ p p p p g g . . . . | hole | p p g . . . ]
                               ^ reserved
                 each request reserves prompt and max_tokens in one run, and shares nothing; a hole that is too
                 short for the next request is lost (external fragmentation)
    none         nothing is kept: every step computes the whole sequence again

They keep the promise of `Table`. (The names of what is lost are those of Kwon et al., SOSP 2023, figure 2.)
"""

from collections.abc import Sequence

from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockCopy, NextBlock


class ContiguousTable:
    """One run of blocks for all that a request may ever need, taken at its first step."""

    recomputes_everything = False
    shared_tokens = 0

    def __init__(self, pool: BlockPool, reserve: int) -> None:
        """`reserve`: tokens of prompt and output together."""
        self.ids: list[int] = []
        self.computed = 0
        self._pool = pool
        self._blocks = -(-reserve // pool.block_size)

    def fits(self, num_tokens: int, promised: int) -> bool:
        """As promised by Table; nobody who runs needs more than was reserved."""
        return bool(self.ids) or self._pool.longest_run >= self._blocks

    def missing(self, num_tokens: int) -> int:
        """As promised by Table."""
        return 0 if self.ids else self._blocks

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """As promised by Table."""
        if not self.ids:
            self.ids = self._pool.allocate_run(self._blocks)
        return []

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """As promised by Table; nothing is shared."""
        self.computed = num_computed

    def shrink(self, num_tokens: int) -> None:
        """As promised by Table; what was reserved stays reserved."""

    def allocation_id(self, index: int) -> int:
        """As promised by Table."""
        return self._pool.allocation_id(self.ids[index])

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """As promised by Table; there is never one."""
        return None

    def close(self) -> None:
        """As promised by Table."""
        for block in reversed(self.ids):
            self._pool.release(block)
        self.ids = []


class UncachedTable:
    """No KV at all: every position falls into block 0, which is written and never read."""

    recomputes_everything = True
    shared_tokens = 0
    computed = 0

    def __init__(self, block_size: int) -> None:
        self.ids: list[int] = []
        self._size = block_size

    def fits(self, num_tokens: int, promised: int) -> bool:
        """As promised by Table."""
        return True

    def missing(self, num_tokens: int) -> int:
        """As promised by Table."""
        return 0

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """As promised by Table."""
        self.ids = [0] * -(-num_tokens // self._size)
        return []

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """As promised by Table: forgotten."""

    def shrink(self, num_tokens: int) -> None:
        """As promised by Table."""

    def allocation_id(self, index: int) -> int:
        """As promised by Table."""
        return 0

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """As promised by Table; there is never one."""
        return None

    def close(self) -> None:
        """As promised by Table."""
        self.ids = []
