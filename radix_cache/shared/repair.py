"""Makes a tree in Redis right again by its own verbs, so that every gateway hears of it.

Little is lost by taking too much: what goes is learnt again by the next request.
"""

from array import array
from collections.abc import Sequence

from radix_cache.redis.call import RedisDown
from radix_cache.shared.audit import NodeFamily, Violation, holders_of, find_violations
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.tree_store import (NODES_PER_CALL_MAX, TreeStore)
from radix_cache.shared.tree_dump import DumpedTree, TenureNumbers, TreeDumper

ROUNDS_MAX = 3
WHENEVER_USED = 2**32 - 1
ALL = 2**32 - 1


async def repair(
    store: TreeStore, reading: TreeDumper, tree: DumpedTree, tenures: TenureNumbers
) -> tuple[Sequence[Violation], bool]:
    """What is wrong in spite of all (nothing, usually), and whether the namespace had to be cleared.

    Raises RedisDown.
    """
    found = list(find_violations(tree, tenures))
    for _ in range(ROUNDS_MAX):
        if not found:
            return (), False
        if any(violation.whole for violation in found):
            break
        try:
            await _mend(store, tree, found)
        except RedisDown:
            break  # A script met what it cannot read. (If Redis is away, clearing says so.)
        tree = await reading.tree(tree.namespace)
        found = list(find_violations(tree, tenures))
    if not found:
        return (), False
    await store.clear(tree.namespace)
    return list(find_violations(await reading.tree(tree.namespace), tenures)), True


async def _mend(store: TreeStore, tree: DumpedTree, found: Sequence[Violation]) -> None:
    """First whole nodes, then what single tenures hold, then ends that nobody holds."""
    family = NodeFamily(tree)
    going: dict[int, int] = {}
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
            going.update((key, family.heads[key].depth) for key in family.below(violation.node))
    for batch in _batches(sorted(going, key=lambda key: -going[key])):
        await store.evict(tree.namespace, [_node(tree.namespace, key) for key in batch])
    deepest = sorted(cuts, key=lambda cut: -family.heads[cut[0]].depth)
    # A cut that leaves everybody what they have makes the script look at the node's end.
    both = [*((key, tenure, 0) for key, tenure in deepest), *((key, 0, ALL) for key in trimmed)]
    for at in range(0, len(both), NODES_PER_CALL_MAX):
        batch_of_cuts = both[at : at + NODES_PER_CALL_MAX]
        await store.cut(
            tree.namespace,
            [(_node(tree.namespace, key), tenure, keep) for key, tenure, keep in batch_of_cuts],
        )


def _batches(keys: Sequence[int]) -> list[Sequence[int]]:
    return [keys[at : at + NODES_PER_CALL_MAX] for at in range(0, len(keys), NODES_PER_CALL_MAX)]


def _node(namespace: NamespaceId, key: int) -> ReplicaNode:
    """As much of a node as the store's verbs look at."""
    node = ReplicaNode(key, namespace, array("Q"))
    node.used = WHENEVER_USED
    return node
