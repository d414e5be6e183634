"""What there is in the tree, counted: by model and tenant group, and by worker. Pure: it looks at the read copy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from radix_cache.namespace import Namespace
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.tiers import TierBlocks

NamespacesById = Mapping[NamespaceId, Namespace]

UNKNOWN_NAMESPACE = Namespace(model="(unknown)", block_size=0)
"""In place of a namespace whose name cannot be read, or that is not known."""


@dataclass(slots=True)
class BlockCounts:
    """`tokens`: blocks times the block size of their namespace. `predictions`: under way.

    Of blocks that somebody holds `gpu_blocks` are on the GPU, and `host_blocks` there or in host memory.
    """

    spaces: set[NamespaceId] = field(default_factory=set)
    nodes: int = 0
    blocks: int = 0
    gpu_blocks: int = 0
    host_blocks: int = 0
    tokens: int = 0
    predictions: int = 0

    def add(self, node: ReplicaNode, held: TierBlocks, block_size: int) -> None:
        """So many blocks of a node."""
        self.spaces.add(node.namespace)
        self.nodes += 1
        self.blocks += held.all
        self.gpu_blocks += held.gpu
        self.host_blocks += held.host
        self.tokens += held.all * block_size


@dataclass(slots=True)
class IndexCounts:
    """`groups`: by (model, group). `workers`: what each holds. `remains`: what tenures hold that are over."""

    groups: dict[tuple[str, str], BlockCounts] = field(default_factory=dict)
    workers: dict[str, BlockCounts] = field(default_factory=dict)
    remains: BlockCounts = field(default_factory=BlockCounts)
    total: BlockCounts = field(default_factory=BlockCounts)


def namespaces_of(replica: TreeReplica) -> dict[NamespaceId, Namespace]:
    """Every namespace by its id, as its shard has it written."""
    found: dict[NamespaceId, Namespace] = {}
    for shard in replica.shards.values():
        for identity, name in shard.names.items():
            found[identity] = unpack_namespace(name)
    return found


def unpack_namespace(name: bytes) -> Namespace:
    """The namespace of a name, or UNKNOWN."""
    try:
        return Namespace.unpack(name)
    except ValueError:
        return UNKNOWN_NAMESPACE


def count_index(replica: TreeReplica, spaces: NamespacesById, foretold: Mapping[bytes, NamespaceId]) -> IndexCounts:
    """`foretold`: the namespaces of predictions, as far as they are known."""
    found = IndexCounts(workers={worker: BlockCounts() for worker in sorted(replica.tenures)})
    by_tenure = {tenure: found.workers[worker] for worker, tenure in replica.tenures.items()}
    for node in replica.nodes.values():
        space = spaces.get(node.namespace, UNKNOWN_NAMESPACE)
        group = found.groups.setdefault((space.model, space.group), BlockCounts())
        held = list(node.holders())
        nearest = [max(each) for each in zip(*(tiers for _, tiers in held), strict=True)] or (0, 0, 0)
        some = TierBlocks(nearest[0], nearest[1], len(node.run))
        for tally in (group, found.total):
            tally.add(node, some, space.block_size)
        for tenure, tiers in held:
            by_tenure.get(tenure, found.remains).add(node, tiers, space.block_size)
    for _, identity, tenure in replica.foretold():
        namespace = foretold.get(identity)
        space = spaces.get(namespace, UNKNOWN_NAMESPACE) if namespace is not None else UNKNOWN_NAMESPACE
        for tally in (
            found.groups.setdefault((space.model, space.group), BlockCounts()),
            by_tenure.get(tenure, found.remains),
            found.total,
        ):
            tally.predictions += 1
    return found
