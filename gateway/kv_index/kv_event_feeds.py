"""The KV event feeds of all workers: follows the workers that the leases give to this gateway.

Two gateways follow each worker, by lease (own_feed_leases.py, feed_election.py): one writes to the index, the other
keeps the same record and stands by (worker_event_feeds.py). Other gateways open no socket to the worker. They
receive the writer's changes of the index (radix_cache/shared/replica_reader.py), and read in the worker's lease how
complete the writer's record is: whether answers have to confirm paths, and how far to trust the index.

When a writer dies, it does not matter how much it wrote. The gateway that takes over compares its own record with
the tree and writes the difference (index_reconciler.py). Scripts therefore need neither the number of the last
batch nor a fencing token, and changes that were lost between the two gateways are repaired as well.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import zmq.asyncio

from gateway.kv_index.feed_election import FollowerStatus
from gateway.kv_index.match_confidence import MatchConfidence
from gateway.kv_index.own_feed_leases import OwnFeedLeases
from gateway.kv_index.rank_event_feed import RankEventFeed, RankObserver
from gateway.kv_index.worker_event_feeds import FeedContext, WorkerEventFeeds
from radix_cache.blocks import Hashes
from radix_cache.follower import PageBudget
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace, Namespace
from radix_cache.shared.feed_lease_store import FeedLeaseStore, FeedState
from radix_cache.shared.shared_index import SharedIndex
from workers.kv_events.source import EventSource

log = logging.getLogger(__name__)

UNREACHABLE_SECONDS = 60.0
"""How long a gateway that could not reach a worker's publisher counts as unable to follow the worker."""


