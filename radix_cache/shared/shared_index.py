"""PrefixIndex of all gateways: asks the read copy, tells Redis, and remembers what Redis has not heard yet.

              match                       record, confirm, shorten, forget
                |                                     |
        +-------v--------+   messages   +-------+  scripts   +---------+
        |   read copy    |<-------------| Redis |<-----------|  store  |
        +----------------+              +-------+            +---------+
        |      own       |  predictions of this process, and what it has sent and not seen in the copy yet
        +----------------+
        |      away      |  what was learnt while Redis was away; sent when it is back
        +----------------+

A match takes the largest of the three. Nothing here waits for Redis, and no request fails because it is away.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from radix_cache.blocks import Hashes
from radix_cache.index import IndexStats
from radix_cache.local_index import LocalIndex
from radix_cache.match import LargestMatch, PrefixMatch, WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.call import ScriptAnswer
from radix_cache.shared.keys import REGISTRY, NamespaceId, namespace_id
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.tree_store import (NODES_PER_CALL_MAX, TreeStore)
from radix_cache.tiers import Tier

log = logging.getLogger(__name__)

UNSENT_MAX = 8192
UNSEEN_MAX = 65536
INSTANCE_CHARACTERS_MAX = 200
USED_SECONDS = 60
CAPACITY_SLACK = 20
"""A worker that is over its capacity loses a twentieth of it at once, so that this is seldom."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What was known of a path and its worker when a request left."""

    held: int
    sequence: int


@dataclass(frozen=True, slots=True)
class _Sent:
    shard: int
    identity: bytes


