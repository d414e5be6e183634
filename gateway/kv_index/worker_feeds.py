"""One worker's feeds, one of each rank: listens, and tells the index where this gateway is the one that writes.

    nothing heard yet --a batch 0--> whole: the worker's own word is all that counts
          |                             |
          +--a later batch------> uncertain: what it says is taken, and answers confirm paths as well
                                        |
          a gap that nobody can fill ---+      until it begins anew or clears its cache

The index counts what a worker holds by its tenure. A change goes to the index if all before it was told under the
tenure that there is (`told`); else the follower alone takes it, and the difference is told when that can be:

    listening begins     what was before is replayed, and told when it is whole
    the cache is empty   the tenure ends, and the next one comes a moment later
    somebody ended it    the worker was down, or another gateway heard that it is empty: if the worker's life is
                         still the one that was heard, all of it holds
    Redis was away       or did not take a change: what it has is compared with what is held
    the writer is gone   this gateway writes from now on; what the other one told may be more, or less
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

import zmq.asyncio

from gateway.kv_index.feed_election import FollowerStatus
from gateway.kv_index.index_reconciler import IndexReconciler
from radix_cache.blocks import Hashes
from radix_cache.events import EventBatch
from radix_cache.follower import CacheChange, CacheEmptied, CacheFollower, PageBudget, PathGone, PathHeld
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace
from radix_cache.redis.call import RedisDown
from radix_cache.shared.feed_leases import FeedKnowledge
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.tiers import Tier
from workers.kv_events.source import EventSource
from workers.kv_events.subscriber import FeedNotice, KvEventSubscriber

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
SECOND_LOOK_SECONDS = 10.0
"""By then, whatever a gateway had under way when it lost its lease has arrived, or will not."""
DEAF_PROBES = 5
"""Where a worker has served that often, and nobody was reached who publishes, others may follow it."""
EVENTS_PER_TURN_MAX = 256
"""After so many the event loop gets a turn: a replay may bring ten thousand."""


@dataclass(slots=True)
class RankFeed:
    """One rank's."""

    subscriber: KvEventSubscriber
    follower: CacheFollower
    rank: int = 0
    task: "asyncio.Task[None] | None" = None
    caught_up: bool = False
    complete: bool = False
    batches: int = 0
    losses: int = 0
    lag_seconds: float = 0.0

    @property
    def uncertain(self) -> bool:
        """It is heard, and what it says is not all that the worker holds."""
        return self.batches > 0 and not self.believed

    @property
    def believed(self) -> bool:
        """Is what it says all that the worker holds?"""
        return self.complete and self.follower.covers_all


class RankObserver(Protocol):
    """Is notified which KV blocks each data-parallel rank of a worker stores and evicts."""

    def held(self, worker: WorkerId, rank: int, hashes: Hashes, ranks: int) -> None:
        """Note that the rank, one of `ranks`, holds this path."""
        ...

    def gone(self, worker: WorkerId, rank: int, hashes: Hashes) -> None:
        """Note that the rank no longer holds these blocks."""
        ...

    def emptied(self, worker: WorkerId, rank: int) -> None:
        """Note that the rank holds nothing."""
        ...


@dataclass(slots=True)
class FeedContext:
    """What all feeds have in common. `hurry`: there is news for the other gateways.

    `may_write`: is it certain that nobody else writes? `wall`: seconds since 1970.
    """

    index: SharedIndex
    space: Callable[[WorkerId, str, str, int], HashedNamespace | None]
    wall: Callable[[], float]
    hurry: Callable[[], None]
    may_write: Callable[[], bool]
    room: PageBudget
    context: zmq.asyncio.Context
    ranks: RankObserver


