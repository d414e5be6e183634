"""What no routing rule can pass by much: the same fleet with one cache for all of its workers.

*infinite*: the cache never forgets. *pooled*: it has the fleet's total size, and forgets what was used least
recently. Both without admission limits, and routed by minimum TTFT: as all workers hold the same, only load
decides.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence


class SharedCache:
    """One memory that all engines use; see engine.Cache. `capacity` in blocks; None: endless."""

    def __init__(self, capacity: int | None) -> None:
        self.evicted: list[int] = []
        self._capacity = capacity
        self._kept: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: Sequence[int]) -> int:
        held = 0
        for block in blocks:
            if block not in self._kept:
                break
            held += 1
        return held

    def acquire(self, blocks: Sequence[int], total: int) -> int:
        held = self.match(blocks)
        self._use(blocks[:held])
        return held

    def publish(self, blocks: Sequence[int]) -> None:
        self._use(blocks)
        if self._capacity is not None:
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)

    def release(self, blocks: Sequence[int], private: int) -> None:
        # Blocks that went while the sequence ran do not come back.
        self._use([block for block in blocks if block in self._kept])

    def clear(self) -> None:
        """A worker's restart costs the shared memory nothing."""

    def _use(self, blocks: Sequence[int]) -> None:
        """The tail before the head, so that the tail goes first."""
        for block in reversed(blocks):
            self._kept[block] = None
            self._kept.move_to_end(block)


class HeldByAll:
    """The index over a shared cache: whatever it has, every worker has."""

    def __init__(self, cache: SharedCache, workers: int) -> None:
        self._cache = cache
        self._workers = workers

    def match(self, blocks: "array[int]") -> dict[int, int]:
        held = self._cache.match(blocks)
        return dict.fromkeys(range(self._workers), held) if held else {}

    def stored(self, worker: int, path: "array[int]", now: float) -> None:
        """The cache knows."""

    def removed(self, worker: int, blocks: Sequence[int]) -> None:
        """The cache knows."""

    def forget(self, worker: int) -> None:
        """The cache outlives the worker."""
