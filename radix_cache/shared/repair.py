"""Repairs a tree in Redis with its own scripts, so that every gateway is notified of the changes.

Removing too much costs little: the next request with that prefix adds it again.
"""

from array import array
from collections.abc import Sequence

from radix_cache.redis.call import RedisDown
from radix_cache.shared.audit import NodeFamily, Violation, find_violations, holders_of
from radix_cache.shared.keys import TreeId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.tree_dump import DumpedTree, TenureNumbers, TreeDumper
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX, TreeStore

ROUNDS_MAX = 3
WHENEVER_USED = 2**32 - 1
ALL = 2**32 - 1


async def repair(
    store: TreeStore, dumper: TreeDumper, tree: DumpedTree, tenures: TenureNumbers
) -> tuple[Sequence[Violation], bool]:
    """Repair a tree; return the remaining violations (usually none), and whether the namespace had to be cleared.

    Raises RedisDown.
    """
    found = list(find_violations(tree, tenures, store.keys))
    for _ in range(ROUNDS_MAX):
        if not found:
            return (), False
        if any(violation.whole for violation in found):
            break
        try:
            await _repair_round(store, tree, found)
        except RedisDown:
            break  # A script found unreadable data. (If Redis is away, `clear` raises.)
        tree = await dumper.tree(tree.id)
        found = list(find_violations(tree, tenures, store.keys))
    if not found:
        return (), False
    await store.clear(tree.id)
    return list(find_violations(await dumper.tree(tree.id), tenures, store.keys)), True


async def _repair_round(store: TreeStore, tree: DumpedTree, found: Sequence[Violation]) -> None:
    """Remove whole nodes first, then what single tenures hold, then ends that no tenure holds."""
    family = NodeFamily(tree)
    removed: dict[int, int] = {}
    cuts: dict[tuple[int, int], int] = {}
    trimmed: list[int] = []
    for violation in found:
        assert violation.node is not None
        if violation.tenure is not None:
            for key in family.below(violation.node):
                if violation.tenure in holders_of(tree.nodes[key]):
                    cuts[key, violation.tenure] = 0
        elif violation.trim:
            trimmed.append(violation.node)
        else:
            removed.update((key, family.heads[key].depth) for key in family.below(violation.node))
    for batch in _batches(sorted(removed, key=lambda key: -removed[key])):
        await store.evict(tree.id, [_node(tree.id, key) for key in batch])
    deepest = sorted(cuts, key=lambda cut: -family.heads[cut[0]].depth)
    # A cut to ALL blocks takes nothing from any tenure, but makes the script drop an end that no tenure holds.
    both = [*((key, tenure, 0) for key, tenure in deepest), *((key, 0, ALL) for key in trimmed)]
    for at in range(0, len(both), NODES_PER_CALL_MAX):
        batch_of_cuts = both[at : at + NODES_PER_CALL_MAX]
        await store.cut(
            tree.id,
            [(_node(tree.id, key), tenure, keep) for key, tenure, keep in batch_of_cuts],
        )


def _batches(keys: Sequence[int]) -> list[Sequence[int]]:
    return [keys[at : at + NODES_PER_CALL_MAX] for at in range(0, len(keys), NODES_PER_CALL_MAX)]


def _node(tree: TreeId, key: int) -> ReplicaNode:
    """Return a node with the fields that the scripts use."""
    node = ReplicaNode(key, tree, array("Q"))
    node.used = WHENEVER_USED
    return node
