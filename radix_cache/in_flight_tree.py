"""A compressed radix tree of the requests under way: for every block, how many of them have it in their prompt.

    add A B C D      at w1        [A B] 3: w1 2, w2 1 --+-- [C D] 2: w1 2
    add A B C D      at w1                              +-- [X]   1: w2 1
    add A B X        at w2

The tree answers three questions about the requests under way: which part of a prompt they bring to each worker, how
many of them share each part, and how many blocks are counted twice if each worker's requests are added up. A run is
split where the paths of two requests diverge or one path ends, and joined again when the requests have ended. So a
path has few nodes however many requests share it, and every count is exact.
"""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from radix_cache.blocks import Hashes
from radix_cache.tree import common_blocks

Holder = TypeVar("Holder", bound=Hashable)


class SharedPart(NamedTuple):
    """A part of a prompt, and the number of requests under way that have all blocks up to its end."""

    end: int
    """Leading blocks of the prompt up to the end of this part."""
    requests: int
    """The number of requests under way with all of these blocks."""


class InFlightNode(Generic[Holder]):
    """A run of blocks that the same requests have; `depth` blocks come before it in the path."""

    __slots__ = ("by_holder", "children", "depth", "parent", "requests", "run")

    def __init__(self, run: Hashes, depth: int, parent: "InFlightNode[Holder] | None") -> None:
        self.run = run
        self.depth = depth
        self.parent = parent
        self.children: set[InFlightNode[Holder]] = set()
        self.requests = 0
        self.by_holder: dict[Holder, int] = {}


class InFlightTree(Generic[Holder]):
    """The paths of the requests under way, each at one holder (a worker)."""

    def __init__(self) -> None:
        self.blocks = 0
        """The number of blocks of all runs."""
        self.repeated: dict[Holder, int] = {}
        """By holder: the blocks of all its requests, minus the number of distinct blocks among them."""
        self._nodes: dict[int, InFlightNode[Holder]] = {}

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def match(self, hashes: Hashes) -> dict[Holder, int]:
        """Return how many leading blocks of the query a request under way at each holder has."""
        depths: dict[Holder, int] = {}
        nodes, at, blocks = self._nodes, 0, len(hashes)
        while at < blocks and (node := nodes.get(hashes[at])) is not None:
            run = node.run
            end = at + len(run)
            whole = end <= blocks and run[-1] == hashes[end - 1]
            at = end if whole else at + common_blocks(run, hashes, at)
            for holder in node.by_holder:
                depths[holder] = at
            if not whole:
                break
        return depths

    def depth(self, hashes: Hashes, holder: Holder) -> int:
        """Return how many leading blocks of the query a request under way at the holder has."""
        nodes, at, blocks = self._nodes, 0, len(hashes)
        while at < blocks and (node := nodes.get(hashes[at])) is not None and holder in node.by_holder:
            common = common_blocks(node.run, hashes, at)
            at += common
            if common < len(node.run):
                break
        return at

    def shared(self, hashes: Hashes) -> list[SharedPart]:
        """Return the parts of the query that requests under way have, and how many requests have each."""
        parts: list[SharedPart] = []
        nodes, at, blocks = self._nodes, 0, len(hashes)
        while at < blocks and (node := nodes.get(hashes[at])) is not None:
            run = node.run
            end = at + len(run)
            whole = end <= blocks and run[-1] == hashes[end - 1]
            at = end if whole else at + common_blocks(run, hashes, at)
            parts.append(SharedPart(at, node.requests))
            if not whole:
                break
        return parts

    def add(self, hashes: Hashes, holder: Holder) -> InFlightNode[Holder] | None:
        """Add a request, and return the last node of its path, by which `remove` finds it.

        Returns None if the path is empty. If two hashes collide and the path does not fit the tree, only the part
        that fits is counted.
        """
        nodes, at, blocks = self._nodes, 0, len(hashes)
        node: InFlightNode[Holder] | None = None
        while at < blocks:
            below = nodes.get(hashes[at])
            if below is None:
                below = nodes[hashes[at]] = InFlightNode(hashes[at:], at, node)
                self.blocks += blocks - at
                if node is not None:
                    node.children.add(below)
            elif below.depth != at or below.parent is not node:
                break
            else:
                common = common_blocks(below.run, hashes, at)
                if common < len(below.run):
                    below = self._split(below, common)
            node = below
            at += len(node.run)
        if node is not None:
            self._count(node, holder, 1)
        return node

    def remove(self, last: InFlightNode[Holder] | None, holder: Holder) -> None:
        """Remove a request; `last` is the node that `add` returned."""
        if last is None:
            return
        self._count(last, holder, -1)
        node: InFlightNode[Holder] | None = last
        while node is not None and not node.requests:
            above = node.parent
            self._unregister(node)
            self.blocks -= len(node.run)
            if above is not None:
                above.children.discard(node)
            node = above
        if node is not None:
            self._join(node)

    def _count(self, last: InFlightNode[Holder], holder: Holder, change: int) -> None:
        """Change the counts of all nodes from the root to `last`."""
        repeated = 0
        node: InFlightNode[Holder] | None = last
        while node is not None:
            node.requests += change
            before = node.by_holder.get(holder, 0)
            if before + change:
                node.by_holder[holder] = before + change
                if before:
                    repeated += len(node.run)
            else:
                del node.by_holder[holder]
            node = node.parent
        if repeated:
            left = self.repeated.get(holder, 0) + change * repeated
            if left:
                self.repeated[holder] = left
            else:
                del self.repeated[holder]

    def _split(self, node: InFlightNode[Holder], at: int) -> InFlightNode[Holder]:
        """Split a run in two and return the new upper half; the old node stays the last node of its requests."""
        upper: InFlightNode[Holder] = InFlightNode(node.run[:at], node.depth, node.parent)
        upper.requests, upper.by_holder = node.requests, dict(node.by_holder)
        if upper.parent is not None:
            upper.parent.children.remove(node)
            upper.parent.children.add(upper)
        upper.children.add(node)
        node.parent, node.depth, node.run = upper, node.depth + at, node.run[at:]
        self._nodes[upper.run[0]] = upper
        self._nodes.setdefault(node.run[0], node)
        return upper

    def _join(self, node: InFlightNode[Holder]) -> None:
        """Join a node with its only child, if no request ends between them."""
        if len(node.children) != 1:
            return
        (child,) = node.children
        if child.requests != node.requests:
            return
        self._unregister(child)
        child.run, child.depth, child.parent = node.run + child.run, node.depth, node.parent
        self._nodes[child.run[0]] = child
        if child.parent is not None:
            child.parent.children.remove(node)
            child.parent.children.add(child)

    def _unregister(self, node: InFlightNode[Holder]) -> None:
        """Remove a node from the lookup by first block."""
        if self._nodes.get(node.run[0]) is node:
            del self._nodes[node.run[0]]
