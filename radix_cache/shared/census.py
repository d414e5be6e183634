"""What there is in the tree, counted: by model and tenant group, and by worker. Pure: it looks at the read copy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from radix_cache.namespace import Namespace
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import Node
from radix_cache.shared.replica import TreeCopy
from radix_cache.tiers import TierBlocks

Spaces = Mapping[NamespaceId, Namespace]

UNKNOWN = Namespace(model="(unknown)", block_size=0)
"""In place of a namespace whose name cannot be read, or that is not known."""


@dataclass(slots=True)
class Tally:
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

    def add(self, node: Node, held: TierBlocks, block_size: int) -> None:
        """So many blocks of a node."""
        self.spaces.add(node.namespace)
        self.nodes += 1
        self.blocks += held.all
        self.gpu_blocks += held.gpu
        self.host_blocks += held.host
        self.tokens += held.all * block_size


@dataclass(slots=True)
class Census:
    """`groups`: by (model, group). `workers`: what each holds. `remains`: what tenures hold that are over."""

    groups: dict[tuple[str, str], Tally] = field(default_factory=dict)
    workers: dict[str, Tally] = field(default_factory=dict)
    remains: Tally = field(default_factory=Tally)
    total: Tally = field(default_factory=Tally)


def spaces_of(copy: TreeCopy) -> dict[NamespaceId, Namespace]:
    """Every namespace by its id, as its shard has it written."""
    found: dict[NamespaceId, Namespace] = {}
    for shard in copy.shards.values():
        for identity, name in shard.names.items():
            found[identity] = unpacked(name)
    return found


def unpacked(name: bytes) -> Namespace:
    """The namespace of a name, or UNKNOWN."""
    try:
        return Namespace.unpack(name)
    except ValueError:
        return UNKNOWN


def census(copy: TreeCopy, spaces: Spaces, foretold: Mapping[bytes, NamespaceId]) -> Census:
    """`foretold`: the namespaces of predictions, as far as they are known."""
    found = Census(workers={worker: Tally() for worker in sorted(copy.tenures)})
    by_tenure = {tenure: found.workers[worker] for worker, tenure in copy.tenures.items()}
    for node in copy.nodes.values():
        space = spaces.get(node.namespace, UNKNOWN)
        group = found.groups.setdefault((space.model, space.group), Tally())
        held = list(node.holders())
        nearest = [max(each) for each in zip(*(tiers for _, tiers in held), strict=True)] or (0, 0, 0)
        some = TierBlocks(nearest[0], nearest[1], len(node.run))
        for tally in (group, found.total):
            tally.add(node, some, space.block_size)
        for tenure, tiers in held:
            by_tenure.get(tenure, found.remains).add(node, tiers, space.block_size)
    for _, identity, tenure in copy.foretold():
        namespace = foretold.get(identity)
        space = spaces.get(namespace, UNKNOWN) if namespace is not None else UNKNOWN
        for tally in (
            found.groups.setdefault((space.model, space.group), Tally()),
            by_tenure.get(tenure, found.remains),
            found.total,
        ):
            tally.predictions += 1
    return found