@dataclass(slots=True)
class KvEventFeeds:
    """The KV event feeds of all workers: `run` for as long as the gateway serves, then `close`."""

    index: SharedIndex
    store: FeedLeaseStore
    resolve_namespace: Callable[[WorkerId, str, str, int], HashedNamespace | None]
    """Returns the namespace of (worker, salt, adapter, page size); None if the gateway cannot resolve it."""
    page_budget: PageBudget
    """Bounds the engine pages of all workers together."""
    ranks: RankObserver
    replica_is_current: Callable[[], bool] = lambda: True
    """Returns whether the replica of the index follows Redis."""
    candidate: bool = True
    """Whether this process may follow workers; otherwise it only reads what the followers report."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since 1970."""
    match_confidence: MatchConfidence = field(default_factory=MatchConfidence)
    leases: OwnFeedLeases = field(init=False)
    _sources: dict[WorkerId, tuple[EventSource, ...]] = field(default_factory=dict)
    _followed: dict[WorkerId, WorkerEventFeeds] = field(default_factory=dict)
    _unreachable_until: dict[WorkerId, float] = field(default_factory=dict)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    _context: FeedContext | None = None
    _could_write: bool = False

    def __post_init__(self) -> None:
        self.leases = OwnFeedLeases(self.store, self._statuses, self._leases_changed)
        self.index.tenures.on_enrolled = self._on_enrolled
        self.index.on_changes_lost = self._on_changes_lost

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        await self.leases.run()

    async def close(self) -> None:
        """Give up all leases, so that other gateways take over, then stop following."""
        await self.leases.leave()
        for worker in list(self._followed):
            self._stop(worker)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._context is not None:
            self._context.zmq_context.destroy(linger=0)

    def follow(self, worker: WorkerId, sources: tuple[EventSource, ...]) -> None:
        """Set where a worker publishes (nowhere: no source); call this after each successful probe."""
        before = self._sources.get(worker, ())
        if sources:
            self._sources[worker] = sources
        else:
            self._sources.pop(worker, None)
            self._unreachable_until.pop(worker, None)
        if before != sources:
            if worker in self._followed:
                if self._followed[worker].writes:
                    self.index.forget(worker)
                self._stop(worker)
            self._leases_changed()
            self.leases.renew_soon()
        elif worker in self._followed:
            self._followed[worker].check()

    def rank_feeds(self, worker: WorkerId) -> list[RankEventFeed]:
        """Return the worker's feeds by rank, if this gateway follows them."""
        at = self._followed.get(worker)
        return at.feeds if at is not None else []

    def feed_state(self, worker: WorkerId) -> FeedState:
        """Return how complete the record of the writer of the worker's events is."""
        at = self._followed.get(worker)
        if at is not None and at.writes and at.warm:
            return at.feed_state
        return self.leases.table.of(worker).known

    def role(self, worker: WorkerId) -> int:
        """Return 2 if this gateway writes the worker's events to the index, 1 if it only follows them, else 0."""
        return self.leases.follows(worker) + self.leases.writes(worker)

    def hold_reported(self, namespace: Namespace, hashes: Hashes, worker: WorkerId) -> None:
        """Record a path that a worker reported as cached, if its events are followed and did not report the path.

        For workers that are not followed, the answer has already confirmed the path.
        """
        if worker in self.index.followed and self.index.replica.match(hashes).held(worker) < len(hashes):
            self.index.hold(namespace, hashes, worker)

    def _statuses(self) -> Mapping[WorkerId, FollowerStatus]:
        """Return what this gateway can do for each worker; called once per renewal."""
        if self._may_write() != self._could_write:
            self._leases_changed()
        return {
            worker: (
                self._followed[worker].status()
                if worker in self._followed
                else FollowerStatus(
                    wanted=self.candidate,
                    unreachable=self._unreachable_until.get(worker, 0.0) > time.monotonic(),
                )
            )
            for worker in self._sources
        }

    def _leases_changed(self) -> None:
        """Start and stop following by the leases, and use what other gateways report of their workers."""
        for worker, sources in self._sources.items():
            at = self._followed.get(worker)
            if at is None and self.leases.follows(worker):
                at = self._followed[worker] = WorkerEventFeeds(worker, sources, self._feed_context())
                at.start()
            elif at is not None and not self.leases.follows(worker):
                self._stop(worker)
                at = None
            if at is not None:
                at.set_writes(writes=self.leases.writes(worker))
        for worker in self._followed.keys() - self._sources.keys():
            self._stop(worker)
        self._apply_knowledge()

    def _apply_knowledge(self) -> None:
        may_write = self._could_write = self._may_write()
        if not may_write:
            for at in self._followed.values():
                at.synced_tenure = None  # It is unknown which of the calls under way will arrive.
        followed = set()
        self.match_confidence.keep_only(self.leases.table.leases.keys())
        for worker, lease in self.leases.table.leases.items():
            known = self.feed_state(worker)
            # While Redis is away, changes of other gateways do not arrive, so answers have to confirm paths.
            if may_write and known & FeedState.WHOLE and worker in self._sources:
                followed.add(worker)
            losses = lease.losses if known & FeedState.UNCERTAIN else None
            self.match_confidence.update(worker, losses=losses, hybrid=bool(known & FeedState.HYBRID))
        self.index.followed.intersection_update(followed)
        self.index.followed.update(followed)

    def _may_write(self) -> bool:
        return self.leases.fresh and self.replica_is_current()

    def _feed_context(self) -> FeedContext:
        if self._context is None:
            # One context for all feeds: each has threads, and aborts the process if it gets no file descriptors.
            context = zmq.asyncio.Context()
            self._context = FeedContext(
                self.index,
                self.resolve_namespace,
                self.wall_clock,
                self.leases.renew_soon,
                self._may_write,
                self.page_budget,
                context,
                self.ranks,
            )
        return self._context

    def _stop(self, worker: WorkerId) -> None:
        at = self._followed.pop(worker)
        if at.unreachable:
            log.warning(
                "this gateway cannot reach the KV events of worker %s; other gateways follow them", worker
            )
            self._unreachable_until[worker] = time.monotonic() + UNREACHABLE_SECONDS
        for task in at.stop():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _on_changes_lost(self, worker: WorkerId) -> None:
        # If this gateway does not follow the worker, another gateway is its writer and repairs the index.
        if worker in self._followed:
            self._followed[worker].resync()

    def _on_enrolled(self, worker: WorkerId) -> None:
        if worker in self._followed:
            self._followed[worker].on_enrolled()
