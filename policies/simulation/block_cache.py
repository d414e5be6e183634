"""The KV memory of one simulated engine: blocks in use, blocks that may be used again, and room.

    capacity  |  referenced (by id)  |  private (being computed, or answers)  |  kept, unreferenced  |  empty  |
                                                                                ^ evicted from here, oldest first

A sequence that ends gives its blocks back tail first, so that of equally old blocks the tail goes before the head,
and whatever is kept is always the beginning of a path. Answers have no ids and are freed at once.
"""

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """`evicted` has the ids that went since somebody last took them."""

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
        """Blocks that must not go."""
        return len(self._references) + self._private

    def match(self, blocks: Sequence[int]) -> int:
        """Leading blocks that are here."""
        references, kept = self._references, self._kept
        held = 0
        for block in blocks:
            if block not in references and block not in kept:
                break
            held += 1
        return held

    def acquire(self, blocks: Sequence[int], total: int) -> int | None:
        """Room for `total` blocks of a sequence, leading ones shared; how many were here, or None: it does not
        fit."""
        references, kept = self._references, self._kept
        held = self.match(blocks)
        revived = [block for block in blocks[:held] if block in kept]
        new = total - held
        if self.in_use + len(revived) + new > self.capacity:
            return None
        for block in revived:
            del kept[block]
        for block in blocks[:held]:
            references[block] = references.get(block, 0) + 1
        self._private += new
        excess = self.in_use + len(kept) - self.capacity
        for _ in range(excess):
            self.evicted.append(kept.popitem(last=False)[0])
        return held

    def publish(self, blocks: Sequence[int]) -> None:
        """Private blocks of a sequence have been computed. One that is here already is dropped for the older
        copy."""
        references, kept = self._references, self._kept
        for block in blocks:
            if block in kept:
                del kept[block]
                references[block] = 1
            else:
                references[block] = references.get(block, 0) + 1
        self._private -= len(blocks)

    def release(self, blocks: Sequence[int], private: int) -> None:
        """A sequence ends: its published blocks are kept while there is room, the others are empty."""
        references, kept = self._references, self._kept
        for block in reversed(blocks):
            left = references[block] - 1
            if left:
                references[block] = left
            else:
                del references[block]
                kept[block] = None
        self._private -= private

    def clear(self) -> None:
        """Everything is gone: the worker has restarted."""
        self._references.clear()
        self._kept.clear()
        self._private = 0
        self.evicted.clear()
