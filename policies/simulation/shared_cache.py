"""Upper bounds for any routing rule: the same fleet with one cache that all of its workers share.

    infinite    the cache never evicts; every request starts at once
    pooled      the cache has the fleet's total size, with LRU eviction; every request starts at once
    pooled_kv   as pooled, but a request starts when its worker's KV memory has room for it beside those that run
                there, as on real workers: where KV is short, that keeps requests waiting under any routing

All are routed by minimum TTFT: as all workers hold the same, only load decides. A routing rule can exceed these
bounds only by little.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence


class SharedCache:
    """One cache that all engines use (a SimulatedCache). `capacity` is in blocks; None: endless."""

    def __init__(self, capacity: int | None) -> None:
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
        if self._capacity is not None:
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)

    def release(self, blocks: Sequence[int], private: int) -> None:
        """End a sequence: its blocks count as used just now."""
        # Blocks that were evicted while the sequence ran do not come back.
        self._use([block for block in blocks if block in self._kept])

    def clear(self) -> None:
        """Keep everything: the shared cache outlives a restart of a worker."""

    def _use(self, blocks: Sequence[int]) -> None:
        """Mark blocks as used, the tail before the head, so that the tail is evicted first."""
        for block in reversed(blocks):
            self._kept[block] = None
            self._kept.move_to_end(block)


class PooledKvMemory:
    """One worker's KV memory in front of the shared cache (a SimulatedCache).

    Running sequences take room here; what is kept after them is in the shared cache `kept`. `capacity` is in
    blocks.
    """

    def __init__(self, kept: SharedCache, capacity: int) -> None:
        self.evicted = kept.evicted
        self._kept = kept
        self._capacity = capacity
        self._references: Counter[int] = Counter()
        self._private = 0

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are in the shared cache."""
        return self._kept.match(blocks)

    def acquire(self, blocks: Sequence[int], total: int) -> int | None:
        """Reserve room for a sequence; return how many blocks are cached, or None if it does not fit here."""
        held = blocks[: self._kept.match(blocks)]
        private = total - len(held)
        new = sum(block not in self._references for block in held)
        if len(self._references) + self._private + new + private > self._capacity:
            return None
        self._references.update(held)
        self._private += private
        return self._kept.acquire(blocks, total)

    def publish(self, blocks: Sequence[int]) -> None:
        """Add computed blocks of a running sequence to the shared cache."""
        self._references.update(blocks)
        self._private -= len(blocks)
        self._kept.publish(blocks)

    def release(self, blocks: Sequence[int], private: int) -> None:
        """End a sequence and free its room."""
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                del self._references[block]
        self._private -= private
        self._kept.release(blocks, private)

    def clear(self) -> None:
        """Do nothing: the upper bounds are simulated without restarts."""


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
