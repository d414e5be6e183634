"""Baseline layouts of KV, contiguous and uncached, against which the gain of paging is measured.

    contiguous   [ p p p p g g . . . . | hole | p p g . . . ]
                               ^ reserved
                 each request reserves prompt and max_tokens in one run, and shares nothing; a hole that is too
                 short for the next request is lost (external fragmentation)
    none         nothing is kept: every step computes the whole sequence again

Both implement the KVTable protocol. (The names of what is lost are those of Kwon et al., SOSP 2023, figure 2.)
"""

import sys
from collections.abc import Sequence

from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockCopy, NextBlock


class ContiguousTable:
    """One contiguous run of blocks for all that a request may ever need, allocated at its first step."""

    recomputes_everything = False
    shared_tokens = 0

    def __init__(self, pool: BlockPool, reserve: int) -> None:
        """Prepare a table; `reserve` is the number of tokens of prompt and output together."""
        self.ids: list[int] = []
        self.computed = 0
        self._pool = pool
        self._blocks = -(-reserve // pool.block_size)
        self.tokens_max = self._blocks * pool.block_size

    def fits(self, num_tokens: int, reserved_blocks: int) -> bool:
        """Return whether a free run is long enough; a running request never needs more than it reserved."""
        return bool(self.ids) or self._pool.longest_run >= self._blocks

    def missing(self, num_tokens: int) -> int:
        """Return the whole reservation before the first step, and 0 afterwards."""
        return 0 if self.ids else self._blocks

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """Allocate the whole reservation at the first call; nothing is ever copied."""
        if not self.ids:
            self.ids = self._pool.allocate_run(self._blocks)
        return []

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """Record how many tokens are computed; no block is shared."""
        self.computed = num_computed

    def shrink(self, num_tokens: int) -> None:
        """Do nothing: the reservation is kept until the request ends."""

    def allocation_id(self, index: int) -> int:
        """Return the allocation number of the block at `index`."""
        return self._pool.allocation_id(self.ids[index])

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """Return None: no block can be shared."""
        return None

    def close(self) -> None:
        """Release every block."""
        for block in reversed(self.ids):
            self._pool.release(block)
        self.ids = []


class UncachedTable:
    """A table without a KV cache: every position falls into block 0, which is written and never read."""

    tokens_max = sys.maxsize
    recomputes_everything = True
    shared_tokens = 0
    computed = 0

    def __init__(self, block_size: int) -> None:
        self.ids: list[int] = []
        self._size = block_size

    def fits(self, num_tokens: int, reserved_blocks: int) -> bool:
        """Return True: no block is needed."""
        return True

    def missing(self, num_tokens: int) -> int:
        """Return 0: no block is needed."""
        return 0

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """Let every position up to `num_tokens` point to block 0."""
        self.ids = [0] * -(-num_tokens // self._size)
        return []

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """Do nothing: computed tokens are not kept."""

    def shrink(self, num_tokens: int) -> None:
        """Do nothing: there is no block to release."""

    def allocation_id(self, index: int) -> int:
        """Return 0: block 0 is never allocated."""
        return 0

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """Return None: no block can be shared."""
        return None

    def close(self) -> None:
        """Drop the positions; there is no block to release."""
        self.ids = []
