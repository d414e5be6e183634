"""The KV events of all workers: whom this gateway follows, and what it makes of what others say of the rest.

Two gateways follow each worker, by lease (feed_leases.py, feed_roles.py): one writes to the index, the other keeps
the same account and is ready to write (feed.py). All others open no socket to it; what the writer knows of it
stands in its lease, and tells them whether answers have to confirm paths, and how far to trust what the index has.

Of what a writer told when it died nothing has to be known: the one that takes over compares its own account with
the tree, and tells the difference (feed_telling.py). So no script carries a number of the last batch, none checks a
token, and what is lost between the two of them is healed as well.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import zmq.asyncio

from gateway.kv_index.feed_election import FollowerStatus
from gateway.kv_index.feed_leases import FeedLeases
from gateway.kv_index.match_confidence import MatchConfidence
from gateway.kv_index.worker_feeds import FeedContext, RankFeed, RankObserver, WorkerFeeds
from radix_cache.blocks import Hashes
from radix_cache.follower import PageBudget
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace, Namespace
from radix_cache.shared.feed_leases import FeedKnowledge, FeedLeaseStore
from radix_cache.shared.shared_index import SharedIndex
from workers.kv_events.source import EventSource

log = logging.getLogger(__name__)

DEAF_SECONDS = 60.0
"""For so long a gateway remembers that it could not reach a worker's events."""


@dataclass(slots=True)
class KvEventFeeds:
    """`run` for as long as the gateway lives, then `close`.

    `space`: the cache that (worker, salt, adapter, page size) names, None if it is none of ours. `room`: for the
    pages of all workers. `up`: does the copy of the index follow Redis?
    """

    index: SharedIndex
    store: FeedLeaseStore
    space: Callable[[WorkerId, str, str, int], HashedNamespace | None]
    room: PageBudget
    ranks: RankObserver
    up: Callable[[], bool] = lambda: True
    wall: Callable[[], float] = time.time
    credits: MatchConfidence = field(default_factory=MatchConfidence)
    leases: FeedLeases = field(init=False)
    _sources: dict[WorkerId, tuple[EventSource, ...]] = field(default_factory=dict)
    _followed: dict[WorkerId, WorkerFeeds] = field(default_factory=dict)
    _deaf: dict[WorkerId, float] = field(default_factory=dict)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    _around: FeedContext | None = None
    _certain: bool = False

    def __post_init__(self) -> None:
        self.leases = FeedLeases(self.store, self._stands, self._leases_changed)
        self.index.on_enrolled = self._on_enrolled
        self.index.on_changes_lost = self._on_changes_lost

    async def run(self) -> None:
        await self.leases.run()

    async def close(self) -> None:
        """The others are told first."""
        await self.leases.leave()
        for worker in list(self._followed):
            self._stop(worker)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._around is not None:
            self._around.context.destroy(linger=0)

    def follow(self, worker: WorkerId, sources: tuple[EventSource, ...]) -> None:
        """The worker serves, and publishes there (nowhere: no source). Call it again and again."""
        before = self._sources.get(worker, ())
        if sources:
            self._sources[worker] = sources
        else:
            self._sources.pop(worker, None)
            self._deaf.pop(worker, None)
        if before != sources:
            if worker in self._followed:
                if self._followed[worker].writes:
                    self.index.forget(worker)
                self._stop(worker)
            self._leases_changed()
            self.leases.hurry()
        elif worker in self._followed:
            self._followed[worker].look_again()

    def of(self, worker: WorkerId) -> list[RankFeed]:
        """Its feeds, if this gateway follows them."""
        at = self._followed.get(worker)
        return at.feeds if at is not None else []

    def known(self, worker: WorkerId) -> FeedKnowledge:
        """By whoever follows it."""
        at = self._followed.get(worker)
        if at is not None and at.writes and at.warm:
            return at.known
        return self.leases.table.of(worker).known

    def role(self, worker: WorkerId) -> int:
        """2: this gateway writes what the worker publishes; 1: it follows; 0: it does not."""
        return self.leases.follows(worker) + self.leases.writes(worker)

    def at_least(self, namespace: Namespace, hashes: Hashes, worker: WorkerId) -> None:
        """It says that it held this path. Where answers confirm paths, one has done so already."""
        if worker in self.index.followed and self.index.replica.match(hashes).held(worker) < len(hashes):
            self.index.hold(namespace, hashes, worker)

    # Further down.

    def _stands(self) -> Mapping[WorkerId, FollowerStatus]:
        """Of all workers, once a round."""
        if self._may_write() != self._certain:
            self._leases_changed()
        return {
            worker: (
                self._followed[worker].stand()
                if worker in self._followed
                else FollowerStatus(wanted=True, deaf=self._deaf.get(worker, 0.0) > time.monotonic())
            )
            for worker in self._sources
        }

    def _leases_changed(self) -> None:
        """Starts and ends what the leases say; and hears what the others know."""
        for worker, sources in self._sources.items():
            at = self._followed.get(worker)
            if at is None and self.leases.follows(worker):
                at = self._followed[worker] = WorkerFeeds(worker, sources, self._surroundings())
                at.start()
            elif at is not None and not self.leases.follows(worker):
                self._stop(worker)
                at = None
            if at is not None:
                at.role(writes=self.leases.writes(worker))
        for worker in self._followed.keys() - self._sources.keys():
            self._stop(worker)
        self._hear()

    def _hear(self) -> None:
        certain = self._certain = self._may_write()
        if not certain:
            for at in self._followed.values():
                at.told = None  # Who knows what arrives of that which is under way.
        followed = set()
        for worker in self.credits.doubted() - self.leases.table.leases.keys():
            self.credits.hear(worker, losses=None, hybrid=False)
        for worker, lease in self.leases.table.leases.items():
            known = self.known(worker)
            # While Redis is away nobody hears what others are told: answers are all that there is.
            if certain and known & FeedKnowledge.WHOLE and worker in self._sources:
                followed.add(worker)
            losses = lease.losses if known & FeedKnowledge.UNCERTAIN else None
            self.credits.hear(worker, losses=losses, hybrid=bool(known & FeedKnowledge.HYBRID))
        self.index.followed.intersection_update(followed)
        self.index.followed.update(followed)

    def _may_write(self) -> bool:
        return self.leases.fresh and self.up()

    def _surroundings(self) -> FeedContext:
        if self._around is None:
            # One for all: each has threads, and ends the process when it gets no descriptors.
            context = zmq.asyncio.Context()
            self._around = FeedContext(
                self.index,
                self.space,
                self.wall,
                self.leases.hurry,
                self._may_write,
                self.room,
                context,
                self.ranks,
            )
        return self._around

    def _stop(self, worker: WorkerId) -> None:
        at = self._followed.pop(worker)
        if at.deaf:
            log.warning("the KV events of worker %s cannot be reached from here; others follow it", worker)
            self._deaf[worker] = time.monotonic() + DEAF_SECONDS
        for task in at.stop():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _on_changes_lost(self, worker: WorkerId) -> None:
        # Another gateway's writer has told it all the same.
        if worker in self._followed:
            self._followed[worker].tell_anew()

    def _on_enrolled(self, worker: WorkerId) -> None:
        if worker in self._followed:
            self._followed[worker].on_enrolled()
