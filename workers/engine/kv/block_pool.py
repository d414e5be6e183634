"""Counts who uses which KV block.

    block 0        never handed out: padded rows read and write there, so kernels need no special case
    block 1..n     ref 0 = on the free list; ref 1 = one holder; ref k = k holders

A holder is a sequence or the prefix tree. The numbers themselves live in `store`; this file only counts.
"""

from array import array
from itertools import pairwise

from workers.engine.errors import BlockMisused


class BlockPool:
    """`capacity` usable blocks of `block_size` tokens, with reference counts."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self._references = array("i", [0]) * (capacity + 1)
        self._lives = array("Q", [0]) * (capacity + 1)
        # Last freed, first used: its memory is the likeliest to be still warm.
        self._free = list(range(capacity, 0, -1))

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def longest_run(self) -> int:
        """The most free blocks that lie side by side."""
        return max(map(len, self._runs()), default=0)

    def references(self, block: int) -> int:
        """How many hold this block."""
        return self._references[block]

    def allocation_id(self, block: int) -> int:
        """How often this block was handed out: a note on its content is worth something within one life only."""
        return self._lives[block]

    def allocate(self, count: int) -> list[int]:
        """`count` free blocks, each now held once; all or nothing."""
        if count > len(self._free):
            raise BlockMisused(f"{count} blocks were asked for, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            self._lives[block] += 1
        return taken

    def allocate_run(self, count: int) -> list[int]:
        """`count` free blocks side by side, from the first run that is long enough; all or nothing."""
        for run in self._runs():
            if len(run) >= count:
                taken = list(run[:count])
                self._free = [block for block in self._free if not taken[0] <= block <= taken[-1]]
                for block in taken:
                    self._references[block] = 1
                    self._lives[block] += 1
                return taken
        raise BlockMisused(f"{count} blocks side by side were asked for, {self.longest_run} are free")

    def retain(self, block: int) -> None:
        """One more holder of a block that somebody holds already."""
        self._must_be_held(block)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One holder less; the last one frees the block."""
        self._must_be_held(block)
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)

    def check(self) -> None:
        """Raise BlockMisused unless the free list is exactly the blocks that nobody holds."""
        unheld = {block for block in range(1, self.capacity + 1) if self._references[block] == 0}
        if len(self._free) != len(set(self._free)) or set(self._free) != unheld or self._references[0]:
            raise BlockMisused("the free list and the reference counts disagree")

    def _runs(self) -> list[range]:
        """The free blocks as runs of neighbours, lowest first."""
        free = sorted(self._free)
        if not free:
            return []
        breaks = [place for place, (a, b) in enumerate(pairwise(free), 1) if b != a + 1]
        edges = pairwise([0, *breaks, len(free)])
        return [range(free[first], free[last - 1] + 1) for first, last in edges]

    def _must_be_held(self, block: int) -> None:
        if not 1 <= block <= self.capacity or self._references[block] < 1:
            raise BlockMisused(f"block {block} is not held by anybody")
