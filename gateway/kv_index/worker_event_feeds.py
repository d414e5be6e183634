"""The KV event feeds of one worker, one per rank: follows them, and writes to the index if elected as writer.

    nothing received --batch 0--> whole: only the worker's events count
          |                          |
          |                          a gap that cannot be filled, or an error while the events are followed
          |                          v
          +--a later batch---> uncertain: events count, and answers confirm paths as well,
                               until the worker restarts or clears its cache

The index counts what a worker holds under its tenure: the time from an empty cache to the next. A change is written
to the index if everything before it was written under the current tenure (`synced_tenure`). Otherwise only the
follower takes it, and the index is reconciled later:

    following begins     earlier events are replayed, and written when the replay is complete
    the cache is empty   the tenure ends, and the next one begins a moment later
    tenure was ended     by another gateway, because the worker was down or its cache is empty: if the worker is
                         still the same instance, it still holds everything that it reported
    Redis was away       or did not take a change: the tree is compared with what is held
    the writer is gone   this gateway writes from now on; what the other one wrote may be more or less than is held
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import zmq.asyncio

from gateway.kv_index.feed_election import FollowerStatus
from gateway.kv_index.index_reconciler import IndexReconciler
from gateway.kv_index.rank_event_feed import RankEventFeed, RankObserver
from radix_cache.events import EventBatch
from radix_cache.follower import AllPathsGone, CacheChange, CacheFollower, PageBudget, PathGone, PathHeld
from radix_cache.loop_yield import LoopYielder
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace
from radix_cache.redis.call import RedisDown
from radix_cache.shared.feed_lease_store import FeedState
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.tiers import Tier
from workers.kv_events.batch_order import FeedNotice
from workers.kv_events.source import EventSource
from workers.kv_events.subscriber import KvEventSubscriber, TooManyEvents

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
REST_SECONDS = 60.0
"""How long a worker that published too much is not followed."""
RESYNC_SECONDS = 10.0
"""The time after which a call can no longer arrive in Redis that a gateway sent before it lost its lease."""
UNREACHABLE_PROBES = 5
"""After so many successful probes of a worker with an unreachable publisher, the roles go to other gateways."""
BATCHES_BEFORE_YIELD_MAX = 256
"""After so many batches other tasks may run, since a replay may bring ten thousand."""


@dataclass(slots=True)
class FeedContext:
    """What the feeds of all workers have in common."""

    index: SharedIndex
    resolve_namespace: Callable[[WorkerId, str, str, int], HashedNamespace | None]
    """Returns the namespace of (worker, salt, adapter, page size); None if the gateway cannot resolve it."""
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
    announce: Callable[[], None]
    """Brings the next renewal of leases forward, because something has changed for the other gateways."""
    may_write: Callable[[], bool]
    """Returns whether it is certain that no other gateway writes."""
    page_budget: PageBudget
    zmq_context: zmq.asyncio.Context
    ranks: RankObserver


@dataclass(slots=True, eq=False)
class WorkerEventFeeds:
    """The feeds of one worker: call `start`, later `stop`."""

    worker: WorkerId
    sources: tuple[EventSource, ...]
    context: FeedContext
    feeds: list[RankEventFeed] = field(default_factory=list)
    writes: bool = False
    """Whether this gateway writes the worker's events to the index, by the leases."""
    synced_tenure: int | None = None
    """The tenure under which the index has everything that the followers hold; None: it has to be reconciled."""
    syncs: int = 0
    """How often the index was reconciled."""
    probes_unreached: int = 0
    """The successful probes of the worker since all of its publishers were last reached."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _sync_task: "asyncio.Task[None] | None" = None
    _check_task: "asyncio.Task[None] | None" = None
    _resync_timer: asyncio.TimerHandle | None = None

    # State.

    @property
    def warm(self) -> bool:
        """Whether the replay of earlier events is done for all ranks."""
        return all(feed.caught_up for feed in self.feeds)

    @property
    def whole(self) -> bool:
        """Whether the events of all ranks cover everything that the worker holds."""
        return bool(self.feeds) and all(feed.trusted for feed in self.feeds)

    @property
    def feed_state(self) -> FeedState:
        """How much of the worker's cache the events cover, for other gateways."""
        found = FeedState.WHOLE if self.whole else FeedState.NOTHING
        if any(
            feed.batches and not feed.complete_from_start and feed.follower.covers_all for feed in self.feeds
        ):
            found |= FeedState.UNCERTAIN
        if any(feed.follower.hybrid for feed in self.feeds):
            found |= FeedState.HYBRID
        return found

    def status(self) -> FollowerStatus:
        """Return what this gateway can do for the worker, for the election of followers."""
        return FollowerStatus(
            wanted=True,
            follows=True,
            unreachable=self.unreachable,
            warm=self.warm and not self.probes_unreached,
            known=self.feed_state,
            losses=sum(feed.losses for feed in self.feeds) % 256,
        )

    @property
    def unreachable(self) -> bool:
        """Whether this gateway cannot reach the worker's publishers."""
        return self.probes_unreached >= UNREACHABLE_PROBES

    # Lifetime.

    def start(self) -> None:
        """Start to follow all ranks."""
        self._sync_task = asyncio.create_task(self._sync_when_woken(), name=f"index of {self.worker}")
        for rank, source in enumerate(self.sources):
            self._start_feed(source, rank)

    def _start_feed(self, source: EventSource, rank: int) -> None:
        feed = RankEventFeed(
            subscriber=KvEventSubscriber(source, self.context.zmq_context),
            follower=CacheFollower(
                lambda salt, adapter, page_size: self.context.resolve_namespace(
                    self.worker, salt, adapter, page_size
                ),
                self.context.page_budget,
            ),
            rank=rank,
        )
        self.feeds.append(feed)
        feed.task = asyncio.create_task(self._listen(feed), name=f"events of {self.worker}")

    def stop(self) -> "list[asyncio.Task[None]]":
        """Stop following, and return the tasks that are being cancelled."""
        if self._resync_timer is not None:
            self._resync_timer.cancel()
        tasks = [feed.task for feed in self.feeds] + [self._sync_task, self._check_task]
        ending = [task for task in tasks if task is not None]
        for task in ending:
            task.cancel()
        for feed in self.feeds:
            feed.follower.clear()
        return ending

    def set_writes(self, *, writes: bool) -> None:
        """Set whether this gateway writes the worker's events to the index."""
        if writes and not self.writes:
            log.info("this gateway writes the KV events of worker %s to the prefix index", self.worker)
            self.synced_tenure = None
        self.writes = writes
        if writes and self.synced_tenure is None:
            self._wake.set()

    def resync(self) -> None:
        """Reconcile the index again, because not every change has arrived."""
        self.synced_tenure = None
        self._wake.set()

    def on_enrolled(self) -> None:
        """React to the worker's new tenure."""
        self._wake.set()

    def check(self) -> None:
        """After a successful probe of the worker, check that its events arrive and the index still has them."""
        reached = all(feed.subscriber.connected for feed in self.feeds)
        self.probes_unreached = 0 if reached else self.probes_unreached + 1
        tenure = self._tenure
        if self.synced_tenure is None:
            self._wake.set()
        elif (
            tenure is not None
            and tenure != self.synced_tenure
            and (self._check_task is None or self._check_task.done())
        ):
            self._check_task = asyncio.create_task(
                self._check_instance(), name=f"events of {self.worker} once more"
            )

    async def _check_instance(self) -> None:
        """After another gateway ended the tenure, check whether the worker is still the same instance."""
        for feed in list(self.feeds):
            if not await feed.subscriber.is_same_instance() and feed in self.feeds:
                # A new instance may continue the sequence numbers of the former one, so it is read from its start.
                self.feeds.remove(feed)
                feed.follower.clear()
                if feed.task is not None:
                    feed.task.cancel()
                self._start_feed(feed.subscriber.source, feed.rank)
        self.resync()
        self.context.announce()

    # Following.

    async def _listen(self, feed: RankEventFeed) -> None:
        """Follow the events of a rank until cancelled; begin again after an error."""
        while True:
            rest_seconds = AGAIN_SECONDS
            try:
                async with aclosing(feed.subscriber.batches()) as batches:
                    async for item in batches:
                        async with self._lock:
                            await self._handle(feed, item)
                        if feed.batches % BATCHES_BEFORE_YIELD_MAX == 0:
                            await asyncio.sleep(0)
            except TooManyEvents as err:
                log.warning(
                    "KV events of worker %s are not followed for %g seconds: %s",
                    self.worker,
                    REST_SECONDS,
                    err,
                )
                rest_seconds = REST_SECONDS
            except OSError as err:
                log.warning("KV events of worker %s: %s", self.worker, err)
            # A publisher that sends invalid data harms only its own feed.
            except Exception:
                log.exception("following the KV events of worker %s failed; starting again", self.worker)
            self._on_lost(feed)
            await asyncio.sleep(rest_seconds)

    async def _handle(self, feed: RankEventFeed, item: EventBatch | FeedNotice) -> None:
        """Apply a batch, or act on what the subscriber notes: caught up, restarted, lost."""
        feed_state = self.feed_state
        if item is FeedNotice.CAUGHT_UP:
            feed.caught_up = True
            self._wake.set()
            self.context.announce()
        elif item is FeedNotice.RESTARTED:
            log.info("KV events of worker %s start again", self.worker)
            self._on_cleared(feed)
        elif item is FeedNotice.LOST:
            log.warning(
                "some KV events of worker %s are lost for good; its answers confirm cached prefixes again",
                self.worker,
            )
            self._on_lost(feed)
        elif isinstance(item, EventBatch):
            await self._apply(feed, item)
        if self.feed_state != feed_state:
            self.context.announce()

    async def _apply(self, feed: RankEventFeed, batch: EventBatch) -> None:
        if feed.batches == 0 or batch.sequence == 0:
            feed.complete_from_start = batch.sequence == 0
        feed.lag_seconds = max(0.0, self.context.wall_clock() - batch.at)
        covered_all = feed.follower.covers_all
        yielder = LoopYielder(pauses=True)
        for event in batch.events:
            for change in feed.follower.apply(event):
                if change is not None:
                    self._apply_change(feed, change)
                await yielder.yield_if_due()
        feed.batches += 1
        if covered_all and not feed.follower.covers_all:
            log.warning(
                "worker %s publishes KV events of which no index blocks can be made (block_size has to be a "
                "multiple of its page size, the model needs its tokenizer, and its cache has to keep whole "
                "prefixes); its answers confirm cached prefixes instead",
                self.worker,
            )

    def _apply_change(self, feed: RankEventFeed, change: CacheChange) -> None:
        index = self.context.index
        self._notify_ranks(feed, change)
        if isinstance(change, AllPathsGone):
            self._on_cleared(feed)
        elif not self.writes or self.synced_tenure is None or self.synced_tenure != self._tenure:
            return  # Another gateway writes the change, or the next reconciliation does.
        elif not self.context.may_write():
            self.synced_tenure = None
        elif isinstance(change, PathHeld):
            index.hold(change.namespace, change.hashes, self.worker, tier=change.tier)
        else:  # The worker has evicted the blocks of a path behind these.
            index.shorten(change.namespace, change.hashes, self.worker, change.blocks, change.tier)

    def _notify_ranks(self, feed: RankEventFeed, change: CacheChange) -> None:
        """Notify the rank observer; each following gateway keeps its own record of the ranks."""
        if isinstance(change, PathHeld):
            self.context.ranks.stored(self.worker, feed.rank, change.hashes, len(self.sources))
        elif isinstance(change, PathGone) and change.tier is Tier.DISK:
            self.context.ranks.removed(self.worker, feed.rank, change.hashes[change.blocks :])

    def _on_cleared(self, feed: RankEventFeed) -> None:
        feed.follower.clear()
        feed.complete_from_start = True
        self.context.ranks.cleared(self.worker, feed.rank)
        if feed.caught_up and self.writes:
            self.synced_tenure = None
            self.context.index.forget(self.worker)

    def _on_lost(self, feed: RankEventFeed) -> None:
        """Note that events of a rank are lost, or may be: from now on they do not cover the whole cache."""
        feed.complete_from_start = False
        feed.losses += feed.batches > 0

    # Reconciling.

    @property
    def _tenure(self) -> int | None:
        return self.context.index.replica.tenures.get(self.worker)

    async def _sync_when_woken(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                async with self._lock:
                    await self._sync()
            except RedisDown as err:
                log.debug("reconciling the prefix index with worker %s waits for Redis: %s", self.worker, err)
                self._resync_timer = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._wake.set)

    async def _sync(self) -> None:
        tenure = self._tenure
        if not self.writes or self.synced_tenure is not None or not self.warm or tenure is None:
            return
        if not self.context.may_write():
            return
        first = self.syncs == 0

        def valid() -> bool:
            return self.writes and self.context.may_write() and self._tenure == tenure

        self.syncs += 1
        reconciler = IndexReconciler(self.context.index, self.worker, tenure, valid)
        if await reconciler.reconcile([feed.follower for feed in self.feeds], whole=self.whole):
            self.synced_tenure = tenure
            if reconciler.calls_made or first:
                self._resync_later()
        elif valid():
            self._wake.set()

    def _resync_later(self) -> None:
        """Reconcile again later: calls of the former writer may arrive late, and the replica may lag."""
        if self._resync_timer is not None:
            self._resync_timer.cancel()
        self._resync_timer = asyncio.get_running_loop().call_later(RESYNC_SECONDS, self.resync)
