"""Counts the index by model and isolation group, and by worker; reads the replica, without I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from radix_cache.namespace import Namespace
from radix_cache.shared.keys import TreeId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.tiers import TierBlocks

NamespacesById = Mapping[TreeId, Namespace]

UNKNOWN_NAMESPACE = Namespace(model="(unknown)", block_size=0)
"""The namespace shown for one that is unknown or has an unreadable name."""


@dataclass(slots=True)
class BlockCounts:
    """Counts of a part of the index."""

    namespaces: set[Namespace | TreeId] = field(default_factory=set)
    """The namespaces; one without a known name is represented by the id of its tree."""
    nodes: int = 0
    blocks: int = 0
    gpu_blocks: int = 0
    """Blocks that a worker holds on the GPU."""
    host_blocks: int = 0
    """Blocks that a worker holds on the GPU or in host memory."""
    tokens: int = 0
    """Blocks times the block size of their namespace."""
    predictions: int = 0
    """Predictions under way."""

    def add(self, node: ReplicaNode, held: TierBlocks, namespace: Namespace) -> None:
        """Count the held blocks of a node."""
        self.namespaces.add(node.tree if namespace is UNKNOWN_NAMESPACE else namespace)
        self.nodes += 1
        self.blocks += held.all
        self.gpu_blocks += held.gpu
        self.host_blocks += held.host
        self.tokens += held.all * namespace.block_size


@dataclass(slots=True)
class IndexCounts:
    """Counts of the whole index and of its parts."""

    groups: dict[tuple[str, str], BlockCounts] = field(default_factory=dict)
    """By (model, isolation group)."""
    workers: dict[str, BlockCounts] = field(default_factory=dict)
    """What each worker holds."""
    remains: BlockCounts = field(default_factory=BlockCounts)
    """What ended tenures still hold until it is removed."""
    total: BlockCounts = field(default_factory=BlockCounts)


def namespaces_of(replica: TreeReplica) -> dict[TreeId, Namespace]:
    """Return the namespace of every tree, by the id of the tree."""
    found: dict[TreeId, Namespace] = {}
    for shard in replica.shards.values():
        for tree, name in shard.names.items():
            found[tree] = unpack_namespace(name)
    return found


def unpack_namespace(name: bytes) -> Namespace:
    """Return the namespace with this packed name, or UNKNOWN_NAMESPACE."""
    try:
        return Namespace.unpack(name)
    except ValueError:
        return UNKNOWN_NAMESPACE


def count_index(
    replica: TreeReplica,
    namespaces: NamespacesById,
    prediction_trees: Mapping[bytes, TreeId],
) -> IndexCounts:
    """Count the whole index; `prediction_trees` has the known trees of predictions, by id."""
    found = IndexCounts(workers={worker: BlockCounts() for worker in sorted(replica.tenures)})
    by_tenure = {tenure: found.workers[worker] for worker, tenure in replica.tenures.items()}
    for node in replica.nodes.values():
        namespace = namespaces.get(node.tree, UNKNOWN_NAMESPACE)
        group = found.groups.setdefault((namespace.model, namespace.group), BlockCounts())
        held = list(node.holders())
        largest = [max(each) for each in zip(*(tiers for _, tiers in held), strict=True)] or (0, 0, 0)
        held_by_any = TierBlocks(largest[0], largest[1], len(node.run))
        for counts in (group, found.total):
            counts.add(node, held_by_any, namespace)
        for tenure, tiers in held:
            by_tenure.get(tenure, found.remains).add(node, tiers, namespace)
    for _, prediction, tenure in replica.predictions_under_way():
        tree = prediction_trees.get(prediction)
        namespace = namespaces.get(tree, UNKNOWN_NAMESPACE) if tree is not None else UNKNOWN_NAMESPACE
        for counts in (
            found.groups.setdefault((namespace.model, namespace.group), BlockCounts()),
            by_tenure.get(tenure, found.remains),
            found.total,
        ):
            counts.predictions += 1
    return found
