"""The nodes of the radix tree, and the tenures of its holders, with the order in which nodes are evicted."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from radix_cache.blocks import Hashes
from radix_cache.tiers import TierBlocks

Holder = TypeVar("Holder", bound=Hashable)

QUEUE_SLACK = 64
"""A queue with more outdated entries than held ones, and so many more, is rebuilt."""


class RadixNode(Generic[Holder]):
    """A node of the tree: a run of blocks, addressed by `run[0]`, with `depth` blocks before it in the path."""

    __slots__ = ("children", "counts", "depth", "parent", "run", "slower")

    def __init__(self, run: Hashes, depth: int, parent: "RadixNode[Holder] | None") -> None:
        self.run = run
        self.depth = depth
        self.parent = parent
        self.children: set[RadixNode[Holder]] = set()
        self.counts: dict[Tenure[Holder], int] = {}
        self.slower: dict[Tenure[Holder], TierBlocks] | None = None

    def held(self, tenure: "Tenure[Holder]") -> TierBlocks:
        """Return how many leading blocks the tenure has, by tier."""
        if self.slower is not None and tenure in self.slower:
            return self.slower[tenure]
        count = self.counts.get(tenure, 0)
        return TierBlocks(count, count, count)

    def hold(self, tenure: "Tenure[Holder]", held: TierBlocks) -> None:
        """Set how many leading blocks the tenure has, by tier."""
        if held.all:
            self.counts[tenure] = held.all
        else:
            self.counts.pop(tenure, None)
        if held.gpu < held.all:
            self.slower = self.slower if self.slower is not None else {}
            self.slower[tenure] = held
        elif self.slower is not None:
            self.slower.pop(tenure, None)

    @property
    def end(self) -> int:
        """The number of blocks up to the end of the run, counted from the beginning of the path."""
        return self.depth + len(self.run)


class Tenure(Generic[Holder]):
    """The epoch of one holder, from its first record until it is forgotten.

    The nodes that it holds are in the order in which they are evicted: the least recently used first, of nodes with
    equal uses the deepest.
    """

    __slots__ = ("_serial", "alive", "blocks", "holder", "queue", "used")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.alive = True
        self.blocks = 0
        self.used: dict[RadixNode[Holder], float] = {}
        """When each node that it holds was last used."""
        self.queue: list[tuple[float, int, int, RadixNode[Holder]]] = []
        """A heap of (use, -end, serial, node). The use in an entry may be outdated, and is then too early; it is
        corrected when the entry reaches the top."""
        self._serial = 0

    def enqueue(self, node: RadixNode[Holder]) -> None:
        """Enter a node that it holds into the queue, by its last use."""
        if len(self.queue) > 2 * len(self.used) + QUEUE_SLACK:
            # Entries of removed nodes stay in the queue; the rebuild keeps them from piling up below the top.
            self.queue = [(use, -held.end, at, held) for at, (held, use) in enumerate(self.used.items())]
            heapify(self.queue)
        self._serial += 1
        heappush(self.queue, (self.used[node], -node.end, self._serial, node))

    def oldest_use(self) -> float | None:
        """Bring the least recently used node to the top of the queue and return its last use; None if empty."""
        queue = self.queue
        while queue:
            use, _, serial, node = queue[0]
            current = self.used.get(node)
            if current == use:
                return use
            heappop(queue)
            if current is not None:
                heappush(queue, (current, -node.end, serial, node))
        return None
