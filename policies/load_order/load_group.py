"""A group of workers that a request of any length compares alike, in the order of their load."""

from collections.abc import Sequence
from heapq import heapify, heappush
from typing import Generic, TypeVar

from policies.latency_model import PACE
from policies.load_order.ordered_worker import OrderedWorker

HEAP_SLACK = 32
"""Entries that a heap may have beyond twice its workers before outdated ones are removed."""


Ordered = TypeVar("Ordered", bound=OrderedWorker)


class RankedWorker(Generic[Ordered]):
    """A worker as it was when its load last changed."""

    __slots__ = ("able", "backlog_ms", "groups", "half", "serial", "streams", "tokens_per_ms", "worker")

    def __init__(self, worker: Ordered) -> None:
        self.worker = worker
        self.serial = 0
        """The number of its current entries."""
        self.able = False
        """Whether it may get a new request."""
        self.half = False
        """Whether it is half of a prefill/decode pair."""
        self.groups: tuple[LoadGroup[Ordered], ...] = ()
        self.backlog_ms = 0.0
        self.streams = 0
        self.tokens_per_ms = 0.0


Entry = tuple[float, float, int, RankedWorker[Ordered]]
"""Key, random number, serial number, worker."""

Heap = list[Entry[Ordered]]
"""Entries are deleted lazily: the latest of a worker has its current serial number, older ones are skipped."""


GroupKey = tuple[int, bool, bool, int]
"""Speed, young, draining, streams (ANY_STREAMS: of any number)."""

ANY_STREAMS = -1


class LoadGroup(Generic[Ordered]):
    """Workers of one group, in a heap for each of a few requests."""

    __slots__ = ("draining", "heaps", "key", "light_share_min", "workers")

    def __init__(self, key: GroupKey, heaps: int, light_share_min: float | None) -> None:
        """`heaps`: how many; of the estimated costs of a worker it keeps the first so many.

        `light_share_min`: where ComputePrice.light_share is more, its workers may be lightly used.

        None: they have any number of streams.
        """
        self.heaps: tuple[Heap[Ordered], ...] = tuple([] for _ in range(heaps))
        self.key = key
        self.draining = key[2]
        self.light_share_min = light_share_min
        self.workers = 0
        """How many there are."""

    def join(self, ranked: RankedWorker[Ordered], costs: Sequence[float], tie: float) -> None:
        """Take in a worker with its estimated cost for each of the requests; `tie` orders equal costs.

        All queues of a draining group lose work at the same pace, so that their keys have the time added.
        """
        self.workers += 1
        drained = drained_ms(ranked.worker) if self.draining else 0.0
        for heap, cost in zip(self.heaps, costs, strict=False):
            heappush(heap, (cost + drained, tie, ranked.serial, ranked))

    def leave(self) -> None:
        """Note that a worker has left, so that its entries are outdated."""
        self.workers -= 1
        if len(self.heaps[0]) > 2 * self.workers + HEAP_SLACK:
            for heap in self.heaps:
                remove_outdated(heap)


def remove_outdated(heap: Heap[Ordered]) -> None:
    """Remove the entries that are not their worker's latest."""
    heap[:] = [entry for entry in heap if entry[2] == entry[3].serial]
    heapify(heap)


def drained_ms(worker: OrderedWorker) -> float:
    """Return the milliseconds of work that a queue that drains loses in the time that the clock has run."""
    return 1000 * PACE * worker.load.clock()