@dataclass(slots=True, eq=False)
class WorkerFeeds:
    """`start`, then `stop`. `writes` is set from without, by `role`."""

    worker: WorkerId
    sources: tuple[EventSource, ...]
    around: FeedContext
    feeds: list[RankFeed] = field(default_factory=list)
    writes: bool = False
    told: int | None = None
    """The tenure under which the index was told all that the followers hold; None: it is to be told."""
    tellings: int = 0
    unreached: int = 0
    """Probes since somebody was reached at each of the sources."""
    _still: asyncio.Lock = field(default_factory=asyncio.Lock)
    _bell: asyncio.Event = field(default_factory=asyncio.Event)
    _teller: "asyncio.Task[None] | None" = None
    _check: "asyncio.Task[None] | None" = None
    _second_look: asyncio.TimerHandle | None = None

    # What is known.

    @property
    def warm(self) -> bool:
        """Has all that was before been heard?"""
        return all(feed.caught_up for feed in self.feeds)

    @property
    def whole(self) -> bool:
        """Of several ranks all have to be heard from their beginning."""
        return bool(self.feeds) and all(feed.believed for feed in self.feeds)

    @property
    def known(self) -> FeedKnowledge:
        found = FeedKnowledge.WHOLE if self.whole else FeedKnowledge.NOTHING
        if any(feed.batches and not feed.complete and feed.follower.covers_all for feed in self.feeds):
            found |= FeedKnowledge.UNCERTAIN
        if any(feed.follower.hybrid for feed in self.feeds):
            found |= FeedKnowledge.HYBRID
        return found

    def stand(self) -> FollowerStatus:
        return FollowerStatus(
            wanted=True,
            follows=True,
            deaf=self.deaf,
            warm=self.warm and not self.unreached,
            known=self.known,
            losses=sum(feed.losses for feed in self.feeds) % 256,
        )

    @property
    def deaf(self) -> bool:
        return self.unreached >= DEAF_PROBES

    # Its life.

    def start(self) -> None:
        self._teller = asyncio.create_task(self._tell_when_asked(), name=f"index of {self.worker}")
        for rank, source in enumerate(self.sources):
            self._begin(source, rank)

    def _begin(self, source: EventSource, rank: int) -> None:
        feed = RankFeed(
            subscriber=KvEventSubscriber(source, self.around.context),
            follower=CacheFollower(
                lambda salt, adapter, page_size: self.around.space(self.worker, salt, adapter, page_size),
                self.around.room,
            ),
            rank=rank,
        )
        self.feeds.append(feed)
        feed.task = asyncio.create_task(self._listen(feed), name=f"events of {self.worker}")

    def stop(self) -> "list[asyncio.Task[None]]":
        """The tasks that end by that."""
        if self._second_look is not None:
            self._second_look.cancel()
        tasks = [feed.task for feed in self.feeds] + [self._teller, self._check]
        ending = [task for task in tasks if task is not None]
        for task in ending:
            task.cancel()
        for feed in self.feeds:
            feed.follower.clear()
        return ending

    def role(self, *, writes: bool) -> None:
        """The leases say so."""
        if writes and not self.writes:
            log.info("this gateway writes what worker %s publishes", self.worker)
            self.told = None
        self.writes = writes
        if writes and self.told is None:
            self._bell.set()

    def tell_anew(self) -> None:
        """Not all that was told has arrived."""
        self.told = None
        self._bell.set()

    def on_enrolled(self) -> None:
        """The worker has a tenure."""
        self._bell.set()

    def look_again(self) -> None:
        """The worker serves. Is it heard, and is what the index was told still told?"""
        reached = all(feed.subscriber.connected for feed in self.feeds)
        self.unreached = 0 if reached else self.unreached + 1
        tenure = self._tenure
        if self.told is None:
            self._bell.set()
        elif tenure is not None and tenure != self.told and (self._check is None or self._check.done()):
            self._check = asyncio.create_task(self._check_life(), name=f"events of {self.worker} once more")

    async def _check_life(self) -> None:
        """Somebody ended the tenure. Either the worker has lost its cache, and nobody says so, or it has not."""
        for feed in list(self.feeds):
            if not await feed.subscriber.is_same_instance() and feed in self.feeds:
                # Its numbers may go on where those of its former life ended: it is heard from the beginning.
                self.feeds.remove(feed)
                feed.follower.clear()
                if feed.task is not None:
                    feed.task.cancel()
                self._begin(feed.subscriber.source, feed.rank)
        self.tell_anew()
        self.around.hurry()

    # Listening.

    async def _listen(self, feed: RankFeed) -> None:
        while True:
            try:
                async with aclosing(feed.subscriber.batches()) as batches:
                    async for item in batches:
                        async with self._still:
                            self._take(feed, item)
                        if feed.batches % EVENTS_PER_TURN_MAX == 0:
                            await asyncio.sleep(0)
            except OSError as err:
                log.warning("KV events of worker %s: %s", self.worker, err)
            # Whatever a publisher sends, it costs its own feed only.
            except Exception:
                log.exception("following the KV events of worker %s failed; beginning again", self.worker)
            self._lost(feed)
            await asyncio.sleep(AGAIN_SECONDS)

    def _take(self, feed: RankFeed, item: EventBatch | FeedNotice) -> None:
        known = self.known
        if item is FeedNotice.CAUGHT_UP:
            feed.caught_up = True
            self._bell.set()
            self.around.hurry()
        elif item is FeedNotice.RESTARTED:
            log.info("KV events of worker %s begin anew", self.worker)
            self._emptied(feed)
        elif item is FeedNotice.LOST:
            log.warning(
                "KV events of worker %s: some are lost for good; answers confirm paths again", self.worker
            )
            self._lost(feed)
        elif isinstance(item, EventBatch):
            self._apply(feed, item)
        if self.known != known:
            self.around.hurry()

    def _apply(self, feed: RankFeed, batch: EventBatch) -> None:
        if feed.batches == 0 or batch.sequence == 0:
            feed.complete = batch.sequence == 0
        feed.batches += 1
        feed.lag_seconds = max(0.0, self.around.wall() - batch.at)
        fit = feed.follower.covers_all
        for event in batch.events:
            for change in feed.follower.apply(event):
                self._change(feed, change)
        if fit and not feed.follower.covers_all:
            log.warning(
                "worker %s publishes KV events of which our blocks cannot be made (block_size has to be a "
                "multiple of its page size, the model needs its tokenizer, and its cache has to keep whole "
                "prefixes); answers confirm paths",
                self.worker,
            )

    def _change(self, feed: RankFeed, change: CacheChange) -> None:
        index = self.around.index
        self._tell_ranks(feed, change)
        if isinstance(change, CacheEmptied):
            self._emptied(feed)
        elif not self.writes or self.told is None or self.told != self._tenure:
            return  # Somebody else tells it, or it is told with all the rest.
        elif not self.around.may_write():
            self.told = None
        elif isinstance(change, PathHeld):
            index.hold(change.namespace, change.hashes, self.worker, tier=change.tier)
        else:
            index.shorten(change.namespace, change.hashes, self.worker, change.blocks, change.tier)

    def _tell_ranks(self, feed: RankFeed, change: CacheChange) -> None:
        """Each gateway that follows knows for itself what is where."""
        if isinstance(change, PathHeld):
            self.around.ranks.held(self.worker, feed.rank, change.hashes, len(self.sources))
        elif isinstance(change, PathGone) and change.tier is Tier.DISK:
            self.around.ranks.gone(self.worker, feed.rank, change.hashes[change.blocks :])

    def _emptied(self, feed: RankFeed) -> None:
        feed.follower.clear()
        feed.complete = True
        self.around.ranks.emptied(self.worker, feed.rank)
        if feed.caught_up and self.writes:
            self.told = None
            self.around.index.forget(self.worker)

    def _lost(self, feed: RankFeed) -> None:
        feed.complete = False
        feed.losses += feed.batches > 0

    # Telling.

    @property
    def _tenure(self) -> int | None:
        return self.around.index.replica.tenures.get(self.worker)

    async def _tell_when_asked(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            try:
                async with self._still:
                    await self._tell()
            except RedisDown as err:
                log.debug("what worker %s holds waits for Redis: %s", self.worker, err)
                self._second_look = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._bell.set)

    async def _tell(self) -> None:
        tenure = self._tenure
        if not self.writes or self.told is not None or not self.warm or tenure is None:
            return
        if not self.around.may_write():
            return
        first = self.tellings == 0

        def valid() -> bool:
            return self.writes and self.around.may_write() and self._tenure == tenure

        self.tellings += 1
        telling = IndexReconciler(self.around.index, self.worker, tenure, valid)
        if await telling.tell([feed.follower for feed in self.feeds], whole=self.whole):
            self.told = tenure
            if telling.calls or first:
                self._look_once_more()
        elif valid():
            self._bell.set()

    def _look_once_more(self) -> None:
        """What the writer before had under way may arrive late, and the copy may be behind."""

        if self._second_look is not None:
            self._second_look.cancel()
        self._second_look = asyncio.get_running_loop().call_later(SECOND_LOOK_SECONDS, self.tell_anew)
