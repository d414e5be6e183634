"""The replica: a copy in memory of the tree in Redis. It does no I/O; replica_reader.py changes it.

    node table          nodes and their holders     changed entry by entry, or a whole shard at once
    prediction table    predictions
    tenures             the current tenure of each worker

The replica is correct as of the last applied entry. While it lags behind, it may miss a block that is there or have
one that is gone. Either costs a prefill; neither makes an answer wrong.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from radix_cache.blocks import Hashes
from radix_cache.in_flight_tree import InFlightTree
from radix_cache.match import WorkerId
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import (
    Holders,
    HoldersChanged,
    LogEntry,
    NamespaceAdded,
    NamespaceCleared,
    NamespaceRemoved,
    NodeChanged,
    NodeHead,
    NodeRemoved,
    PredictionAdded,
    PredictionRemoved,
)
from radix_cache.shared.node import PathMatch, ReplicaNode
from radix_cache.shared.node_table import NodeMismatch, NodeTable
from radix_cache.shared.predictions import PredictionListener, PredictionTable
from radix_cache.shared.shard_replica import ReplacedNodes, ShardReplica, build
from radix_cache.shared.snapshot import LogGap
from radix_cache.tiers import MASK
from radix_cache.tree import common_blocks


class TreeReplica:
    """The tree of all shards; `clock` returns seconds that never run backwards.

    No prediction counts for longer than `predicted_seconds_max`. `table` stores the nodes, `in_flight` the requests
    under way.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        predicted_seconds_max: float,
        table: NodeTable | None = None,
        in_flight: InFlightTree[int] | None = None,
    ) -> None:
        self.shards: dict[int, ShardReplica] = {}
        self.version = 0
        """Rises with every change; a match with this version is up to date."""
        self.loads = 0
        """How many snapshots were loaded."""
        self.tenures: dict[WorkerId, int] = {}
        self.workers: dict[int, WorkerId] = {}
        """The worker of each current tenure."""
        self.instances: dict[WorkerId, str] = {}
        self.server_ahead = 0.0
        """The server's clock minus the local clock, in seconds."""
        self._clock = clock
        self._table = NodeTable() if table is None else table
        self._prediction_table = PredictionTable(self._table, clock, predicted_seconds_max, in_flight)
        self.nodes = self._table.nodes
        self.held = self._table.held
        self.holding = self._table.holding

    @property
    def blocks(self) -> int:
        """The number of blocks of all runs."""
        return self._table.blocks

    def namespaces(self) -> Iterator[tuple[bytes, int]]:
        """Yield every packed namespace with its number of blocks."""
        blocks_of = self._table.blocks_of
        for shard in self.shards.values():
            for namespace, name in shard.names.items():
                yield name, blocks_of.get(namespace, 0)

    @property
    def predictions(self) -> int:
        """The number of predictions under way."""
        return len(self._prediction_table)

    @property
    def lapsed(self) -> dict[bytes, int]:
        """The shards of ended predictions that Redis still has, by id."""
        return self._prediction_table.lapsed

    def report_predictions(self, listener: PredictionListener, own: bytes) -> None:
        """Notify the listener of the start and end of predictions, except those with the id prefix `own`."""
        self._prediction_table.listener, self._prediction_table.own = listener, own

    def repeated_blocks(self, workers: Iterable[WorkerId]) -> Mapping[WorkerId, int]:
        """Return how many blocks the requests under way on each of the workers repeat; see PrefixIndex."""
        repeated, tenures = self._prediction_table.tree.repeated, self.tenures
        if not repeated:
            return {}
        return {worker: repeated[tenures[worker]] for worker in workers if tenures.get(worker) in repeated}

    def predictions_under_way(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield the predictions under way as (shard, id, tenure)."""
        return self._prediction_table.under_way()

    def server_seconds(self) -> int:
        """Return the approximate time of the server's clock, in seconds."""
        return int(self._clock() + self.server_ahead)

    # Queries.

    def match(self, hashes: Hashes) -> PathMatch:
        """Return the nodes of the path, from which PathMatch reads on demand how much of it each worker holds.

        `PathMatch.blocks` of node.py is the number for one worker, `PathMatch.holders` the workers that hold most.
        Needs no namespace, because namespaces have no hash in common.
        """
        path: list[tuple[ReplicaNode, int]] = []
        at, blocks = 0, len(hashes)
        nodes = self.nodes
        while at < blocks and (node := nodes.get(hashes[at])) is not None:
            common = common_blocks(node.run, hashes, at)
            path.append((node, common))
            at += common
            if common < len(node.run):
                break
        table = self._prediction_table
        if not table.predictions:
            return PathMatch(path, {}, self.tenures, self.workers, self.version)
        table.expire()
        return PathMatch(
            path, self._pending(hashes), self.tenures, self.workers, self.version, table.tree.shared(hashes)
        )

    def node_at(self, hashes: Hashes, block: int) -> ReplicaNode | None:
        """Return the node with this block of the path (0: the first); None if the tree does not reach that far."""
        at = 0
        while block < len(hashes) and (node := self.nodes.get(hashes[at])) is not None:
            common = common_blocks(node.run, hashes, at)
            if block < at + common:
                return node
            at += common
            if common < len(node.run) or at == len(hashes):
                return None
        return None

    def nodes_below(self, node: ReplicaNode, tenure: int) -> list[ReplicaNode]:
        """Return the nodes below `node` of which the tenure holds something, the deepest first."""
        found, waiting = [], [node]
        while waiting:
            for child in waiting.pop().children or ():
                if child.count(tenure):
                    found.append(child)
                    waiting.append(child)
        return sorted(found, key=lambda child: -child.depth)

    def least_recently_used(self, tenure: int, blocks: int) -> list[tuple[ReplicaNode, int]]:
        """Return the least recently used nodes to cut, as (node, blocks to keep), to remove `blocks` blocks."""
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
        """Return the tenures that are over and still have blocks in the tree."""
        return self.holding.keys() - set(self.tenures.values())

    # Updates.

    def apply(self, number: int, entry: LogEntry) -> None:
        """Apply the next change of a shard; ignore a repeat of the last one. Raises LogGap for any other."""
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
        names: dict[TreeId, bytes],
        nodes: Iterable[tuple[TreeId, NodeHead, Hashes, dict[int, Holders]]],
        predictions: Collection[PredictionAdded],
    ) -> Iterator[None]:
        """Replace the content of a shard by a snapshot, in small steps.

        Iterate to the end; each step handles at most one node. Other tasks may run between steps, but must not
        change the shard. The new nodes are built in a table aside, and queries see the old ones until all are
        swapped in one step; then the predictions follow, one by one.
        """
        aside = NodeTable()
        shard = ShardReplica(number, tip=tip, sequence=sequence, names=names)
        yield from build(shard, aside, nodes)
        before = self.shards.get(number) or ShardReplica(number)
        replaced = ReplacedNodes()
        yield from replaced.count(before.nodes, aside)
        self.version += 1
        self._table.replace_nodes(before.nodes, replaced.gone, replaced.lost, replaced.blocks, aside)
        self.shards[number] = shard
        for node in before.nodes:
            # Reference cycles would keep the nodes until the garbage collector runs.
            node.parent = node.children = None
            yield
        yield from self._replace_predictions(shard, predictions)
        shard.loaded = True
        self.loads += 1

    def enrol(self, worker: WorkerId, tenure: int, instance: str) -> None:
        """Set a worker's tenure and instance; blocks of its former tenure no longer count."""
        self.drop_worker(worker)
        self.tenures[worker] = tenure
        self.workers[tenure] = worker
        self.instances[worker] = instance

    def drop_worker(self, worker: WorkerId) -> None:
        """Record that a worker holds nothing."""
        self.version += 1
        tenure = self.tenures.pop(worker, None)
        if tenure is not None:
            self.workers.pop(tenure, None)
        self.instances.pop(worker, None)

    def expire(self) -> None:
        """Let predictions lapse after their deadline."""
        self._prediction_table.expire()

    def _apply(self, shard: ShardReplica, entry: LogEntry) -> None:
        self.version += 1
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
                    self._note_computed(node, record.holders)
            elif isinstance(record, NodeRemoved):
                node = self.nodes.get(record.key)
                if node is not None and node.sequence < entry.sequence:
                    self._remove(shard, node)
            elif isinstance(record, PredictionAdded):
                self._predict(shard, record)
            elif isinstance(record, PredictionRemoved):
                self._prediction_table.remove(record.id)
            elif isinstance(record, NamespaceAdded):
                shard.names[entry.tree] = record.name
            elif isinstance(record, NamespaceCleared):
                shard.names.pop(entry.tree, None)
                for node in [n for n in shard.nodes if n.tree == entry.tree]:
                    self._remove(shard, node)
            elif isinstance(record, NamespaceRemoved):
                shard.names.pop(entry.tree, None)
        for node in shrunk:
            self._table.relink_children(node)
        for node in fresh:
            self._table.link(node)
        shard.tip, shard.sequence = entry.tip, entry.sequence

    def _change(
        self,
        shard: ShardReplica,
        entry: LogEntry,
        record: NodeChanged,
        fresh: list[ReplicaNode],
        shrunk: list[ReplicaNode],
    ) -> None:
        node = self.nodes.get(record.head.key)
        if node is None:
            if record.kept or len(record.more) != record.head.length:
                raise LogGap
            node = self._table.add(entry.tree, record.head, record.more)
            shard.nodes.add(node)
            fresh.append(node)
            self._note_computed(node, record.head.holders)
        elif node.sequence < entry.sequence:
            try:
                if self._table.change(node, record):
                    shrunk.append(node)
            except NodeMismatch:
                raise LogGap from None
            self._note_computed(node, record.head.holders)

    def _note_computed(self, node: ReplicaNode, holders: Holders) -> None:
        """Note which of the awaited prompts are computed, now that these tenures hold a part of a node's run."""
        awaited = self._prediction_table.awaited
        if not awaited:
            return
        for tenure, value in holders.items():
            count = value & MASK
            if count and (block := node.run[count - 1]) in awaited:
                self._prediction_table.holds(tenure, block)

    def _remove(self, shard: ShardReplica, node: ReplicaNode) -> None:
        self._table.remove(node)
        shard.nodes.discard(node)

    def _predict(self, shard: ShardReplica, prediction: PredictionAdded) -> None:
        self._prediction_table.add(shard.number, prediction, self.server_ahead)

    def _replace_predictions(
        self, shard: ShardReplica, predictions: Collection[PredictionAdded]
    ) -> Iterator[None]:
        """Replace the predictions of a shard, one at each step."""
        for identity in self._prediction_table.ids_of(shard.number) - {one.id for one in predictions}:
            self._prediction_table.remove(identity)
            yield
        for prediction in predictions:
            self._predict(shard, prediction)
            yield

    def _pending(self, hashes: Hashes) -> dict[WorkerId, int]:
        pending: dict[WorkerId, int] = {}
        for tenure, blocks in self._prediction_table.tree.match(hashes).items():
            worker = self.workers.get(tenure)
            if worker is not None:
                pending[worker] = blocks
        return pending
