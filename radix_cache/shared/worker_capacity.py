"""The capacity of workers in the shared index: blocks beyond it are cut, the least recently used first."""

import asyncio
from collections.abc import Set

from radix_cache.match import WorkerId
from radix_cache.redis.call import ScriptAnswer, ignore_result
from radix_cache.shared.keys import TreeId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX, TreeStore

CAPACITY_SLACK = 20
"""A worker over its capacity is cut by a twentieth of the capacity at once, so that cuts are rare."""


class WorkerCapacity:
    """The capacity of each worker in blocks. `followed` are the workers that report lost blocks by KV events."""

    def __init__(self, store: TreeStore, replica: TreeReplica, followed: Set[WorkerId]) -> None:
        self._store = store
        self._replica = replica
        self._followed = followed
        self._blocks_max: dict[WorkerId, int] = {}
        self._being_cut: set[WorkerId] = set()

    def change(self, worker: WorkerId, blocks_max: int) -> bool:
        """Set the capacity of a worker in blocks, and return whether it has changed."""
        if self._blocks_max.get(worker) == blocks_max:
            return False
        self._blocks_max[worker] = blocks_max
        return True

    def forget(self, worker: WorkerId) -> None:
        """Forget the capacity of a worker, which may have left."""
        self._blocks_max.pop(worker, None)

    def cut_excess(self, worker: WorkerId) -> None:
        """Cut the blocks that the worker holds beyond its capacity, as the replica shows them."""
        room, tenure = self._blocks_max.get(worker), self._replica.tenures.get(worker)
        if room is None or tenure is None or worker in self._being_cut or worker in self._followed:
            return
        excess = self._replica.held.get(tenure, 0) - room
        if excess <= 0:
            return
        by_tree: dict[TreeId, list[tuple[ReplicaNode, int, int]]] = {}
        for node, keep in self._replica.least_recently_used(tenure, excess + room // CAPACITY_SLACK):
            by_tree.setdefault(node.tree, []).append((node, tenure, keep))
        self._being_cut.add(worker)
        last: asyncio.Future[ScriptAnswer] | None = None
        for tree, cuts in by_tree.items():
            last = cut(self._store, tree, cuts)
        if last is not None:
            last.add_done_callback(lambda _: self._being_cut.discard(worker))


def cut(
    store: TreeStore, tree: TreeId, cuts: list[tuple[ReplicaNode, int, int]]
) -> "asyncio.Future[ScriptAnswer] | None":
    """Cut nodes to a number of blocks under a tenure, and return the last call; None if there is nothing to cut."""
    last = None
    for at in range(0, len(cuts), NODES_PER_CALL_MAX):
        last = store.cut(tree, cuts[at : at + NODES_PER_CALL_MAX])
        ignore_result(last)
    return last
