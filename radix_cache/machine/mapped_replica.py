"""The replica of a process that matches in the shared memory of its machine and keeps no copy of its own.

The process follows the registry of workers itself, so that it has a tenure as soon as it has requested one. It
caches decoded nodes, up to a bound, by the word that leads to them; an unchanged word means an unchanged node.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import error as StructError

import msgspec

from radix_cache.blocks import Hashes
from radix_cache.in_flight_tree import SharedPart
from radix_cache.machine.announcements import AnnouncementReader
from radix_cache.machine.records import decode_bytes, decode_in_flight, decode_node, read_record
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
from radix_cache.machine.slot_table import SIZE_BITS, SIZE_MASK, SlotTableReader
from radix_cache.match import WorkerId
from radix_cache.shared.node import PathMatch, ReplicaNode
from radix_cache.shared.predictions import PredictionListener
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.shard_replica import ShardReplica
from radix_cache.tree import common_blocks

ATTEMPTS_MAX = 4
NOWHERE = -1
NODES_KEPT_MAX = 4096
"""Decoded nodes that a process keeps: 10 MiB with the chats of the benchmark, 24 MiB with runs of 512 blocks."""

PROBED_MAX = 4096
"""The most slots that are searched for one key."""


class MappedNodes:
    """The nodes of the tree in shared memory, each decoded when it is looked up."""

    def __init__(self) -> None:
        self._segment: IndexSegment | None = None
        self._kept: dict[int, ReplicaNode] = {}
        """Decoded nodes by word."""
        self._kept_before: dict[int, ReplicaNode] = {}
        """The former `_kept`, from before it was last full."""
        self._place, self._base, self._size = NOWHERE, 0, 0
        """Where the slot table was at the last look: its word, its first slot and their number."""

    def use(self, segment: IndexSegment | None) -> None:
        """Look up nodes in this segment from now on; without a segment there are no nodes."""
        self._segment = segment
        self._kept, self._kept_before = {}, {}
        self._place = NOWHERE

    def __len__(self) -> int:
        """Return the number of nodes."""
        return self._segment.words[NODES] if self._segment is not None else 0

    def get(self, key: int) -> ReplicaNode | None:
        """Return the node that begins with this block."""
        segment = self._segment
        if segment is None:
            return None
        words = segment.words
        for _ in range(ATTEMPTS_MAX):
            place = words[NODE_TABLE]
            if place != self._place:
                if not place:
                    return None
                self._place, self._base, self._size = place, place >> SIZE_BITS, place & SIZE_MASK
            base, size = self._base, self._size
            begin = key % size
            at = base + 2 * begin
            found = words[at]
            if found != key:
                for step in range(begin + 1, begin + PROBED_MAX):
                    if not found:
                        return None
                    at = base + 2 * (step % size)
                    found = words[at]
                    if found == key:
                        break
                else:
                    continue
            word = words[at + 1]
            if not word:
                return None
            node = self._kept.get(word)
            if node is not None and node.key == key:
                return node
            node = self._kept_before.get(word)
            if node is not None and node.key == key:
                self._keep(word, node)
                return node
            node = _decoded(segment, word)
            # The record is not overwritten while its slot shows it.
            if words[at + 1] == word and words[NODE_TABLE] == place and node is not None:
                if node.key != key:
                    return None
                self._keep(word, node)
                return node
        return None

    def _keep(self, word: int, node: ReplicaNode) -> None:
        if len(self._kept) >= NODES_KEPT_MAX // 2:
            self._kept, self._kept_before = {}, self._kept
        self._kept[word] = node


def _decoded(segment: IndexSegment, word: int) -> ReplicaNode | None:
    record = read_record(segment, word)
    try:
        return decode_node(record) if record is not None else None
    except (StructError, ValueError, IndexError):
        return None


class MappedReplica(TreeReplica):
    """A TreeReplica that matches in shared memory; `clock` returns seconds that never run backwards."""

    def __init__(self, clock: Callable[[], float], predicted_seconds_max: float) -> None:
        super().__init__(clock, predicted_seconds_max)
        self.mapped_nodes = MappedNodes()
        self.nodes = self.mapped_nodes  # type: ignore[assignment]
        self.announcements = AnnouncementReader()
        self._segment: IndexSegment | None = None
        self._in_flight: SlotTableReader | None = None
        self._repeated: SlotTableReader | None = None
        self._changes = 0
        self._is_current = False

    def use(self, segment: IndexSegment | None) -> None:
        """Match in this segment from now on; without a segment nothing is known."""
        self._segment = segment
        self.mapped_nodes.use(segment)
        self._in_flight = SlotTableReader(segment, IN_FLIGHT_TABLE) if segment is not None else None
        self._repeated = SlotTableReader(segment, REPEATED_TABLE) if segment is not None else None
        self.loads += 1
        self.version += 1

    def set_current(self, *, is_current: bool) -> None:
        """Set whether the segment is kept up to date; while it is not, no request under way counts."""
        self._is_current = is_current
        if not is_current:
            self.announcements.end_all()

    def refresh(self, shards: int) -> bool:
        """Take over the segment's sequence numbers, and return whether it has changed since the last call."""
        segment = self._segment
        if segment is None:
            return False
        self.announcements.read(segment)
        changes = segment.words[CHANGES]
        if changes == self._changes:
            return False
        self._changes = changes
        self.version += 1
        for number, sequence in enumerate(segment.words[SEQUENCES : SEQUENCES + shards].tolist()):
            shard = self.shards.get(number)
            if shard is None:
                shard = self.shards[number] = ShardReplica(number, loaded=True)
            shard.sequence = sequence
        return True

    @property
    def blocks(self) -> int:
        """The number of blocks of all runs."""
        return self._segment.words[BLOCKS] if self._segment is not None else 0

    @property
    def predictions(self) -> int:
        """The number of predictions under way."""
        return self._segment.words[PREDICTIONS] if self._segment is not None and self._is_current else 0

    def namespaces(self) -> Iterator[tuple[bytes, int]]:
        """Yield every packed namespace with its number of blocks, as of a moment ago."""
        segment = self._segment
        if segment is not None and (word := segment.words[NAMESPACES]):
            record = read_record(segment, word)
            if record is not None and segment.words[NAMESPACES] == word:
                yield from msgspec.msgpack.decode(decode_bytes(record), type=list[tuple[bytes, int]])

    def report_predictions(self, listener: PredictionListener, own: bytes) -> None:
        """Notify the listener of the predictions of other processes, as they are announced."""
        self.announcements.listener, self.announcements.own = listener, own

    def repeated_blocks(self, workers: Iterable[WorkerId]) -> Mapping[WorkerId, int]:
        """Return how many blocks the requests under way on each of the workers repeat; see PrefixIndex."""
        repeated = self._repeated
        if repeated is None or not self.predictions:
            return {}
        tenures = self.tenures
        return {
            worker: blocks
            for worker in workers
            if (tenure := tenures.get(worker)) is not None and (blocks := repeated.get(tenure))
        }

    def match(self, hashes: Hashes) -> PathMatch:
        """Return how much of the path each worker holds or is about to hold."""
        path: list[tuple[ReplicaNode, int]] = []
        at, blocks = 0, len(hashes)
        get = self.mapped_nodes.get
        while at < blocks and (node := get(hashes[at])) is not None:
            run = node.run
            common = common_blocks(run, hashes, at)
            path.append((node, common))
            at += common
            if common < len(run):
                break
        segment = self._segment
        if segment is None or not self._is_current or not segment.words[PREDICTIONS]:
            return PathMatch(path, {}, self.tenures, self.workers, self.version)
        pending, shared = self._under_way(segment, hashes)
        return PathMatch(path, pending, self.tenures, self.workers, self.version, shared)

    def _under_way(
        self, segment: IndexSegment, hashes: Hashes
    ) -> tuple[dict[WorkerId, int], list[SharedPart]]:
        """Return the leading blocks that requests under way bring to each worker, and the parts that they share."""
        pending: dict[WorkerId, int] = {}
        parts: list[SharedPart] = []
        at, blocks, table = 0, len(hashes), self._in_flight
        while table is not None and at < blocks and (found := self._in_flight_node(table, hashes[at])):
            requests, run, tenures = found
            common = common_blocks(run, hashes, at)
            at += common
            parts.append(SharedPart(at, requests))
            for tenure in tenures:
                worker = self.workers.get(tenure)
                if worker is not None:
                    pending[worker] = at
            if common < len(run):
                break
        return pending, parts

    def _in_flight_node(self, table: SlotTableReader, key: int) -> tuple[int, Hashes, list[int]] | None:
        segment = self._segment
        for _ in range(ATTEMPTS_MAX):
            word = table.get(key)
            if segment is None or not word:
                return None
            record = read_record(segment, word)
            if record is None or table.get(key) != word:
                continue
            try:
                begins, requests, run, tenures = decode_in_flight(record)
            except (StructError, ValueError):
                continue
            return (requests, run, tenures) if begins == key else None
        return None
