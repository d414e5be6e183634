"""Follows the KV events of every worker that publishes them, and tells the index.

    nothing heard yet --a batch 0--> followed: the worker's own word is all that counts
          |                             |
          +--a later batch------> uncertain: what it says is taken, and answers confirm paths as well
                                        |
          a gap that nobody can fill ---+      until it begins anew or clears its cache

Every gateway follows every feed and writes what its copy does not show yet. They say the same of the same events,
in the same order, so who writes last is right; and when one dies, nothing has to be taken over.

The index counts what a worker holds by its tenure. A change goes to the index if all before it was told under the
tenure that there is; else the follower alone takes it, and all that it holds is told when that can be:

    listening begins     what was before is replayed, and told when it is whole
    the cache is empty   the tenure ends, and the next one comes a moment later
    somebody ended it    the worker was down, another gateway heard that it is empty, Redis was away: if the
                         worker's life is still the one that was heard, all of it holds
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import zmq.asyncio

from radix_cache.events import EventBatch
from radix_cache.follower import Change, Emptied, Follower, Held
from radix_cache.match import WorkerId
from radix_cache.namespace import Space
from radix_cache.shared.index import SharedIndex
from workers.kv_events.source import EventSource
from workers.kv_events.subscriber import Subscriber, Turn

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
EVENTS_PER_TURN_MAX = 256
"""After so many the event loop gets a turn: a replay may bring ten thousand."""


@dataclass(slots=True)
class Feed:
    """One worker's feed, of one rank."""

    worker: WorkerId
    subscriber: Subscriber
    follower: Follower
    task: "asyncio.Task[None] | None" = None
    check: "asyncio.Task[None] | None" = None
    caught_up: bool = False
    told: int | None = None
    """The tenure under which the index was told all that the follower holds; None: it is to be told."""
    complete: bool = False
    batches: int = 0
    lag_seconds: float = 0.0

    @property
    def uncertain(self) -> bool:
        """It is heard, but not from its beginning."""
        return self.batches > 0 and not self.believed

    @property
    def believed(self) -> bool:
        """Is what it says all that the worker holds?"""
        return self.complete and not self.follower.unfit


