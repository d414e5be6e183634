"""Follows the KV events of every worker that publishes them, and tells the index.

    nothing heard yet --a batch 0--> followed: the worker's own word is all that counts
          |                             |
          +--a later batch------> uncertain: what it says is taken, and answers confirm paths as well
                                        |
          a gap that nobody can fill ---+      until it begins anew or clears its cache

Every gateway follows every feed and writes what its copy does not show yet. They say the same of the same events,
in the same order, so who writes last is right; and when one dies, nothing has to be taken over.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from radix_cache.events import EventBatch
from radix_cache.follower import Emptied, Follower, Held
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
    complete: bool = False
    batches: int = 0
    lag_seconds: float = 0.0

    @property
    def uncertain(self) -> bool:
        """It is heard, but not from its beginning."""
        return self.batches > 0 and not self.complete


@dataclass(slots=True)
class Feeds:
    """`space`: the cache that (worker, salt, adapter, page size) names, None if it is none of ours."""

    index: SharedIndex
    space: Callable[[WorkerId, str, str, int], Space | None]
    wall: Callable[[], float] = time.time
    feeds: dict[tuple[WorkerId, str], Feed] = field(default_factory=dict)
    _telling: "set[asyncio.Task[None]]" = field(default_factory=set)

    def follow(self, worker: WorkerId, sources: tuple[EventSource, ...]) -> None:
        """From now on, where it publishes now. Asking again for the same changes nothing."""
        wanted = {(worker, source.endpoint): source for source in sources}
        for key in [key for key in self.feeds if key[0] == worker and key not in wanted]:
            self._stop(self.feeds.pop(key))
        for key, source in wanted.items():
            if key not in self.feeds:
                space = self._space_of(worker)
                feed = Feed(worker=worker, subscriber=Subscriber(source), follower=Follower(space))
                self.feeds[key] = feed
                feed.task = asyncio.create_task(self._listen(feed), name=f"events of {worker}")

    def announce(self, worker: WorkerId) -> None:
        """The index has begun anew with this worker: it is told again what the worker has said so far."""
        for feed in self.of(worker):
            if len(feed.follower):
                telling = asyncio.create_task(self._tell_again(feed), name=f"pages of {worker}")
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)

    def of(self, worker: WorkerId) -> list[Feed]:
        return [feed for feed in self.feeds.values() if feed.worker == worker]

    async def close(self) -> None:
        tasks = [*self._telling, *(feed.task for feed in self.feeds.values() if feed.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _space_of(self, worker: WorkerId) -> Callable[[str, str, int], Space | None]:
        return lambda salt, adapter, page_size: self.space(worker, salt, adapter, page_size)

    def _stop(self, feed: Feed) -> None:
        self._trust(feed, complete=False)
        if feed.task is not None:
            feed.task.cancel()

    async def _tell_again(self, feed: Feed) -> None:
        for at, held in enumerate(list(feed.follower.paths())):
            self.index.hold(held.namespace, held.hashes, feed.worker)
            if at % EVENTS_PER_TURN_MAX == EVENTS_PER_TURN_MAX - 1:
                await asyncio.sleep(0)

    async def _listen(self, feed: Feed) -> None:
        while True:
            try:
                async with aclosing(feed.subscriber.batches()) as batches:
                    async for item in batches:
                        await self._take(feed, item)
            except OSError as err:
                log.warning("KV events of worker %s: %s", feed.worker, err)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _take(self, feed: Feed, item: EventBatch | Turn) -> None:
        if item is Turn.RESTARTED:
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
                    if isinstance(change, Held):
                        self.index.hold(change.namespace, change.hashes, feed.worker)
                    elif isinstance(change, Emptied):
                        self._emptied(feed)
                    else:
                        self.index.shorten(change.namespace, change.hashes, feed.worker, change.blocks)
            if feed.batches % EVENTS_PER_TURN_MAX == 0:
                await asyncio.sleep(0)

    def _emptied(self, feed: Feed) -> None:
        feed.follower.clear()
        self.index.forget(feed.worker)
        self._trust(feed, complete=True)

    def _trust(self, feed: Feed, *, complete: bool) -> None:
        """Is all that the worker holds known from its own words? Of several ranks all have to be heard."""
        feed.complete = complete
        if all(other.complete for other in self.of(feed.worker)):
            self.index.followed.add(feed.worker)
        else:
            self.index.followed.discard(feed.worker)
