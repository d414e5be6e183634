"""The load feeds of all workers: what engines publish of how busy they are, and how fast they have been.

    a rank's reading --> the rank's load (ranks.py); once all ranks have reported, the worker's load (loads.py)
                     `-> the milliseconds a prompt token took so far, with which routing starts
                         (reported_prefill_rate.py)
    silence          --> loads.py and ranks.py use what the worker's probes report, or what this gateway sent

Every gateway process listens to all load feeds: a reading is a hundred bytes, and nothing is passed on.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from gateway.fleet.ranks import Ranks
from gateway.fleet.reported_prefill_rate import PrefillRate
from gateway.fleet.worker import Worker
from radix_cache.match import WorkerId
from workers.load_reports.engine_loads import NO_LOAD, EngineLoad
from workers.load_reports.load_subscriber import SILENT_SECONDS, LoadSource, LoadStat, LoadSubscriber

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
"""How long after a failure a load feed is listened to again."""

SUBSCRIBERS_MAX = 2048
"""Ranks that are listened to, with two descriptors each; the load of workers beyond comes from their probes."""


@dataclass(slots=True)
class _RankLoadFeed:
    """The load feed of one data-parallel rank, and its last reading."""

    subscriber: LoadSubscriber
    rate: PrefillRate = field(default_factory=PrefillRate)
    load: EngineLoad = NO_LOAD
    read_at: float | None = None
    """When the last reading came; None before the first."""
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class _WorkerLoadFeed:
    """The load feeds of all ranks of one worker."""

    sources: tuple[LoadSource, ...]
    ranks: list[_RankLoadFeed]


@dataclass(slots=True)
class LoadFeeds:
    """The load feeds that this gateway receives. Call `follow` after each report, and `close` at the end."""

    ranks: Ranks
    reported_speed: Callable[[Worker, float], None]
    """Called with the milliseconds that a prompt token has taken a worker, as its engine reports them."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, never backwards."""
    _feeds: dict[WorkerId, _WorkerLoadFeed] = field(default_factory=dict)
    _beyond: set[WorkerId] = field(default_factory=set)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    _context: zmq.asyncio.Context | None = None

    def follow(self, worker: Worker, sources: tuple[LoadSource, ...]) -> None:
        """Listen to a worker at these sources from now on; without a source, not at all."""
        feed = self._feeds.get(worker.id)
        if (feed.sources if feed is not None else ()) == sources:
            return
        self._stop(worker.id)
        if not sources or not self._has_room(worker, len(sources)):
            return
        if self._context is None:
            self._context = zmq.asyncio.Context()
            # Sockets that are closed go a moment after their successors are opened.
            self._context.set(zmq.MAX_SOCKETS, 2 * SUBSCRIBERS_MAX)
        subscribers = [_RankLoadFeed(LoadSubscriber(source, self._context)) for source in sources]
        feed = self._feeds[worker.id] = _WorkerLoadFeed(sources, subscribers)
        for number, rank in enumerate(feed.ranks):
            rank.task = asyncio.create_task(self._listen(worker, feed, number))

    def forget(self, worker: WorkerId) -> None:
        """Stop listening to a worker that has left the fleet."""
        self._beyond.discard(worker)
        self._stop(worker)

    async def close(self) -> None:
        """Stop listening to all workers."""
        for worker in list(self._feeds):
            self._stop(worker)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    def _stop(self, worker: WorkerId) -> None:
        feed = self._feeds.pop(worker, None)
        if feed is None:
            return
        for rank in feed.ranks:
            assert rank.task is not None
            rank.task.cancel()
            self._ending.add(rank.task)
            rank.task.add_done_callback(self._ending.discard)

    def _has_room(self, worker: Worker, count: int) -> bool:
        """Return whether `count` more ranks can be listened to; log once if they cannot."""
        if sum(len(feed.ranks) for feed in self._feeds.values()) + count <= SUBSCRIBERS_MAX:
            self._beyond.discard(worker.id)
            return True
        if worker.id not in self._beyond:
            self._beyond.add(worker.id)
            log.warning(
                "the load of worker %s is known from its probes alone: %d load feeds are listened to already",
                worker.id,
                SUBSCRIBERS_MAX,
            )
        return False

    async def _listen(self, worker: Worker, feed: _WorkerLoadFeed, number: int) -> None:
        subscriber = feed.ranks[number].subscriber
        while True:
            try:
                async with aclosing(subscriber.readings()) as readings:
                    async for reading in readings:
                        self._take_reading(worker, feed, number, reading)
            except OSError as err:
                # Without the feed the worker's probes report its load.
                log.warning("the load feed of worker %s cannot be received: %s", worker.id, err)
            await asyncio.sleep(AGAIN_SECONDS)

    def _take_reading(self, worker: Worker, feed: _WorkerLoadFeed, number: int, reading: LoadStat) -> None:
        """Take over one reading of the rank of this number."""
        rank, now = feed.ranks[number], self.clock()
        rank.load, rank.read_at = reading.load, now
        self.ranks.update_from_feed(worker.id, number, reading.load, worker.ranks)
        if all(one.read_at is not None and now - one.read_at < SILENT_SECONDS for one in feed.ranks):
            worker.load.update_from_feed(sum((one.load for one in feed.ranks), NO_LOAD))
        if rank.rate.read(reading.prefilled_tokens, reading.prefill_us):
            rates = [one.rate.ms_per_token for one in feed.ranks if one.rate.ms_per_token is not None]
            self.reported_speed(worker, min(rates))
