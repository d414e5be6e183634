"""The replica of a machine's first process, which also publishes it to the other processes in shared memory.

Changed nodes are noted while changes are applied, and written once all changes that arrived together are applied.
Deeper nodes are written first, removed nodes last, so that a reader of a split node finds either the old node or
both halves.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from radix_cache.blocks import Hashes
from radix_cache.in_flight_tree import InFlightNode, InFlightTree
from radix_cache.machine.announcements import AnnouncementWriter
from radix_cache.machine.heap import SegmentHeap
from radix_cache.machine.records import RecordHeap, encode_bytes, encode_in_flight, encode_node
from radix_cache.machine.segment import (
    BLOCKS,
    CHANGES,
    IN_FLIGHT_TABLE,
    NAMESPACES,
    NODE_TABLE,
    NODES,
    PREDICTIONS,
    REPEATED_TABLE,
    SEQUENCES,
    IndexSegment,
)
from radix_cache.machine.slot_table import SlotTable
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import Holders, LogEntry, NodeChanged, NodeHead, PredictionAdded
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.node_table import NodeTable
from radix_cache.shared.predictions import PredictionListener
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.shard_replica import ShardReplica

NEVER_OWN = bytes(17)
"""A prefix that no id has, since it is longer than an id."""


class NotedNodeTable(NodeTable):
    """A node table that notes the keys of the nodes that have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[int] = set()

    def set_head(self, node: ReplicaNode, head: NodeHead) -> None:
        """Replace a node's head."""
        self.changed.add(node.key)
        super().set_head(node, head)

    def set_holders(self, node: ReplicaNode, chunk: int, holders: Holders) -> None:
        """Replace a chunk of a node's holders."""
        self.changed.add(node.key)
        super().set_holders(node, chunk, holders)

    def change(self, node: ReplicaNode, record: NodeChanged) -> bool:
        """Change a node and return whether its run has become shorter. Raises NodeMismatch."""
        self.changed.add(node.key)
        return super().change(node, record)

    def remove(self, node: ReplicaNode) -> None:
        """Remove a node."""
        self.changed.add(node.key)
        super().remove(node)

    def replace_nodes(
        self,
        before: set[ReplicaNode],
        gone: list[int],
        lost: dict[int, int],
        blocks: dict[TreeId, int],
        other: NodeTable,
    ) -> None:
        """Replace some nodes by those of another table."""
        super().replace_nodes(before, gone, lost, blocks, other)
        self.changed.update(gone)
        self.changed.update(other.nodes)


class NotedInFlightTree(InFlightTree[int]):
    """An InFlightTree that notes which nodes have changed, and which tenures' counts."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[int] = set()
        self.counted: set[int] = set()
        """The tenures with changed counts."""

    def node(self, key: int) -> InFlightNode[int] | None:
        """Return the node that begins with this block."""
        return self._nodes.get(key)

    def _count(self, last: InFlightNode[int], holder: int, change: int) -> None:
        self.counted.add(holder)
        node: InFlightNode[int] | None = last
        while node is not None:
            self.changed.add(node.run[0])
            node = node.parent
        super()._count(last, holder, change)

    def _split(self, node: InFlightNode[int], at: int) -> InFlightNode[int]:
        upper = super()._split(node, at)
        self.changed.update((upper.run[0], node.run[0]))
        return upper

    def _unregister(self, node: InFlightNode[int]) -> None:
        self.changed.add(node.run[0])
        super()._unregister(node)


class PublishedReplica(TreeReplica):
    """A TreeReplica that is also written to a segment, which must have been cleared."""

    def __init__(
        self, clock: Callable[[], float], predicted_seconds_max: float, segment: IndexSegment
    ) -> None:
        self._noted = NotedNodeTable()
        self._noted_in_flight = NotedInFlightTree()
        super().__init__(clock, predicted_seconds_max, self._noted, self._noted_in_flight)
        self._announcements = AnnouncementWriter(segment)
        super().report_predictions(self._announcements, NEVER_OWN)
        self._segment = segment
        heap = SegmentHeap(segment)
        self._records = RecordHeap(segment, heap)
        self._nodes_shown = SlotTable(segment, heap, NODE_TABLE)
        self._in_flight_shown = SlotTable(segment, heap, IN_FLIGHT_TABLE)
        self._repeated_shown = SlotTable(segment, heap, REPEATED_TABLE)
        self._namespaces_at = -1
        self._shards_changed: set[int] = set()

    def report_predictions(self, listener: PredictionListener, own: bytes) -> None:
        """Notify the listener of this process of the predictions of others."""
        self._announcements.listener, self._announcements.own = listener, own

    def load(
        self,
        number: int,
        tip: bytes,
        sequence: int,
        names: dict[TreeId, bytes],
        nodes: Iterable[tuple[TreeId, NodeHead, Hashes, dict[int, Holders]]],
        predictions: Collection[PredictionAdded],
    ) -> Iterator[None]:
        """Replace everything that was known of a shard by a snapshot, in small steps."""
        yield from super().load(number, tip, sequence, names, nodes, predictions)
        self._shards_changed.add(number)
        yield from self._show_nodes(in_order=False)
        self.publish()

    def publish(self) -> None:
        """Write everything that has changed since the last call."""
        for _ in self._show_nodes():
            pass
        under_way = self._noted_in_flight
        changed, under_way.changed = under_way.changed, set()
        for key in changed:
            below = under_way.node(key)
            self._show(self._in_flight_shown, key, encode_in_flight(below) if below is not None else b"")
        counted, under_way.counted = under_way.counted, set()
        for tenure in counted:
            self._repeated_shown.put(tenure, under_way.repeated.get(tenure, 0))
        self._show_counts()

    def publish_namespaces(self) -> None:
        """Write the namespaces and their numbers of blocks, if anything has changed."""
        if self._namespaces_at == self.version:
            return
        self._namespaces_at = self.version
        before = self._segment.words[NAMESPACES]
        data = encode_bytes(msgspec.msgpack.encode(list(self.namespaces())))
        self._segment.words[NAMESPACES] = self._records.write(data)
        self._records.free(before)

    def _apply(self, shard: ShardReplica, entry: LogEntry) -> None:
        self._shards_changed.add(shard.number)
        super()._apply(shard, entry)

    def _show_nodes(self, *, in_order: bool = True) -> Iterator[None]:
        nodes, noted = self.nodes, self._noted
        changed: Collection[int] = noted.changed
        noted.changed = set()
        if in_order and len(changed) > 1:
            changed = sorted(changed, key=lambda key: -nodes[key].depth if key in nodes else 1)
        for key in changed:
            node = nodes.get(key)
            self._show(self._nodes_shown, key, encode_node(node) if node is not None else b"")
            yield

    def _show(self, table: SlotTable, key: int, record: bytes) -> None:
        """Replace the record of a key; an empty record removes the key."""
        self._records.free(table.put(key, self._records.write(record) if record else 0))

    def _show_counts(self) -> None:
        words = self._segment.words
        changed, self._shards_changed = self._shards_changed, set()
        for number in changed:
            words[SEQUENCES + number] = self.shards[number].sequence
        words[BLOCKS] = self.blocks
        words[NODES] = len(self.nodes)
        words[PREDICTIONS] = self.predictions
        words[CHANGES] = self.version