@dataclass(slots=True)
class Feeds:
    """`space`: the cache that (worker, salt, adapter, page size) names, None if it is none of ours."""

    index: SharedIndex
    space: Callable[[WorkerId, str, str, int], Space | None]
    wall: Callable[[], float] = time.time
    feeds: dict[tuple[WorkerId, str], Feed] = field(default_factory=dict)
    _context: "zmq.asyncio.Context | None" = None

    def __post_init__(self) -> None:
        self.index.enrolled = self._enrolled

    def follow(self, worker: WorkerId, sources: tuple[EventSource, ...]) -> None:
        """From now on, where it publishes now. The worker serves: call it again and again."""
        wanted = {(worker, source.endpoint): source for source in sources}
        for key in [key for key in self.feeds if key[0] == worker and key not in wanted]:
            self._stop(self.feeds.pop(key))
        for key, source in wanted.items():
            if key not in self.feeds:
                self._start(worker, source)
            else:
                self._look_again(self.feeds[key])

    def _start(self, worker: WorkerId, source: EventSource) -> None:
        if self._context is None:
            self._context = zmq.asyncio.Context()
        feed = Feed(
            worker=worker,
            subscriber=Subscriber(source, self._context),
            follower=Follower(self._space_of(worker)),
        )
        self.feeds[worker, source.endpoint] = feed
        feed.task = asyncio.create_task(self._listen(feed), name=f"events of {worker}")

    def of(self, worker: WorkerId) -> list[Feed]:
        return [feed for feed in self.feeds.values() if feed.worker == worker]

    async def close(self) -> None:
        tasks = [task for feed in self.feeds.values() for task in (feed.task, feed.check) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    def _space_of(self, worker: WorkerId) -> Callable[[str, str, int], Space | None]:
        return lambda salt, adapter, page_size: self.space(worker, salt, adapter, page_size)

    def _stop(self, feed: Feed) -> None:
        self._trust(feed, complete=False)
        self.index.forget(feed.worker)
        for task in (feed.task, feed.check):
            if task is not None:
                task.cancel()

    async def _listen(self, feed: Feed) -> None:
        while True:
            try:
                async with aclosing(feed.subscriber.batches()) as batches:
                    async for item in batches:
                        await self._take(feed, item)
            except OSError as err:
                log.warning("KV events of worker %s: %s", feed.worker, err)
            # Whatever a publisher sends, it costs its own feed only.
            except Exception:
                log.exception("following the KV events of worker %s failed; beginning again", feed.worker)
            self._trust(feed, complete=False)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _take(self, feed: Feed, item: EventBatch | Turn) -> None:
        if item is Turn.CAUGHT_UP:
            feed.caught_up = True
            self._begin(feed)
        elif item is Turn.RESTARTED:
            log.info("KV events of worker %s begin anew", feed.worker)
            self._emptied(feed)
        elif item is Turn.LOST:
            log.warning(
                "KV events of worker %s: some are lost for good; answers confirm paths again", feed.worker
            )
            self._trust(feed, complete=False)
        elif isinstance(item, EventBatch):
            if feed.batches == 0 or item.sequence == 0:
                self._trust(feed, complete=item.sequence == 0)
            feed.batches += 1
            feed.lag_seconds = max(0.0, self.wall() - item.at)
            for event in item.events:
                for change in feed.follower.apply(event):
                    self._change(feed, change)
            if feed.follower.unfit and feed.worker in self.index.followed:
                log.warning(
                    "worker %s publishes KV events of which our blocks cannot be made (block_size has to be a "
                    "multiple of its page size, and the model needs its tokenizer); answers confirm paths",
                    feed.worker,
                )
                self._trust(feed, complete=feed.complete)
            if feed.batches % EVENTS_PER_TURN_MAX == 0:
                await asyncio.sleep(0)

    def _change(self, feed: Feed, change: Change) -> None:
        if isinstance(change, Emptied):
            self._emptied(feed)
        elif feed.told is None or feed.told != self._tenure(feed):
            return  # It is told with all the rest.
        elif isinstance(change, Held):
            self.index.hold(change.namespace, change.hashes, feed.worker)
        else:
            self.index.shorten(change.namespace, change.hashes, feed.worker, change.blocks)

    def _emptied(self, feed: Feed) -> None:
        feed.follower.clear()
        if feed.caught_up:
            feed.told = None
            self.index.forget(feed.worker)
        self._trust(feed, complete=True)

    # Telling all.

    def _begin(self, feed: Feed) -> None:
        """What was before has been heard. What the index has beyond that is of the past."""
        held = self.index.copy.held.get(self._tenure(feed) or 0, 0)
        if feed.complete and len(self.of(feed.worker)) == 1 and held > len(feed.follower.holds()):
            self.index.forget(feed.worker)
        self._tell_all(feed)

    def _tell_all(self, feed: Feed) -> None:
        tenure = self._tenure(feed)
        if feed.caught_up and tenure is not None:
            for held in feed.follower.paths():
                self.index.hold(held.namespace, held.hashes, feed.worker)
            feed.told = tenure

    def _enrolled(self, worker: WorkerId) -> None:
        for feed in self.of(worker):
            if feed.told is None:
                self._tell_all(feed)

    def _look_again(self, feed: Feed) -> None:
        """The worker serves. Is what the index was told still told?"""
        tenure = self._tenure(feed)
        if feed.told is None:
            self._tell_all(feed)
        elif tenure is not None and tenure != feed.told and (feed.check is None or feed.check.done()):
            feed.check = asyncio.create_task(self._check(feed), name=f"events of {feed.worker} once more")

    async def _check(self, feed: Feed) -> None:
        """Somebody ended the tenure. Either the worker has lost its cache, and nobody says so, or it has not."""
        if await feed.subscriber.unbroken():
            self._tell_all(feed)
        elif self.feeds.get((feed.worker, feed.subscriber.source.endpoint)) is feed:
            # Its numbers may go on where those of its former life ended: it is heard from the beginning.
            self._start(feed.worker, feed.subscriber.source)
            self._stop(feed)

    def _tenure(self, feed: Feed) -> int | None:
        return self.index.copy.tenures.get(feed.worker)

    def _trust(self, feed: Feed, *, complete: bool) -> None:
        """Is all that the worker holds known from its own words? Of several ranks all have to be heard."""
        feed.complete = complete
        feeds = self.of(feed.worker)
        if feeds and all(other.believed for other in feeds):
            self.index.followed.add(feed.worker)
        else:
            self.index.followed.discard(feed.worker)
