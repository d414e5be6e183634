"""The read copy: what one process knows of the tree in Redis. No I/O; the reader feeds it, the index asks it.

    table     nodes, and who holds them          changed entry by entry, or a whole shard at once
    foretold  predictions
    tenures   which worker is who

A copy is right as of its last entry. It may be behind, and then misses a block that is there or has one that is
gone: both cost a prefill, neither an answer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import ReplicaNode, PathMatch
from radix_cache.shared.predictions import PredictionTable
from radix_cache.shared.log_records import (LogEntry, NodeHead, Holders, HoldersChanged, NamespaceCleared, NamespaceAdded, NamespaceRemoved, NodeChanged, NodeRemoved, PredictionAdded, PredictionRemoved)
from radix_cache.shared.snapshot import LogGap
from radix_cache.shared.node_table import (NodeTable, NodeMismatch)
from radix_cache.tree import common_blocks


@dataclass(slots=True)
class ShardReplica:
    """Where one shard's copy stands: the last change that it has. `nodes`: of all its namespaces."""

    number: int
    tip: bytes = bytes(8)
    sequence: int = 0
    loaded: bool = False
    nodes: set[ReplicaNode] = field(default_factory=set)
    names: dict[NamespaceId, bytes] = field(default_factory=dict)


class TreeReplica:
    """`clock`: seconds, never backwards. `predicted_seconds_max`: no prediction is believed for longer."""

    def __init__(self, clock: Callable[[], float], predicted_seconds_max: float) -> None:
        self.shards: dict[int, ShardReplica] = {}
        self.tenures: dict[WorkerId, int] = {}
        self.instances: dict[WorkerId, str] = {}
        self.server_ahead = 0.0
        """Server time in seconds less our clock."""
        self._clock = clock
        self._table = NodeTable()
        self._predictions_table = PredictionTable(self._table, clock, predicted_seconds_max)
        self.nodes = self._table.nodes
        self.held = self._table.held
        self.holding = self._table.holding

    @property
    def blocks(self) -> int:
        """Of all runs."""
        return self._table.blocks

    def namespaces(self) -> Iterator[tuple[bytes, int]]:
        """Every namespace, packed, and its blocks."""
        blocks_of = self._table.blocks_of
        for shard in self.shards.values():
            for namespace, name in shard.names.items():
                yield name, blocks_of.get(namespace, 0)

    @property
    def predictions(self) -> int:
        """How many are under way."""
        return len(self._predictions_table)

    @property
    def lapsed(self) -> dict[bytes, int]:
        """Shard by id of predictions whose time is over and that Redis still has, for whoever tidies up."""
        return self._predictions_table.lapsed

    def foretold(self) -> Iterator[tuple[int, bytes, int]]:
        """Predictions under way, by (shard, id, tenure)."""
        return self._predictions_table.all()

    def server_seconds(self) -> int:
        """The server's clock now, about."""
        return int(self._clock() + self.server_ahead)

    # Asking.

    def match(self, hashes: Hashes) -> PathMatch:
        """Who holds, or is about to hold, how much of the path. Namespaces have no hash in common."""
        path: list[tuple[ReplicaNode, int]] = []
        at, blocks = 0, len(hashes)
        nodes = self.nodes
        while at < blocks and (node := nodes.get(hashes[at])) is not None:
            common = common_blocks(node.run, hashes, at)
            path.append((node, common))
            at += common
            if common < len(node.run):
                break
        return PathMatch(path, self._pending(hashes) if self._predictions_table else {}, self.tenures)

    def at(self, hashes: Hashes, block: int) -> ReplicaNode | None:
        """The node that has this block of the path (0: the first); None if the tree does not go that far."""
        at = 0
        while block < len(hashes) and (node := self.nodes.get(hashes[at])) is not None:
            common = common_blocks(node.run, hashes, at)
            if block < at + common:
                return node
            at += common
            if common < len(node.run) or at == len(hashes):
                return None
        return None

    def below(self, node: ReplicaNode, tenure: int) -> list[ReplicaNode]:
        """The nodes below that the tenure holds, the deepest first."""
        found, waiting = [], [node]
        while waiting:
            for child in waiting.pop().children or ():
                if child.count(tenure):
                    found.append(child)
                    waiting.append(child)
        return sorted(found, key=lambda child: -child.depth)

    def least_recently_used(self, tenure: int, blocks: int) -> list[tuple[ReplicaNode, int]]:
        """What to cut so that the tenure loses that many blocks, (node, keep): the least recently used first."""
        cuts: list[tuple[ReplicaNode, int]] = []
        left = {
            node: sum(child.count(tenure) > 0 for child in node.children or ())
            for node in self.holding.get(tenure, ())
        }
        leaves = sorted(
            (n for n, children in left.items() if not children), key=lambda n: (n.used, n.sequence, -n.end)
        )
        at = 0
        while at < len(leaves) and blocks > 0:
            node = leaves[at]
            at += 1
            count = node.count(tenure)
            cuts.append((node, max(count - blocks, 0)))
            blocks -= count
            parent = node.parent
            if parent in left:
                left[parent] -= 1
                if not left[parent]:
                    leaves.append(parent)
        return cuts

    def ended_tenures(self) -> set[int]:
        """Tenures that are over and have left remains."""
        return self.holding.keys() - set(self.tenures.values())

    # Being told.

    def apply(self, number: int, entry: LogEntry) -> None:
        """The next change of a shard. The last one once more does nothing; any other raises Gap."""
        shard = self.shards.get(number)
        if shard is None:
            raise LogGap
        if entry.tip == shard.tip:
            return
        if entry.before != shard.tip:
            raise LogGap
        self._apply(shard, entry)

    def load(
        self,
        number: int,
        tip: bytes,
        sequence: int,
        names: dict[NamespaceId, bytes],
        nodes: Iterable[tuple[NamespaceId, NodeHead, Hashes, dict[int, Holders]]],
        predictions: Collection[PredictionAdded],
    ) -> Iterator[None]:
        """A snapshot in place of all that was known of the shard.

        To be walked to its end: a step is one node or less, and between steps others may run, but no other change
        of the shard. Until the new nodes are complete the old ones answer; they change places in one step.
        """
        aside = NodeTable()
        shard = ShardReplica(number, tip=tip, sequence=sequence, names=names)
        for namespace, head, run, chunks in nodes:
            node = aside.add(namespace, head, run)
            shard.nodes.add(node)
            for chunk, holders in chunks.items():
                if chunk < len(node.chunks):
                    aside.set_holders(node, chunk, holders)
            yield
        for node in shard.nodes:
            aside.link(node)
            yield
        before = self.shards.get(number) or ShardReplica(number)
        gone: list[int] = []
        lost: dict[int, int] = {}
        blocks: dict[NamespaceId, int] = {}
        for node in before.nodes:
            if node.key not in aside.nodes:
                gone.append(node.key)
            for tenure, held in node.holders():
                lost[tenure] = lost.get(tenure, 0) + held.all
            blocks[node.namespace] = blocks.get(node.namespace, 0) + len(node.run)
            yield
        self._table.replace(before.nodes, gone, lost, blocks, aside)
        self.shards[number] = shard
        for node in before.nodes:
            node.parent = node.children = None  # Else they keep each other until the collector comes.
            yield
        for identity in self._predictions_table.of(number) - {prediction.id for prediction in predictions}:
            self._predictions_table.over(identity)
            yield
        for prediction in predictions:
            self._predict(shard, prediction)
            yield
        shard.loaded = True

    def enrol(self, worker: WorkerId, tenure: int, instance: str) -> None:
        """From the registry. What the worker held in another tenure counts no more."""
        self.tenures[worker] = tenure
        self.instances[worker] = instance

    def drop_worker(self, worker: WorkerId) -> None:
        """It holds nothing."""
        self.tenures.pop(worker, None)
        self.instances.pop(worker, None)

    def expire(self) -> None:
        """Predictions that are over are believed no more, whoever takes them away in Redis."""
        self._predictions_table.expire()

    # Further down.

    def _apply(self, shard: ShardReplica, entry: LogEntry) -> None:
        fresh: list[ReplicaNode] = []
        shrunk: list[ReplicaNode] = []
        for record in entry.records():
            if isinstance(record, NodeChanged):
                self._change(shard, entry, record, fresh, shrunk)
            elif isinstance(record, HoldersChanged):
                node = self.nodes.get(record.key)
                if node is None or record.chunk >= len(node.chunks):
                    raise LogGap
                if node.sequence <= entry.sequence:
                    self._table.set_holders(node, record.chunk, record.holders)
            elif isinstance(record, NodeRemoved):
                node = self.nodes.get(record.key)
                if node is not None and node.sequence < entry.sequence:
                    self._remove(shard, node)
            elif isinstance(record, PredictionAdded):
                self._predict(shard, record)
            elif isinstance(record, PredictionRemoved):
                self._predictions_table.over(record.id)
            elif isinstance(record, NamespaceAdded):
                shard.names[entry.namespace] = record.name
            elif isinstance(record, NamespaceCleared):
                shard.names.pop(entry.namespace, None)
                for node in [n for n in shard.nodes if n.namespace == entry.namespace]:
                    self._remove(shard, node)
            elif isinstance(record, NamespaceRemoved):
                shard.names.pop(entry.namespace, None)
        for node in shrunk:
            self._table.relink_children(node)
        for node in fresh:
            self._table.link(node)
        shard.tip, shard.sequence = entry.tip, entry.sequence

    def _change(
        self, shard: ShardReplica, entry: LogEntry, record: NodeChanged, fresh: list[ReplicaNode], shrunk: list[ReplicaNode]
    ) -> None:
        node = self.nodes.get(record.head.key)
        if node is None:
            if record.kept or len(record.more) != record.head.length:
                raise LogGap
            node = self._table.add(entry.namespace, record.head, record.more)
            shard.nodes.add(node)
            fresh.append(node)
        elif node.sequence < entry.sequence:
            try:
                if self._table.change(node, record):
                    shrunk.append(node)
            except NodeMismatch:
                raise LogGap from None

    def _remove(self, shard: ShardReplica, node: ReplicaNode) -> None:
        self._table.remove(node)
        shard.nodes.discard(node)

    def _predict(self, shard: ShardReplica, prediction: PredictionAdded) -> None:
        self._predictions_table.add(shard.number, prediction, self.server_ahead)

    def _pending(self, hashes: Hashes) -> dict[WorkerId, int]:
        depths = self._predictions_table.match(hashes)
        if not depths:
            return {}
        return {worker: depths[tenure] for worker, tenure in self.tenures.items() if tenure in depths}
