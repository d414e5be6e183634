"""One shard of the replica, and what is prepared, in small steps, before a snapshot replaces its nodes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from radix_cache.blocks import Hashes
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import Holders, NodeHead
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.node_table import NodeTable


@dataclass(slots=True)
class ShardReplica:
    """One shard of the replica, as of the last applied change."""

    number: int
    tip: bytes = bytes(8)
    """The id of the last change."""
    sequence: int = 0
    """The number of the last change."""
    loaded: bool = False
    nodes: set[ReplicaNode] = field(default_factory=set)
    """The nodes of all its namespaces."""
    names: dict[TreeId, bytes] = field(default_factory=dict)
    """The packed namespaces by id."""


@dataclass(slots=True)
class ReplacedNodes:
    """What a table of nodes loses when the nodes of a shard are replaced by those of a snapshot."""

    gone: list[int] = field(default_factory=list)
    """Keys of nodes that are not in the snapshot."""
    lost: dict[int, int] = field(default_factory=dict)
    """Blocks that each tenure holds of the old nodes."""
    blocks: dict[TreeId, int] = field(default_factory=dict)
    """Blocks of the old nodes in each namespace."""

    def count(self, nodes: Iterable[ReplicaNode], snapshot: NodeTable) -> Iterator[None]:
        """Count the old nodes of a shard, one at each step."""
        for node in nodes:
            if node.key not in snapshot.nodes:
                self.gone.append(node.key)
            for tenure, held in node.holders():
                self.lost[tenure] = self.lost.get(tenure, 0) + held.all
            self.blocks[node.tree] = self.blocks.get(node.tree, 0) + len(node.run)
            yield


def build(
    shard: ShardReplica,
    table: NodeTable,
    nodes: Iterable[tuple[TreeId, NodeHead, Hashes, dict[int, Holders]]],
) -> Iterator[None]:
    """Add the nodes of a snapshot to a table, with their holders, and link them; one at each step."""
    for namespace, head, run, chunks in nodes:
        node = table.add(namespace, head, run)
        shard.nodes.add(node)
        for chunk, holders in chunks.items():
            if chunk < len(node.chunks):
                table.set_holders(node, chunk, holders)
        yield
    for node in shard.nodes:
        table.link(node)
        yield
