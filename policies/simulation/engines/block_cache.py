"""The KV memory of one simulated engine: blocks in use, cached blocks that may be used again, and empty blocks.

    capacity  |  referenced (by id)  |  private (being computed, or answers)  |  kept, unreferenced  |  empty  |
                                                                                ^ evicted from here, oldest first

A sequence that ends gives its blocks back tail first, so that of equally old blocks the tail is evicted before the
head, and what is kept is always the beginning of a path. So is what is referenced, and no block of a path has more
references than the one before it: so bisection finds where a path is no longer cached or referenced. Blocks of
answers have no ids and are freed at once.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """A paged KV cache with least-recently-used eviction. `evicted` collects ids until the caller empties it."""

    __slots__ = ("_kept", "_private", "_references", "capacity", "evicted")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evicted: list[int] = []
        self._references: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    def __contains__(self, block: int) -> bool:
        return block in self._references or block in self._kept

    @property
    def in_use(self) -> int:
        """Blocks that must not be evicted."""
        return len(self._references) + self._private

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are cached."""
        references, kept = self._references, self._kept
        return bisect_left(blocks, True, key=lambda block: block not in references and block not in kept)

    def acquire(self, blocks: Sequence[int], total: int) -> int | None:
        """Reserve `total` blocks for a sequence with these block ids of its prompt.

        Return how many leading blocks were cached and are shared, or None if the sequence does not fit.
        """
        references, kept = self._references, self._kept
        cached = self.match(blocks)
        shared = bisect_left(blocks, True, hi=cached, key=lambda block: block not in references)
        new = total - cached
        if self.in_use + cached - shared + new > self.capacity:
            return None
        for block in blocks[:shared]:
            references[block] += 1
        for block in blocks[shared:cached]:
            del kept[block]
            references[block] = 1
        self._private += new
        excess = self.in_use + len(kept) - self.capacity
        for _ in range(excess):
            self.evicted.append(kept.popitem(last=False)[0])
        return cached

    def publish(self, blocks: Sequence[int]) -> None:
        """Make private blocks of a sequence, which have been computed, available to others.

        A block that is cached already is dropped for the older copy.
        """
        references, kept = self._references, self._kept
        for block in blocks:
            if block in kept:
                del kept[block]
                references[block] = 1
            else:
                references[block] = references.get(block, 0) + 1
        self._private -= len(blocks)

    def release(self, blocks: Sequence[int], private: int) -> None:
        """End a sequence: keep its published blocks while there is room, and free its private ones."""
        references, kept = self._references, self._kept
        shared = bisect_left(blocks, True, key=lambda block: references[block] == 1)
        for block in reversed(blocks[shared:]):
            del references[block]
            kept[block] = None
        for block in blocks[:shared]:
            references[block] -= 1
        self._private -= private

    def clear(self) -> None:
        """Drop everything: the worker has restarted."""
        self._references.clear()
        self._kept.clear()
        self._private = 0
        self.evicted.clear()
