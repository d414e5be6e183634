"""The reference counts and the free list of the KV blocks.

    block 0        never allocated: padded rows read and write there, so kernels need no special case
    block 1..n     ref 0 = on the free list; ref 1 = one holder; ref k = k holders

A holder is a sequence or the prefix tree. The tensors live in `kv_store`; this file only counts.
"""

from array import array
from itertools import pairwise

from workers.engine.errors import BlockMisused


class BlockPool:
    """A pool of `capacity` usable blocks of `block_size` tokens, with reference counts."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self._references = array("i", [0]) * (capacity + 1)
        self._allocations = array("Q", [0]) * (capacity + 1)
        # Last freed, first used: its memory is the likeliest to be still warm.
        self._free = list(range(capacity, 0, -1))

    @property
    def free_blocks(self) -> int:
        """The number of blocks without a reference."""
        return len(self._free)

    @property
    def longest_run(self) -> int:
        """The length of the longest run of free blocks with consecutive numbers."""
        return max(map(len, self._runs()), default=0)

    def references(self, block: int) -> int:
        """Return the number of references to the block."""
        return self._references[block]

    def allocation_id(self, block: int) -> int:
        """Return how often the block was allocated so far.

        The number identifies the block's current content: what was noted about it under another number is stale.
        """
        return self._allocations[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference.

        Raises:
            BlockMisused: too few are free; then no block is taken.
        """
        if count > len(self._free):
            raise BlockMisused(f"{count} blocks were asked for, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            self._allocations[block] += 1
        return taken

    def allocate_run(self, count: int) -> list[int]:
        """Take `count` free blocks with consecutive numbers from the first run that is long enough.

        Raises:
            BlockMisused: no run is long enough; then no block is taken.
        """
        for run in self._runs():
            if len(run) >= count:
                taken = list(run[:count])
                self._free = [block for block in self._free if not taken[0] <= block <= taken[-1]]
                for block in taken:
                    self._references[block] = 1
                    self._allocations[block] += 1
                return taken
        raise BlockMisused(f"{count} blocks side by side were asked for, {self.longest_run} are free")

    def retain(self, block: int) -> None:
        """Add a reference to a block that has at least one."""
        self._must_be_held(block)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Remove a reference; the block is free when the last one is gone."""
        self._must_be_held(block)
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)

    def check(self) -> None:
        """Raise BlockMisused unless the free list is exactly the set of blocks without a reference."""
        unheld = {block for block in range(1, self.capacity + 1) if self._references[block] == 0}
        if len(self._free) != len(set(self._free)) or set(self._free) != unheld or self._references[0]:
            raise BlockMisused("the free list and the reference counts disagree")

    def _runs(self) -> list[range]:
        """Return the free blocks as runs of consecutive numbers, lowest first."""
        free = sorted(self._free)
        if not free:
            return []
        breaks = [place for place, (a, b) in enumerate(pairwise(free), 1) if b != a + 1]
        edges = pairwise([0, *breaks, len(free)])
        return [range(free[first], free[last - 1] + 1) for first, last in edges]

    def _must_be_held(self, block: int) -> None:
        if not 1 <= block <= self.capacity or self._references[block] < 1:
            raise BlockMisused(f"block {block} has no reference")