class SharedIndex:
    """See PrefixIndex. `checked` and `seen` are called by the reader; call the rest from the event loop's thread.

    `blocks_max`: of this process's own knowledge; the tree in Redis is bounded by the keeper.
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
    ) -> None:
        self.store = store
        self.replica = replica
        self.refused = 0
        """Changes that Redis did not take, in all."""
        self.corrections = 0
        """Reports of workers that had less than was known of them."""

        self.followed: set[WorkerId] = set()
        """Workers whose every change is heard: what they hold is what they say, and no answer has to confirm it."""

        self.on_changes_lost: Callable[[WorkerId], None] = lambda worker: None
        """Called when Redis did not take what a followed worker has said: it is to be told anew."""

        self.on_enrolled: Callable[[WorkerId], None] = lambda worker: None
        """Called when a worker has been given the tenure that was asked for."""

        def local() -> LocalIndex:
            return LocalIndex(
                clock,
                blocks_max=blocks_max,
                predicted_seconds=predicted_seconds,
                idle_seconds_max=idle_seconds_max,
                predictions_max=predictions_max,
            )

        self._new_local = local
        self._own = local()
        self._away: LocalIndex | None = None
        self._predictions_max = predictions_max
        self._predicted_ms = int(predicted_seconds * 1000)
        self._before: dict[tuple[WorkerId, str], _Before] = {}
        self._sent: dict[tuple[WorkerId, str], _Sent] = {}
        self._unseen: dict[int, deque[tuple[int, WorkerId, str]]] = {}
        self._unsent: deque[tuple[Namespace, Hashes, WorkerId, Tier]] = deque(maxlen=UNSENT_MAX)
        self._enrolling: dict[WorkerId, str] = {}
        self._ending: dict[WorkerId, int] = {}
        self._missed: set[WorkerId] = set()
        self._capacity: dict[WorkerId, int] = {}
        self._cutting: set[WorkerId] = set()
        self._grown: set[WorkerId] = set()
        self._number = 0

    # Asking.

    def match(self, namespace: Namespace, hashes: Hashes) -> PrefixMatch:
        known: PrefixMatch = self.replica.match(hashes)
        own = self._own.match(namespace, hashes)
        if self._away is not None:
            return LargestMatch(known, own, self._away.match(namespace, hashes))
        return LargestMatch(known, own) if own.pending else known

    def stats(self) -> IndexStats:
        return IndexStats(
            nodes=len(self.replica.nodes), blocks=self.replica.blocks, predictions=self._own.stats().predictions
        )

    # Telling.

    def record(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str) -> None:
        self._own.record(namespace, hashes, worker, writer)
        tenure = self.replica.tenures.get(worker)
        if not hashes or tenure is None:
            return
        space = namespace_id(namespace)
        shard = self.replica.shards.get(self.store.keys.shard(space))
        match = self.replica.match(hashes)
        held = match.held(worker)
        if held and shard is not None:
            if len(self._before) >= self._predictions_max:
                del self._before[next(iter(self._before))]
            self._before[worker, writer] = _Before(held, shard.sequence)
        if held == len(hashes):
            return  # Nothing that others do not know.
        self._withdraw_sent(worker, writer)
        if len(self._sent) >= self._predictions_max:
            self._withdraw_sent(*next(iter(self._sent)))
        identity = hashlib.blake2b(f"{worker}\0{writer}".encode(), digest_size=16).digest()
        self._sent[worker, writer] = _Sent(self.store.keys.shard(space), identity)
        above, depth = match.last_node(held)
        _ignored(
            self.store.predict(
                namespace, hashes[depth:], tenure, identity, self._predicted_ms, above=above, depth=depth
            )
        )

    def withdraw(self, worker: WorkerId, writer: str) -> None:
        self._before.pop((worker, writer), None)
        self._own.withdraw(worker, writer)
        self._withdraw_sent(worker, writer)

    def confirm(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str) -> None:
        if worker in self.followed:
            return  # It says so itself in a moment; until then, or until the request ends, the prediction stands.
        self._own.withdraw(worker, writer)
        self.hold(namespace, hashes, worker, writer)

    def hold(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        writer: str = "",
        tier: Tier = Tier.GPU,
    ) -> None:
        """The worker says itself that it holds this path, in this tier or those before it."""
        tenure = self.replica.tenures.get(worker)
        if tenure is None:
            self._learn(namespace, hashes, worker, tier)
            return
        used_since = self.replica.server_seconds() - USED_SECONDS
        since = self.replica.match(hashes).walk_start(worker, len(hashes), tier, used_since)
        if since is None:
            self._withdraw_sent(worker, writer)
            return
        sent = self._sent.pop((worker, writer), None)
        held = self.store.hold(
            namespace,
            hashes,
            tenure,
            tier,
            since=since,
            prediction=sent.identity if sent is not None else b"",
            fresh_seconds=USED_SECONDS,
        )
        # Until the copy shows it, it is ours to remember.
        self._number += 1
        claim = f"held {self._number}"
        if tier is Tier.GPU:
            self._own.record(namespace, hashes, worker, claim)

        def answered(answer: "asyncio.Future[ScriptAnswer]") -> None:
            if answer.cancelled() or answer.exception() is not None:
                self.refused += 1
                self._own.withdraw(worker, claim)
                self._learn(namespace, hashes, worker, tier)
                return
            result = answer.result()
            assert isinstance(result, int)
            self._await_sight(self.store.keys.shard(namespace_id(namespace)), result, worker, claim)
            self._grown.add(worker)

        held.add_done_callback(answered)

    def report(
        self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str, blocks: int
    ) -> None:
        before, tenure = self._before.get((worker, writer)), self.replica.tenures.get(worker)
        if before is None or tenure is None or blocks >= before.held:
            return
        node = self.replica.at(hashes, blocks)
        if node is None or node.sequence > before.sequence:
            return  # Gone already, or somebody has touched it since: what was reported is no news of that.
        self.corrections += 1
        self.shorten(namespace, hashes, worker, blocks)
        _ignored(self.store.hold(namespace, hashes, tenure))

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        blocks: int,
        tier: Tier = Tier.DISK,
    ) -> None:
        if self._away is not None:
            self._away.shorten(namespace, hashes, worker, blocks, tier)
        tenure = self.replica.tenures.get(worker)
        if tenure is None or blocks >= len(hashes):
            return
        node = self.replica.at(hashes, blocks)
        below = self.replica.below(node, tenure) if node is not None else []
        if tier is not Tier.DISK:
            # What hangs there stays, further away. Of more than one call takes, the nearest go first.
            below = [each for each in below if each.count(tenure, tier)]
        elif len(below) > NODES_PER_CALL_MAX:
            deepest, below = below[:-NODES_PER_CALL_MAX], below[-NODES_PER_CALL_MAX:]
            self._cut(namespace_id(namespace), [(each, tenure, 0) for each in deepest])
        since = node.depth if node is not None else 0

        def answered(answer: "asyncio.Future[ScriptAnswer]") -> None:
            if answer.cancelled() or answer.exception() is not None:
                self.refused += 1
                self._missed.add(worker)

        nearest, deeper = below[-NODES_PER_CALL_MAX:], below[:-NODES_PER_CALL_MAX]
        parts = [deeper[at : at + NODES_PER_CALL_MAX] for at in range(0, len(deeper), NODES_PER_CALL_MAX)]
        for nodes in (nearest, *parts):
            call = self.store.shorten(namespace, hashes, tenure, blocks, tier, since=since, below=nodes)
            call.add_done_callback(answered)

    def bound(self, worker: WorkerId, blocks_max: int) -> None:
        if self._capacity.get(worker) != blocks_max:
            self._capacity[worker] = blocks_max
            self._own.bound(worker, blocks_max)
        self._within_capacity(worker)

    def enrol(self, worker: WorkerId, instance: str) -> None:
        instance = instance[:INSTANCE_CHARACTERS_MAX]
        known, ends = self.replica.instances.get(worker), self._ending.get(worker, 0)
        if (known is not None and instance in ("", known) and not ends) or worker in self._enrolling:
            return
        if known:
            self.replica.drop_worker(worker)
        self._call_registry(worker, self.store.tenure(worker, instance, ends), instance)

    def forget(self, worker: WorkerId) -> None:
        tenure = self.replica.tenures.get(worker)
        self._own.forget(worker)
        if self._away is not None:
            self._away.forget(worker)
        self._unsent = deque((item for item in self._unsent if item[2] != worker), maxlen=UNSENT_MAX)
        if tenure is not None:
            instance = self.replica.instances.get(worker, "")
            # Until Redis has heard of it: else the tenure would go on, and what it has wrong with it.
            self._ending[worker] = tenure
            self.replica.drop_worker(worker)
            self._call_registry(worker, self.store.tenure(worker, ends=tenure), instance)

    # From the reader.

    def replica_changed(self) -> None:
        """The copy has moved on: what it shows by now need not be remembered here."""
        for shard, waiting in self._unseen.items():
            known = self.replica.shards.get(shard)
            while waiting and known is not None and waiting[0][0] <= known.sequence:
                _, worker, claim = waiting.popleft()
                self._own.withdraw(worker, claim)
        # Only what the copy shows can be counted.
        grown, self._grown = self._grown, set()
        for worker in grown:
            self._within_capacity(worker)

    def replica_compared(self, lost: Collection[int]) -> None:
        """The copy shows all that there is, but for the shards that are lost: Redis is told what it has missed."""
        self.replica_changed()
        if REGISTRY in lost or (not self._unsent and not self._missed and self._away is None):
            return
        shard_of = self.store.keys.shard
        unsent: list[tuple[Namespace, Hashes, WorkerId, Tier]] = []
        staying: deque[tuple[Namespace, Hashes, WorkerId, Tier]] = deque(maxlen=UNSENT_MAX)
        for item in self._unsent:
            (staying if shard_of(namespace_id(item[0])) in lost else unsent).append(item)
        self._unsent = staying
        missed, self._missed = self._missed, set()
        if not staying:
            self._away = None
        if not unsent and not missed:
            return
        log.info("telling Redis of %d paths that were learnt while it was away", len(unsent))
        for namespace, hashes, worker, tier in unsent:
            if worker not in self.followed:
                self.hold(namespace, hashes, worker, tier=tier)
        for worker in (missed | {worker for _, _, worker, _ in unsent}) & self.followed:
            self.on_changes_lost(worker)

    # Further down.

    def _learn(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, tier: Tier) -> None:
        """Redis does not know; we do."""
        if self._away is None:
            self._away = self._new_local()
        self._away.hold(namespace, hashes, worker, tier=tier)
        self._unsent.append((namespace, hashes, worker, tier))

    def _await_sight(self, shard: int, sequence: int, worker: WorkerId, claim: str) -> None:
        known = self.replica.shards.get(shard)
        if known is not None and known.sequence >= sequence:
            self._own.withdraw(worker, claim)
            self._within_capacity(worker)
        else:
            # What is never seen goes when its prediction ends.
            self._unseen.setdefault(shard, deque(maxlen=UNSEEN_MAX)).append((sequence, worker, claim))

    def _withdraw_sent(self, worker: WorkerId, writer: str) -> None:
        sent = self._sent.pop((worker, writer), None)
        if sent is not None:
            _ignored(self.store.withdraw(sent.shard, [sent.identity]))

    def _within_capacity(self, worker: WorkerId) -> None:
        room, tenure = self._capacity.get(worker), self.replica.tenures.get(worker)
        if room is None or tenure is None or worker in self._cutting or worker in self.followed:
            return
        excess = self.replica.held.get(tenure, 0) - room
        if excess <= 0:
            return
        by_space: dict[NamespaceId, list[tuple[ReplicaNode, int, int]]] = {}
        for node, keep in self.replica.least_recently_used(tenure, excess + room // CAPACITY_SLACK):
            by_space.setdefault(node.namespace, []).append((node, tenure, keep))
        self._cutting.add(worker)
        last: asyncio.Future[ScriptAnswer] | None = None
        for namespace, cuts in by_space.items():
            last = self._cut(namespace, cuts)
        if last is not None:
            last.add_done_callback(lambda _: self._cutting.discard(worker))

    def _cut(
        self, namespace: NamespaceId, cuts: list[tuple[ReplicaNode, int, int]]
    ) -> "asyncio.Future[ScriptAnswer] | None":
        last = None
        for at in range(0, len(cuts), NODES_PER_CALL_MAX):
            last = self.store.cut(namespace, cuts[at : at + NODES_PER_CALL_MAX])
            _ignored(last)
        return last

    def _call_registry(self, worker: WorkerId, call: "asyncio.Future[ScriptAnswer]", instance: str) -> None:
        self._enrolling[worker] = instance

        def answered(answer: "asyncio.Future[ScriptAnswer]") -> None:
            self._enrolling.pop(worker, None)
            if not answer.cancelled() and answer.exception() is None:
                result = answer.result()
                assert isinstance(result, int)
                if result != self._ending.get(worker):
                    self._ending.pop(worker, None)
                # The message says the same, a moment later.
                self.replica.enrol(worker, result, instance)
                self.on_enrolled(worker)

        call.add_done_callback(answered)


def _ignored(call: "asyncio.Future[ScriptAnswer]") -> None:
    """Fire and forget. The reader and the metrics say when Redis is away."""
    call.add_done_callback(lambda done: done.cancelled() or done.exception())
