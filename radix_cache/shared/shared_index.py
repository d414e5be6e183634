"""The PrefixIndex that all gateways share: queries go to the replica, changes to Redis.

Changes that the replica does not show yet, or that Redis could not take, are kept in this process.

              match                    record, confirm, hold, shorten, forget
                |                                     |
        +-------v--------+   messages   +-------+  scripts   +---------+
        |    replica     |<-------------| Redis |<-----------|  store  |
        +----------------+              +-------+            +---------+
        |      own       |  predictions of this process, and changes that were sent and are not in the replica yet
        +----------------+
        |      away      |  what was learnt while Redis was away; sent when it is back
        +----------------+

A match takes the largest count of the three. Nothing here waits for Redis, and no request fails because Redis is
away. Redis counts as away for a shard that the replica cannot follow, even if it takes calls, since a tree that no
gateway reads would grow without bound.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from radix_cache.blocks import Hashes
from radix_cache.index import IndexStats
from radix_cache.local_index import LocalIndex
from radix_cache.match import NO_MATCH, LargestMatch, PrefixMatch, WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.call import ScriptAnswer, ignore_result
from radix_cache.shared.learnt_while_away import LearntWhileAway, UnsentPath
from radix_cache.shared.node import PathMatch, ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.sent_predictions import SentPredictions
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX, TreeStore
from radix_cache.shared.unseen_changes import UnseenChanges
from radix_cache.shared.worker_capacity import WorkerCapacity, cut
from radix_cache.shared.worker_tenures import WorkerTenures
from radix_cache.tiers import Tier

log = logging.getLogger(__name__)

USED_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _KnownAtRecord:
    """What was known of a path and its worker when a request was dispatched."""

    held: int
    """How many leading blocks of the path the worker held."""
    sequence: int
    """The number of the last change of its shard that the replica showed."""


class SharedIndex:
    """A PrefixIndex on the tree in Redis; call it from the event loop's thread only.

    Args:
        store: Changes the tree in Redis.
        replica: Shows the tree.
        clock: Seconds that never run backwards.
        blocks_max: How many blocks are kept in this process beside the replica, in each of `own` and `away`; the
            tree in Redis is bounded by index maintenance.
        predicted_seconds: How long a prediction counts.
        idle_seconds_max: Paths in this process that were not used for longer than this are dropped.
        predictions_max: The bound of this process's simultaneous predictions.
        node_blocks: The memory of a node itself, in blocks.
        identity: The id of the gateway: eight bytes, the prefix of its prediction ids.
        is_alone: Returns whether no other gateway reads the index now, so that predictions need not be sent.
    """

    refused = 0
    """The number of changes that Redis did not take."""
    corrections = 0
    """The number of reports of workers that had fewer blocks than were known."""
    cuts_all = False
    """Whether this process also enforces workers' capacity on blocks that other processes have recorded."""

    # Set by the owner of the index.
    followed: set[WorkerId]
    """The workers that report all they hold by KV events, so that answers need not confirm it."""
    on_changes_lost: Callable[[WorkerId], None]
    """Called when Redis did not take a change of a followed worker; its blocks then have to be sent again."""
    correct: Callable[[Namespace, Hashes, WorkerId, int], None]
    """Corrects a path of which a worker had only so many leading blocks, and now has the whole again."""

    def __init__(
        self,
        store: TreeStore,
        replica: TreeReplica,
        clock: Callable[[], float],
        *,
        blocks_max: int,
        predicted_seconds: float,
        idle_seconds_max: float,
        predictions_max: int = 65536,
        node_blocks: int = 0,
        identity: bytes | None = None,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store = store
        self.replica = replica
        self.is_alone = is_alone
        self.followed = set()
        self.on_changes_lost = lambda worker: None
        self.correct = self.shorten_and_hold

        self.tenures = WorkerTenures(store, replica)
        self._capacity = WorkerCapacity(store, replica, self.followed)
        self.sent_predictions = SentPredictions(store, replica, predictions_max, identity)
        self._predictions_max = predictions_max
        self._predicted_ms = int(predicted_seconds * 1000)
        self._known_at_record: dict[tuple[WorkerId, str], _KnownAtRecord] = {}

        new_local = partial(
            LocalIndex,
            clock,
            blocks_max=blocks_max,
            predicted_seconds=predicted_seconds,
            idle_seconds_max=idle_seconds_max,
            predictions_max=predictions_max,
            node_blocks=node_blocks,
        )
        self._own = new_local()
        """Predictions of this process, and its changes that the replica does not show yet."""
        self._unseen = UnseenChanges(self._own, replica)
        self._away = LearntWhileAway(new_local, store.keys)
        self._workers_grown: set[WorkerId] = set()
        """Workers that may hold more than before, and may exceed their capacity."""

    # Queries.

    def match(self, namespace: Namespace, hashes: Hashes) -> PrefixMatch:
        """Return how many leading blocks of the path each worker holds, confirmed and pending."""
        if not hashes:
            return NO_MATCH
        known = self.replica.match(hashes)
        own = self._own.match(namespace, hashes)
        if self._away.index is not None:
            return LargestMatch(known, own, self._away.index.match(namespace, hashes))
        if own is not NO_MATCH:
            return LargestMatch(known, own)
        return known if known.path or known.pending else NO_MATCH

    def stats(self) -> IndexStats:
        """Return the size of the replica, and the number of this process's predictions."""
        return IndexStats(
            nodes=len(self.replica.nodes),
            blocks=self.replica.blocks,
            predictions=self._own.stats().predictions,
        )

    # Changes.

    def record(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        writer: str,
        match: PrefixMatch | None = None,
    ) -> None:
        """Count the request `writer`, which brings this path to `worker`, at all gateways that there are now.

        It is counted in `_own` at once, and as a prediction in Redis for the other gateways: that names the blocks
        below the last node that the worker holds. What it holds is kept for `report`.
        """
        if not hashes:
            return
        tenure = self.replica.tenures.get(worker)
        if tenure is None:
            self._own.record(namespace, hashes, worker, writer)
            return
        path = match.matches[0] if isinstance(match, LargestMatch) else match
        if not isinstance(path, PathMatch) or path.version != self.replica.version:
            path = self.replica.match(hashes)
        held = path.held(worker)
        shard_number = self.store.keys.shard_of(namespace, hashes)
        shard = self.replica.shards.get(shard_number)
        if held and shard is not None:
            if len(self._known_at_record) >= self._predictions_max:
                del self._known_at_record[next(iter(self._known_at_record))]
            self._known_at_record[worker, writer] = _KnownAtRecord(held, shard.sequence)
        self._own.record(namespace, hashes, worker, writer)
        if self.is_alone():
            return
        identity = self.sent_predictions.add(worker, writer, shard_number)
        above, depth = path.last_node(held)
        ignore_result(
            self.store.predict(
                *(namespace, hashes[depth:], tenure, identity, self._predicted_ms),
                above=above,
                depth=depth,
                first=hashes[0],
            )
        )

    def withdraw(self, worker: WorkerId, writer: str) -> None:
        """Stop counting the request `writer`, which has ended or goes to another worker."""
        self._known_at_record.pop((worker, writer), None)
        self._own.withdraw(worker, writer)
        if (worker, writer) in self.sent_predictions.by_writer:
            self.sent_predictions.withdraw(worker, writer)

    def wait(self, namespace: Namespace, hashes: Hashes, writer: str) -> None:
        """Count the request `writer`, which waits for a worker, at this gateway."""
        self._own.wait(namespace, hashes, writer)

    def leave(self, writer: str) -> None:
        """Stop counting the request `writer` among those that wait."""
        self._own.leave(writer)

    def waiting(self, model: str) -> int:
        """Return how many requests for the model wait at this gateway."""
        return self._own.waiting(model)

    def repeated_blocks(self, workers: Iterable[WorkerId]) -> Mapping[WorkerId, int]:
        """Return how many blocks the requests of all gateways repeat on each of the workers; see PrefixIndex."""
        own, others = self._own.repeated_blocks(workers), self.replica.repeated_blocks(workers)
        return {**own, **others} if own and others else own or others

    def confirm(self, namespace: Namespace, hashes: Hashes, worker: WorkerId) -> None:
        """Record that `worker` holds this path, unless its own KV events are followed and will report it."""
        if worker not in self.followed and hashes:
            self.hold(namespace, hashes, worker)

    def hold(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        tier: Tier = Tier.GPU,
    ) -> None:
        """Record that `worker` holds this path in this tier or a faster one, and send that to Redis.

        Nothing is sent if the replica shows all of the path, used in the last USED_SECONDS; else lua/hold.lua walks
        the tree in Redis from the first node that lacks something. Until the replica shows the change, `match`
        counts a path on the GPU as pending at this worker.
        """
        tenure, path = self.replica.tenures.get(worker), UnsentPath(namespace, hashes, worker, tier)
        if tenure is None or (self._away.lost_shards and self._away.is_lost(namespace, hashes)):
            self._away.add(path)
            return
        used_since = self.replica.server_seconds() - USED_SECONDS
        walk_start = self.replica.match(hashes).walk_start(worker, len(hashes), tier, used_since)
        if walk_start is None:
            return
        held = self.store.hold(
            namespace,
            hashes,
            tenure,
            tier,
            walk_start=walk_start,
            fresh_seconds=USED_SECONDS,
        )
        change = self._unseen.add(namespace, hashes, worker, counts=tier is Tier.GPU)
        held.add_done_callback(partial(self._hold_answered, path, change))

    def _hold_answered(self, path: UnsentPath, change: str, answer: "asyncio.Future[ScriptAnswer]") -> None:
        """Keep a path until the replica shows it, or until it can be sent if Redis did not take it."""
        if answer.cancelled() or answer.exception() is not None:
            self.refused += 1
            self._unseen.refused(path.worker, change)
            self._away.add(path)
            return
        sequence = answer.result()
        assert isinstance(sequence, int)
        shard = self.store.keys.shard_of(path.namespace, path.hashes)
        if self._unseen.taken(shard, sequence, path.worker, change):
            self._capacity.cut_excess(path.worker)
        self._workers_grown.add(path.worker)

    def report(
        self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str, blocks: int
    ) -> None:
        """Shorten the worker's path if it had less cached than was known, and nothing has changed there since."""
        before, tenure = self._known_at_record.get((worker, writer)), self.replica.tenures.get(worker)
        if before is None or tenure is None or blocks >= before.held or self._away.is_lost(namespace, hashes):
            return
        node = self.replica.node_at(hashes, blocks)
        if node is None or node.sequence > before.sequence:
            return  # The blocks are gone already, or changed since; the report is outdated.
        self.corrections += 1
        self.correct(namespace, hashes, worker, blocks)

    def shorten_and_hold(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, blocks: int) -> None:
        """Record that `worker` had only the first `blocks` of the path, and now has the whole path again."""
        tenure = self.replica.tenures.get(worker)
        if tenure is not None:
            self.shorten(namespace, hashes, worker, blocks)
            ignore_result(self.store.hold(namespace, hashes, tenure))

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        blocks: int,
        tier: Tier = Tier.DISK,
    ) -> None:
        """Record that `worker` holds at most the first `blocks` of the path in this tier and faster ones.

        One call of Redis shortens the path and the nearest nodes below it. If there are more, further calls take
        the deeper ones: they cut them where nothing is left (the tier DISK), else move them to slower tiers.
        """
        if self._away.index is not None:
            self._away.index.shorten(namespace, hashes, worker, blocks, tier)
        tenure = self.replica.tenures.get(worker)
        if tenure is None or blocks >= len(hashes):
            return
        node = self.replica.node_at(hashes, blocks)
        below: list[ReplicaNode] = []
        if node is not None:
            below = [each for each in self.replica.nodes_below(node, tenure) if each.count(tenure, tier)]
        # The deepest are first.
        nearest, deeper = below[-NODES_PER_CALL_MAX:], below[:-NODES_PER_CALL_MAX]
        parts = [nearest]
        if deeper and tier is Tier.DISK:
            cut(self.store, deeper[0].tree, [(each, tenure, 0) for each in deeper])
        else:
            parts += (
                deeper[at : at + NODES_PER_CALL_MAX] for at in range(0, len(deeper), NODES_PER_CALL_MAX)
            )
        walk_start = node.depth if node is not None else 0
        for nodes in parts:
            call = self.store.shorten(
                namespace, hashes, tenure, blocks, tier, walk_start=walk_start, below=nodes
            )
            call.add_done_callback(partial(self._shorten_answered, worker))

    def _shorten_answered(self, worker: WorkerId, answer: "asyncio.Future[ScriptAnswer]") -> None:
        """Keep a worker whose removal Redis did not take."""
        if answer.cancelled() or answer.exception() is not None:
            self.refused += 1
            self._away.add_worker(worker)

    def set_capacity(self, worker: WorkerId, blocks_max: int) -> None:
        """Set the capacity of `worker` in blocks, and cut its blocks beyond that."""
        if self._capacity.change(worker, blocks_max):
            self._own.set_capacity(worker, blocks_max)
        self._capacity.cut_excess(worker)

    def enrol(self, worker: WorkerId, instance: str) -> None:
        """Request a tenure for `worker` if it has none, or if its tenure belongs to a former instance.

        With the former tenure all blocks of the worker are gone from the index; see WorkerTenures.enrol.
        """
        if self.tenures.enrol(worker, instance):
            self._forget_own(worker)

    def forget(self, worker: WorkerId) -> None:
        """Record that `worker` holds nothing, by ending its tenure."""
        self._forget_own(worker)
        self.tenures.end(worker)

    def _forget_own(self, worker: WorkerId) -> None:
        """Drop what this process has of the worker beside the replica, its capacity too."""
        self._capacity.forget(worker)
        self._own.forget(worker)
        self._away.forget(worker)

    # Called by the reader of the replica.

    def replica_changed(self) -> None:
        """Drop the kept changes that the replica shows by now."""
        self._unseen.drop_shown()
        # Only what the replica shows can be counted.
        grown, self._workers_grown = self._workers_grown, set()
        for worker in grown:
            self._capacity.cut_excess(worker)

    def replica_compared(self, lost: Collection[int]) -> None:
        """Send Redis what was learnt while it was away, except to `lost` shards, which cannot be followed."""
        self._away.lost_shards = lost
        if self.cuts_all:
            self._workers_grown.update(self.replica.tenures)
        self.replica_changed()
        self.sent_predictions.compared(lost=bool(lost))
        unsent, missed = self._away.take()
        if not unsent and not missed:
            return
        log.info("sending %d paths to Redis that were learnt while it was away", len(unsent))
        for path in unsent:
            if path.worker not in self.followed:
                self.hold(path.namespace, path.hashes, path.worker, tier=path.tier)
        for worker in (missed | {path.worker for path in unsent}) & self.followed:
            self.on_changes_lost(worker)
