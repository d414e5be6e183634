"""The prefix index of a simulated deployment: a radix tree (radix_cache/tree.py), fed by the engines' KV events.

An engine reports what it has computed as a path of blocks, and what it has evicted as single blocks. The path to a
block is that of any request that had the block, since block ids are chained.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

from policies.simulation.trace import TraceRequest
from radix_cache.tree import RadixTree


class BlockPaths:
    """For every block of a trace, a path that leads to it, and its depth on that path."""

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        self._of: dict[int, tuple[array[int], int]] = {}
        for request in requests:
            for depth in range(len(request.blocks) - 1, -1, -1):
                if request.blocks[depth] in self._of:
                    break
                self._of[request.blocks[depth]] = (request.blocks, depth)

    def heads(self, blocks: Sequence[int]) -> list[tuple["array[int]", int]]:
        """Return path and depth of the topmost block of each run of blocks that were evicted tail first."""
        found: list[tuple[array[int], int]] = []
        for block in blocks:
            path, depth = self._of[block]
            if found and found[-1][1] == depth + 1 and found[-1][0][depth] == block:
                found[-1] = (found[-1][0], depth)
            else:
                found.append((path, depth))
        return found


class KnownPrefixes(Protocol):
    """The interface of a simulation's prefix index; KnownBlocks is the plain one."""

    def match(self, blocks: "array[int]") -> dict[int, int]:
        """Return the number of leading blocks that each worker holds."""
        ...

    def stored(self, worker: int, path: "array[int]", now: float) -> None:
        """Record that a worker has stored the blocks of a path."""
        ...

    def removed(self, worker: int, blocks: Sequence[int]) -> None:
        """Record that a worker has evicted these blocks."""
        ...

    def forget(self, worker: int) -> None:
        """Drop everything that is known of a worker."""
        ...


class KnownBlocks:
    """The index of the prefixes that each worker holds, by the events that have arrived."""

    def __init__(self, paths: BlockPaths) -> None:
        self._tree: RadixTree[int] = RadixTree()
        self._paths = paths

    def match(self, blocks: "array[int]") -> dict[int, int]:
        """Return the number of leading blocks that each worker holds."""
        return self._tree.match(blocks)

    def stored(self, worker: int, path: "array[int]", now: float) -> None:
        """Record that a worker has stored the blocks of a path."""
        self._tree.record(path, worker, now)

    def removed(self, worker: int, blocks: Sequence[int]) -> None:
        """Record that a worker has evicted these blocks."""
        for path, depth in self._paths.heads(blocks):
            self._tree.shorten(path[: depth + 1], worker, depth)

    def forget(self, worker: int) -> None:
        """Drop everything that is known of a worker."""
        self._tree.forget(worker)
