"""The read copy: what one process knows of the tree in Redis. No I/O; the reader feeds it, the index asks it.

A copy is right as of its last entry. It may be behind, and then misses a block that is there or has one that is
gone: both cost a prefill, neither an answer.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import Node, PathMatch
from radix_cache.shared.records import (
    Entry,
    Head,
    Holders,
    HoldersChanged,
    NamespaceCleared,
    NamespaceNew,
    NodeChanged,
    NodeGone,
    Predicted,
    PredictionOver,
)
from radix_cache.tree import RadixTree, common_blocks

HOPS_MAX = 4096
LAPSED_MAX = 16384


class Gap(Exception):
    """An entry does not follow the one before: something was missed, and the shard has to be read anew."""


@dataclass(slots=True)
class Shard:
    """Where one shard's copy stands: the last change that it has. `nodes`: of all its namespaces."""

    number: int
    tip: bytes = bytes(8)
    sequence: int = 0
    loaded: bool = False
    nodes: set[Node] = field(default_factory=set)
    predictions: set[bytes] = field(default_factory=set)
    names: dict[NamespaceId, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Prediction:
    shard: Shard
    tenure: int
    until: float


class TreeCopy:
    """`clock`: seconds, never backwards. `predicted_seconds_max`: no prediction is believed for longer."""

    def __init__(self, clock: Callable[[], float], predicted_seconds_max: float) -> None:
        self.nodes: dict[int, Node] = {}
        self.shards: dict[int, Shard] = {}
        self.tenures: dict[WorkerId, int] = {}
        self.instances: dict[WorkerId, str] = {}
        self.blocks = 0
        self.held: dict[int, int] = {}
        self.holding: dict[int, set[Node]] = {}
        self.server_ahead = 0.0
        """Server time in seconds less our clock."""
        self.lapsed: deque[tuple[int, bytes]] = deque(maxlen=LAPSED_MAX)
        """Predictions whose time is over, for whoever tidies up."""
        self._clock = clock
        self._predicted_seconds_max = predicted_seconds_max
        self._pending: RadixTree[tuple[int, bytes]] = RadixTree()
        self._predictions: OrderedDict[bytes, _Prediction] = OrderedDict()

    @property
    def predictions(self) -> int:
        """How many are under way."""
        return len(self._predictions)

    def foretold(self) -> Iterator[tuple[int, bytes, int]]:
        """Predictions under way, by (shard, id, tenure)."""
        for identity, prediction in self._predictions.items():
            yield prediction.shard.number, identity, prediction.tenure

    def server_seconds(self) -> int:
        """The server's clock now, about."""
        return int(self._clock() + self.server_ahead)

    # Asking.

    def match(self, hashes: Hashes) -> PathMatch:
        """Who holds, or is about to hold, how much of the path. Namespaces have no hash in common."""
        path: list[tuple[Node, int]] = []
        at, blocks = 0, len(hashes)
        nodes = self.nodes
        while at < blocks and (node := nodes.get(hashes[at])) is not None:
            common = common_blocks(node.run, hashes, at)
            path.append((node, common))
            at += common
            if common < len(node.run):
                break
        return PathMatch(path, self._pending_match(hashes) if self._predictions else {}, self.tenures)

    def resolve(self, key: int, depth: int) -> Node | None:
        """The node that has the block of this depth, on the way from `key` along splits."""
        node = self.nodes.get(key)
        for _ in range(HOPS_MAX):
            if node is None or depth < node.depth:
                return None
            if depth < node.end:
                return node
            node = self.nodes.get(node.next)
        return None

    def at(self, hashes: Hashes, block: int) -> Node | None:
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

    def below(self, node: Node, tenure: int) -> list[Node]:
        """The nodes below that the tenure holds, the deepest first."""
        found, waiting = [], [node]
        while waiting:
            for child in waiting.pop().children or ():
                if child.count(tenure):
                    found.append(child)
                    waiting.append(child)
        return sorted(found, key=lambda child: -child.depth)

    def stale(self, tenure: int, blocks: int) -> list[tuple[Node, int]]:
        """What to cut so that the tenure loses that many blocks, (node, keep): the least recently used first."""
        cuts: list[tuple[Node, int]] = []
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

    def dead(self) -> set[int]:
        """Tenures that are over and have left remains."""
        return self.holding.keys() - set(self.tenures.values())

    # Being told.

    def apply(self, number: int, entry: Entry) -> None:
        """The next change of a shard. The last one once more does nothing; any other raises Gap."""
        shard = self.shards.get(number)
        if shard is None:
            raise Gap
        if entry.tip == shard.tip:
            return
        if entry.before != shard.tip:
            raise Gap
        self._apply(shard, entry)

    def load(
        self,
        number: int,
        tip: bytes,
        sequence: int,
        names: dict[NamespaceId, bytes],
        nodes: Iterable[tuple[NamespaceId, Head, Hashes, dict[int, Holders]]],
        predictions: Iterable[Predicted],
        entries: Iterable[Entry],
    ) -> Iterator[None]:
        """A snapshot in place of all that was known of the shard, and what happened while it was taken.

        To be walked to its end: a step is one node or less, and between steps others may run, but no other change
        of the shard. Until the new nodes are complete the old ones answer; they change places in one step.
        `sequence`: of the last change before the snapshot was begun. Raises Gap, and the shard is as it was then.
        """
        aside = TreeCopy(self._clock, self._predicted_seconds_max)
        shard = aside.shards[number] = Shard(number, tip=tip, sequence=sequence, names=names)
        foretold: dict[bytes, Predicted] = {}
        for prediction in predictions:
            foretold[prediction.id] = prediction
            yield
        for namespace, head, run, chunks in nodes:
            node = aside.nodes[head.key] = Node(head.key, namespace, run)
            shard.nodes.add(node)
            aside.blocks += len(run)
            aside._set_head(node, head)
            for chunk, holders in chunks.items():
                if chunk < len(node.chunks):
                    aside._set_holders(node, chunk, holders)
            yield
        for entry in entries:
            if entry.sequence > shard.sequence:
                if entry.before != shard.tip:
                    raise Gap
                aside._apply(shard, entry, foretold)
                yield
        for node in shard.nodes:
            aside._link(node)
            yield
        before = self.shards.get(number) or Shard(number)
        gone: list[int] = []
        lost: dict[int, int] = {}
        blocks = 0
        for node in before.nodes:
            if node.key not in aside.nodes:
                gone.append(node.key)
            for tenure, count in node.holders():
                lost[tenure] = lost.get(tenure, 0) + count
            blocks += len(node.run)
            yield
        self._replace(before.nodes, gone, lost, aside)
        self.blocks += aside.blocks - blocks
        self.shards[number] = shard
        for node in before.nodes:
            node.parent = node.children = None  # Else they keep each other until the collector comes.
            yield
        for identity in before.predictions - foretold.keys():
            self._over(shard, identity)
            yield
        for prediction in foretold.values():
            self._predict(shard, prediction)
            yield
        shard.loaded = True

    def _replace(self, before: set[Node], gone: list[int], lost: dict[int, int], aside: "TreeCopy") -> None:
        """The nodes of `aside` in place of those before: few operations, each on many.

        `gone`: keys that are there no more; `lost`: blocks that each tenure held of the nodes before.
        """
        for key in gone:
            self.nodes.pop(key, None)
        self.nodes.update(aside.nodes)
        held, holding = self.held, self.holding
        for tenure, count in lost.items():
            held[tenure] -= count
            holding[tenure] = holding[tenure] - before
            if not holding[tenure]:
                del held[tenure], holding[tenure]
        for tenure, nodes in aside.holding.items():
            held[tenure] = held.get(tenure, 0) + aside.held[tenure]
            holding[tenure] = holding[tenure] | nodes if tenure in holding else nodes

    def enrol(self, worker: WorkerId, tenure: int, instance: str) -> None:
        """From the registry. What the worker held in another tenure counts no more."""
        self.tenures[worker] = tenure
        self.instances[worker] = instance

    def dismiss(self, worker: WorkerId) -> None:
        """It holds nothing."""
        self.tenures.pop(worker, None)
        self.instances.pop(worker, None)

    def expire(self) -> None:
        """Predictions that are over are believed no more, whoever takes them away in Redis."""
        now = self._clock()
        while self._predictions:
            identity, prediction = next(iter(self._predictions.items()))
            if prediction.until > now:
                return
            self._over(prediction.shard, identity)
            self.lapsed.append((prediction.shard.number, identity))

    # Changes to single nodes.

    def _apply(self, shard: Shard, entry: Entry, foretold: dict[bytes, Predicted] | None = None) -> None:
        """`foretold`: of a load, which makes all predictions and all links between nodes at its end."""
        namespace, settled = entry.namespace, foretold is None
        fresh: list[Node] = []
        shrunk: list[Node] = []
        for record in entry.records():
            if isinstance(record, NodeChanged):
                node = self.nodes.get(record.head.key)
                if node is None or node.sequence < entry.sequence:
                    self._change(shard, namespace, node, record, fresh, shrunk, settled)
            elif isinstance(record, HoldersChanged):
                node = self.nodes.get(record.key)
                known = node is not None and record.chunk < len(node.chunks)
                if node is not None and known and (node.sequence <= entry.sequence or not settled):
                    self._set_holders(node, record.chunk, record.holders)
            elif isinstance(record, NodeGone):
                node = self.nodes.get(record.key)
                if node is not None and node.sequence < entry.sequence:
                    self._remove(shard, node)
            elif isinstance(record, Predicted):
                if foretold is None:
                    self._predict(shard, record)
                else:
                    foretold[record.id] = record
            elif isinstance(record, PredictionOver):
                if foretold is None:
                    self._over(shard, record.id)
                else:
                    foretold.pop(record.id, None)
            elif isinstance(record, NamespaceNew):
                shard.names[namespace] = record.name
            elif isinstance(record, NamespaceCleared):
                shard.names.pop(namespace, None)
                for node in [
                    n for n in shard.nodes if n.namespace == namespace and n.sequence < entry.sequence
                ]:
                    self._remove(shard, node)
        if settled:
            for node in shrunk:
                self._hand_down(node)
            for node in fresh:
                self._link(node)
        shard.tip, shard.sequence = entry.tip, entry.sequence

    def _change(
        self,
        shard: Shard,
        namespace: NamespaceId,
        node: Node | None,
        record: NodeChanged,
        fresh: list[Node],
        shrunk: list[Node],
        settled: bool,
    ) -> None:
        if node is None:
            if record.run is None:
                if settled:
                    raise Gap
                return  # A scan met it half written; what completes it is further on in the log.
            node = self.nodes[record.head.key] = Node(record.head.key, namespace, record.run)
            shard.nodes.add(node)
            self.blocks += len(record.run)
            fresh.append(node)
        elif record.run is not None:
            if len(record.run) < len(node.run):
                shrunk.append(node)
            self.blocks += len(record.run) - len(node.run)
            node.run = record.run
        if len(node.run) != record.head.length:
            if settled:
                raise Gap
            self._remove(shard, node)
            return
        self._set_head(node, record.head)

    def _set_head(self, node: Node, head: Head) -> None:
        node.sequence, node.depth, node.used = head.sequence, head.depth, head.used
        node.next, node.above = head.next, head.above
        if len(node.chunks) != 1 << head.level:
            for chunk in range(len(node.chunks)):
                self._set_holders(node, chunk, {})
            node.chunks = [{} for _ in range(1 << head.level)]
            node.mask = (1 << head.level) - 1
        self._set_holders(node, 0, head.holders)

    def _set_holders(self, node: Node, chunk: int, holders: Holders) -> None:
        before = node.chunks[chunk]
        if before == holders:
            return
        held, holding = self.held, self.holding
        for tenure, count in before.items():
            held[tenure] -= count
            if tenure not in holders:
                nodes = holding[tenure]
                nodes.discard(node)
                if not nodes:
                    del holding[tenure], held[tenure]
        for tenure, count in holders.items():
            if tenure not in before:
                holding.setdefault(tenure, set()).add(node)
            held[tenure] = held.get(tenure, 0) + count
        node.chunks[chunk] = holders

    def _remove(self, shard: Shard, node: Node) -> None:
        for chunk in range(len(node.chunks)):
            self._set_holders(node, chunk, {})
        if node.parent is not None and node.parent.children is not None:
            node.parent.children.discard(node)
        self.nodes.pop(node.key, None)
        shard.nodes.discard(node)
        self.blocks -= len(node.run)

    def _link(self, node: Node) -> None:
        if node.depth:
            parent = self.resolve(node.above, node.depth - 1)
            node.parent = parent
            if parent is not None:
                if parent.children is None:
                    parent.children = set()
                parent.children.add(node)

    def _hand_down(self, node: Node) -> None:
        """After a split the children stand below the lower half."""
        for child in list(node.children or ()):
            if child.depth != node.end and node.children is not None:
                node.children.discard(child)
                self._link(child)

    def _predict(self, shard: Shard, prediction: Predicted) -> None:
        self._over(shard, prediction.id)
        left = prediction.deadline_ms / 1000 - self.server_ahead - self._clock()
        seconds = min(left, self._predicted_seconds_max)
        if seconds > 0:
            now = self._clock()
            self._predictions[prediction.id] = _Prediction(shard, prediction.tenure, now + seconds)
            shard.predictions.add(prediction.id)
            self._pending.record(prediction.hashes, (prediction.tenure, prediction.id), now)

    def _over(self, shard: Shard, identity: bytes) -> None:
        shard.predictions.discard(identity)
        found = self._predictions.pop(identity, None)
        if found is not None:
            self._pending.forget((found.tenure, identity))

    def _pending_match(self, hashes: Hashes) -> dict[WorkerId, int]:
        self.expire()
        depths: dict[int, int] = {}
        for (tenure, _), blocks in self._pending.match(hashes).items():
            if blocks > depths.get(tenure, 0):
                depths[tenure] = blocks
        if not depths:
            return {}
        return {worker: depths[tenure] for worker, tenure in self.tenures.items() if tenure in depths}
