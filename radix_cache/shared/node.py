"""Node and PathMatch: one run of the copied tree, and what a query found on its way through some of them."""

from collections.abc import Iterator

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.records import Holders


class Node:
    """One run of blocks, as in lua/tree.lua. `chunks`: holders, spread by tenure modulo their number."""

    __slots__ = (
        "above",
        "children",
        "chunks",
        "depth",
        "key",
        "mask",
        "namespace",
        "next",
        "parent",
        "run",
        "sequence",
        "used",
    )

    def __init__(self, key: int, namespace: NamespaceId, run: Hashes) -> None:
        self.key = key
        self.namespace = namespace
        self.run = run
        self.sequence = self.depth = self.used = self.next = self.above = self.mask = 0
        self.chunks: list[Holders] = [{}]
        self.parent: Node | None = None
        self.children: set[Node] | None = None

    @property
    def end(self) -> int:
        """Depth of the last block."""
        return self.depth + len(self.run)

    def count(self, tenure: int) -> int:
        """Leading blocks of the run that the tenure holds."""
        return self.chunks[tenure & self.mask].get(tenure, 0)

    def holders(self) -> Iterator[tuple[int, int]]:
        """All (tenure, leading blocks)."""
        for chunk in self.chunks:
            yield from chunk.items()


class PathMatch:
    """See PrefixMatch. Looks a worker up when asked: finding the path costs the same with 1 or 1,000 workers.

    It reads the copy: ask before the next await.
    """

    __slots__ = ("_path", "_pending", "_tenures")

    def __init__(
        self,
        path: list[tuple[Node, int]],
        pending: dict[WorkerId, int],
        tenures: dict[WorkerId, int],
    ) -> None:
        self._path = path
        self._pending = pending
        self._tenures = tenures

    @property
    def confirmed(self) -> dict[WorkerId, int]:
        if not self._path:
            return {}
        return {worker: held for worker in self._tenures if (held := self.held(worker))}

    @property
    def pending(self) -> dict[WorkerId, int]:
        return self._pending

    def held(self, worker: WorkerId) -> int:
        """Leading blocks that the worker is known to hold."""
        tenure = self._tenures.get(worker)
        held = 0
        if tenure is not None:
            for node, common in self._path:
                count = node.chunks[tenure & node.mask].get(tenure, 0)
                if count < common:
                    return held + count
                held += common
        return held

    def blocks(self, worker: WorkerId) -> int:
        if not self._pending:
            return self.held(worker)
        return max(self.held(worker), self._pending.get(worker, 0))

    def fresh(self, worker: WorkerId, blocks: int, used_since: int) -> bool:
        """The worker holds all so many blocks, and all of their nodes were used since (server seconds)."""
        return self.held(worker) == blocks and all(node.used >= used_since for node, _ in self._path)
