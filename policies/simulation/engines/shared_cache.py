"""The cache of the limit `pooled`, with which routing is compared: all workers of a fleet share one cache.

The cache has the fleet's total size, with LRU eviction, and every worker has every block in it, so only load
decides: requests are routed by the least estimated TTFT. It is a point of reference and no bound: a request
starts at once however full the KV memory of its worker is, and the estimates by which requests are routed err, and
ignore prefixes that are being computed. In bursts with new prefixes each worker computes them again, and a
good rule had as little as 0.41 of its mean TTFT. The lower bound is `alone` (least_ttft.py).
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence


class SharedCache:
    """One cache that all engines use (a SimulatedCache). `capacity` is in blocks."""

    def __init__(self, capacity: int) -> None:
        self.evicted: list[int] = []
        self._capacity = capacity
        self._kept: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are cached."""
        held = 0
        for block in blocks:
            if block not in self._kept:
                break
            held += 1
        return held

    def acquire(self, blocks: Sequence[int], total: int) -> int:
        """Return how many leading blocks are cached; every sequence fits."""
        held = self.match(blocks)
        self._use(blocks[:held])
        return held

    def publish(self, blocks: Sequence[int]) -> None:
        """Add computed blocks, and evict the least recently used ones beyond the capacity."""
        self._use(blocks)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def release(self, blocks: Sequence[int], private: int) -> None:
        """End a sequence: its blocks count as used just now."""
        # Blocks that were evicted while the sequence ran stay evicted.
        self._use([block for block in blocks if block in self._kept])

    def clear(self) -> None:
        """Keep everything: the shared cache outlives a restart of a worker."""

    def _use(self, blocks: Sequence[int]) -> None:
        """Mark blocks as used, the tail before the head, so that the tail is evicted first."""
        for block in reversed(blocks):
            self._kept[block] = None
            self._kept.move_to_end(block)


class SharedCacheIndex:
    """The prefix index over a shared cache: every worker holds what the cache holds (KnownPrefixes)."""

    def __init__(self, cache: SharedCache, workers: int) -> None:
        self._cache = cache
        self._workers = workers

    def match(self, blocks: "array[int]") -> dict[int, int]:
        """Return the number of leading blocks that each worker holds."""
        held = self._cache.match(blocks)
        return dict.fromkeys(range(self._workers), held) if held else {}

    def stored(self, worker: int, path: "array[int]", now: float) -> None:
        """Do nothing: the index reads the cache itself."""

    def removed(self, worker: int, blocks: Sequence[int]) -> None:
        """Do nothing: the index reads the cache itself."""

    def forget(self, worker: int) -> None:
        """Do nothing: the cache outlives the worker."""
