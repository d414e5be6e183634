"""What no routing rule can pass by much: the same fleet with one cache for all of its workers.

*infinite*: the cache never forgets. *pooled*: it has the fleet's total size, and forgets what was used least
recently. Both let every request in at once. *pooled_kv*: pooled, and a request starts when its worker's KV memory
has room for it beside those that run there, as on real workers: where KV is short, that keeps requests waiting
whoever routes. All are routed by minimum TTFT: as all workers hold the same, only load decides.
"""

from array import array
from collections import Counter, OrderedDict
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


class Workplace:
    """One worker's memory before the shared cache: what runs takes room here, what is kept is `kept`'s.

    See engine.Cache. `capacity` in blocks.
    """

    def __init__(self, kept: SharedCache, capacity: int) -> None:
        self.evicted = kept.evicted
        self._kept = kept
        self._capacity = capacity
        self._references: Counter[int] = Counter()
        self._private = 0

    def match(self, blocks: Sequence[int]) -> int:
        return self._kept.match(blocks)

    def acquire(self, blocks: Sequence[int], total: int) -> int | None:
        held = blocks[: self._kept.match(blocks)]
        private = total - len(held)
        new = sum(block not in self._references for block in held)
        if len(self._references) + self._private + new + private > self._capacity:
            return None
        self._references.update(held)
        self._private += private
        return self._kept.acquire(blocks, total)

    def publish(self, blocks: Sequence[int]) -> None:
        self._references.update(blocks)
        self._private -= len(blocks)
        self._kept.publish(blocks)

    def release(self, blocks: Sequence[int], private: int) -> None:
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                del self._references[block]
        self._private -= private
        self._kept.release(blocks, private)

    def clear(self) -> None:
        """Only workers that stay are simulated."""


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
