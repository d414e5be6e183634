"""The PrefixIndex that all gateways share: queries go to the replica, changes to Redis.

Changes that the replica does not show yet, or that Redis could not take, are kept in this process.

              match                       record, confirm, shorten, forget
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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from radix_cache.blocks import Hashes
from radix_cache.index import IndexStats
from radix_cache.local_index import LocalIndex
from radix_cache.match import NO_MATCH, LargestMatch, PrefixMatch, WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.call import ScriptAnswer, ignore_result
from radix_cache.shared.keys import REGISTRY
from radix_cache.shared.node import PathMatch
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.sent_predictions import SentPredictions
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX, TreeStore
from radix_cache.shared.unsent_paths import UnsentPath, UnsentPaths
from radix_cache.shared.worker_capacity import WorkerCapacity, cut
from radix_cache.shared.worker_tenures import WorkerTenures
from radix_cache.tiers import Tier

log = logging.getLogger(__name__)

UNSEEN_MAX = 1024
"""The most changes per shard that are remembered until the replica shows them; the oldest are dropped first."""
USED_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _KnownAtRecord:
    """What was known of a path and its worker when a request was dispatched."""

    held: int
    sequence: int


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
        self.refused = 0
        """The number of changes that Redis did not take."""
        self.corrections = 0
        """The number of reports of workers that had fewer blocks than were known."""

        self.followed: set[WorkerId] = set()
        """The workers that report all they hold by KV events, so that answers need not confirm it."""

        self.on_changes_lost: Callable[[WorkerId], None] = lambda worker: None
        """Called when Redis did not take a change of a followed worker; its blocks then have to be sent again."""

        self.correct: Callable[[Namespace, Hashes, WorkerId, int], None] = self.shorten_and_hold
        """Corrects a path of which a worker had only so many leading blocks, and now has the whole again."""

        self.is_alone = is_alone

        self.cuts_all = False
        """Whether this process also enforces workers' capacity on blocks that other processes have recorded."""

        self.tenures = WorkerTenures(store, replica)
        self._capacity = WorkerCapacity(store, replica, self.followed)

        def local() -> LocalIndex:
            return LocalIndex(
                clock,
                blocks_max=blocks_max,
                predicted_seconds=predicted_seconds,
                idle_seconds_max=idle_seconds_max,
                predictions_max=predictions_max,
                node_blocks=node_blocks,
            )

        self._new_local = local
        self._own = local()
        """Predictions of this process, and changes that were sent and are not in the replica yet."""
        self._away: LocalIndex | None = None
        """What was learnt while Redis was away; None once all of it was sent."""
        self._predictions_max = predictions_max
        self._predicted_ms = int(predicted_seconds * 1000)
        self._known_at_record: dict[tuple[WorkerId, str], _KnownAtRecord] = {}
        self.sent_predictions = SentPredictions(store, replica, predictions_max, identity)
        self._unseen_changes: dict[int, deque[tuple[int, WorkerId, str]]] = {}
        self._unsent_paths = UnsentPaths()
        self._lost_shards: Collection[int] = ()
        self._workers_missed: set[WorkerId] = set()
        self._workers_grown: set[WorkerId] = set()
        self._number = 0

    # Queries.

    def match(self, namespace: Namespace, hashes: Hashes) -> PrefixMatch:
        """Return how many leading blocks of the path each worker holds, confirmed and pending."""
        if not hashes:
            return NO_MATCH
        known = self.replica.match(hashes)
        own = self._own.match(namespace, hashes)
        if self._away is not None:
            return LargestMatch(known, own, self._away.match(namespace, hashes))
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
        """Count the request `writer`, which brings this path to `worker`, at all gateways that there are now."""
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
        return {**self._own.repeated_blocks(workers), **self.replica.repeated_blocks(workers)}

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
        """Record that `worker` holds this path in this tier or a faster one.

        Until the replica shows that, `match` counts a path on the GPU as pending at this worker.
        """
        tenure = self.replica.tenures.get(worker)
        if tenure is None or (self._lost_shards and self._is_lost(namespace, hashes)):
            self._learn_while_away(UnsentPath(namespace, hashes, worker, tier))
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
        self._number += 1
        claim = f"held {self._number}"
        if tier is Tier.GPU:
            self._own.record(namespace, hashes, worker, claim)

        def answered(answer: "asyncio.Future[ScriptAnswer]") -> None:
            if answer.cancelled() or answer.exception() is not None:
                self.refused += 1
                self._own.withdraw(worker, claim)
                self._learn_while_away(UnsentPath(namespace, hashes, worker, tier))
                return
            result = answer.result()
            assert isinstance(result, int)
            self._await_replica(self.store.keys.shard_of(namespace, hashes), result, worker, claim)
            self._workers_grown.add(worker)

        held.add_done_callback(answered)

    def report(
        self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str, blocks: int
    ) -> None:
        """Shorten the worker's path if it had less cached than was known, and nothing has changed there since."""
        before, tenure = self._known_at_record.get((worker, writer)), self.replica.tenures.get(worker)
        if before is None or tenure is None or blocks >= before.held or self._is_lost(namespace, hashes):
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
        """Record that `worker` holds at most the first `blocks` of the path in this tier and faster ones."""
        if self._away is not None:
            self._away.shorten(namespace, hashes, worker, blocks, tier)
        tenure = self.replica.tenures.get(worker)
        if tenure is None or blocks >= len(hashes):
            return
        node = self.replica.node_at(hashes, blocks)
        below = self.replica.nodes_below(node, tenure) if node is not None else []
        if tier is not Tier.DISK:
            # The nodes below stay, in slower tiers. If they exceed one call, those nearest to the root come first.
            below = [each for each in below if each.count(tenure, tier)]
        elif len(below) > NODES_PER_CALL_MAX:
            deepest, below = below[:-NODES_PER_CALL_MAX], below[-NODES_PER_CALL_MAX:]
            cut(self.store, deepest[0].namespace, [(each, tenure, 0) for each in deepest])
        walk_start = node.depth if node is not None else 0

        def answered(answer: "asyncio.Future[ScriptAnswer]") -> None:
            if answer.cancelled() or answer.exception() is not None:
                self.refused += 1
                self._workers_missed.add(worker)

        nearest, deeper = below[-NODES_PER_CALL_MAX:], below[:-NODES_PER_CALL_MAX]
        parts = [deeper[at : at + NODES_PER_CALL_MAX] for at in range(0, len(deeper), NODES_PER_CALL_MAX)]
        for nodes in (nearest, *parts):
            call = self.store.shorten(
                namespace, hashes, tenure, blocks, tier, walk_start=walk_start, below=nodes
            )
            call.add_done_callback(answered)

    def set_capacity(self, worker: WorkerId, blocks_max: int) -> None:
        """Set the capacity of `worker` in blocks, and cut its blocks beyond that."""
        if self._capacity.change(worker, blocks_max):
            self._own.set_capacity(worker, blocks_max)
        self._capacity.cut_excess(worker)

    def enrol(self, worker: WorkerId, instance: str) -> None:
        """Request a tenure for `worker` if it has none, or if its tenure belongs to a former instance."""
        if self.tenures.enrol(worker, instance):
            self._forget_own(worker)

    def forget(self, worker: WorkerId) -> None:
        """Record that `worker` holds nothing, by ending its tenure."""
        self._forget_own(worker)
        self.tenures.end(worker)

    def _forget_own(self, worker: WorkerId) -> None:
        """Forget what this process knows of the worker beside the replica."""
        self._own.forget(worker)
        if self._away is not None:
            self._away.forget(worker)
        self._unsent_paths.take(lambda path: path.worker == worker)

    # Called by the reader of the replica.

    def replica_changed(self) -> None:
        """Drop the remembered changes that the replica shows by now."""
        for shard, waiting in self._unseen_changes.items():
            known = self.replica.shards.get(shard)
            while waiting and known is not None and waiting[0][0] <= known.sequence:
                _, worker, claim = waiting.popleft()
                self._own.withdraw(worker, claim)
        # Only what the replica shows can be counted.
        grown, self._workers_grown = self._workers_grown, set()
        for worker in grown:
            self._capacity.cut_excess(worker)

    def replica_compared(self, lost: Collection[int]) -> None:
        """Send Redis what was learnt while it was away, except to `lost` shards, which cannot be followed."""
        self._lost_shards = lost
        if self.cuts_all:
            self._workers_grown.update(self.replica.tenures)
        self.replica_changed()
        self.sent_predictions.compared(lost=bool(lost))
        if REGISTRY in lost or (not self._unsent_paths and not self._workers_missed and self._away is None):
            return
        unsent = self._unsent_paths.take(lambda path: not self._is_lost(path.namespace, path.hashes))
        missed, self._workers_missed = self._workers_missed, set()
        if not self._unsent_paths:
            self._away = None
        if not unsent and not missed:
            return
        log.info("sending %d paths to Redis that were learnt while it was away", len(unsent))
        for path in unsent:
            if path.worker not in self.followed:
                self.hold(path.namespace, path.hashes, path.worker, tier=path.tier)
        for worker in (missed | {path.worker for path in unsent}) & self.followed:
            self.on_changes_lost(worker)

    def _is_lost(self, namespace: Namespace, hashes: Hashes) -> bool:
        """Return whether the replica cannot follow the path's shard; without the registry it follows no shard."""
        lost = self._lost_shards
        return bool(lost) and (REGISTRY in lost or self.store.keys.shard_of(namespace, hashes) in lost)

    def _learn_while_away(self, path: UnsentPath) -> None:
        """Remember a path that could not be sent to Redis."""
        if self._away is None:
            self._away = self._new_local()
        self._away.hold(path.namespace, path.hashes, path.worker, tier=path.tier)
        self._unsent_paths.add(path)

    def _await_replica(self, shard: int, sequence: int, worker: WorkerId, claim: str) -> None:
        known = self.replica.shards.get(shard)
        if known is not None and known.sequence >= sequence:
            self._own.withdraw(worker, claim)
            self._capacity.cut_excess(worker)
        else:
            # A change that never appears is dropped when its prediction ends.
            self._unseen_changes.setdefault(shard, deque(maxlen=UNSEEN_MAX)).append((sequence, worker, claim))
