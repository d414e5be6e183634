"""The load feeds of all workers: what engines publish of how busy they are, and how fast they have been.

    a rank's reading --> its ranks' loads (ranks.py), and, once all ranks are heard, the worker's (loads.py)
                     `-> what a prompt token took so far (prefill_rate.py), where routing begins with its speed
    silence          --> loads.py and ranks.py go by what the worker says when it is asked, or by what is known here

Every gateway process listens to all of them: a reading is a hundred bytes, and nothing is written for others.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from gateway.fleet.prefill_rate import PrefillRate
from gateway.fleet.ranks import Ranks
from gateway.fleet.worker import Worker
from radix_cache.match import WorkerId
from workers.load_reports.engine_loads import NO_LOAD, EngineLoad
from workers.load_reports.load_feed import SILENT_SECONDS, LoadListener, LoadSource, LoadStat

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
LISTENERS_MAX = 2048
"""Ranks that are listened to, with two descriptors each; workers beyond are asked."""


@dataclass(slots=True)
class _Rank:
    """`heard_at`: None before its first reading."""

    listener: LoadListener
    rate: PrefillRate = field(default_factory=PrefillRate)
    load: EngineLoad = NO_LOAD
    heard_at: float | None = None
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class _Feed:
    """One worker's, of all its ranks."""

    sources: tuple[LoadSource, ...]
    ranks: list[_Rank]


@dataclass(slots=True)
class LoadFeeds:
    """`follow` as workers say where they publish; `close` at the end.

    `told_speed`: a worker's engine says how many milliseconds a prompt token has taken it.
    """

    ranks: Ranks
    told_speed: Callable[[Worker, float], None]
    clock: Callable[[], float] = time.monotonic
    _feeds: dict[WorkerId, _Feed] = field(default_factory=dict)
    _beyond: set[WorkerId] = field(default_factory=set)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    _context: zmq.asyncio.Context | None = None

    def follow(self, worker: Worker, sources: tuple[LoadSource, ...]) -> None:
        """The worker publishes there (nowhere: no source). Call it again and again."""
        at = self._feeds.get(worker.id)
        if (at.sources if at is not None else ()) == sources:
            return
        self._stop(worker.id)
        if not sources or not self._has_room(worker, len(sources)):
            return
        if self._context is None:
            self._context = zmq.asyncio.Context()
            # Those that are closed go a moment later than others come.
            self._context.set(zmq.MAX_SOCKETS, 2 * LISTENERS_MAX)
        context = self._context
        at = self._feeds[worker.id] = _Feed(sources, [_Rank(LoadListener(one, context)) for one in sources])
        for number, rank in enumerate(at.ranks):
            rank.task = asyncio.create_task(self._listen(worker, at, number))

    def forget(self, worker: WorkerId) -> None:
        """It is no more of the fleet."""
        self._beyond.discard(worker)
        self._stop(worker)

    async def close(self) -> None:
        for worker in list(self._feeds):
            self._stop(worker)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    def _stop(self, worker: WorkerId) -> None:
        if (at := self._feeds.pop(worker, None)) is None:
            return
        for rank in at.ranks:
            assert rank.task is not None
            rank.task.cancel()
            self._ending.add(rank.task)
            rank.task.add_done_callback(self._ending.discard)

    def _has_room(self, worker: Worker, count: int) -> bool:
        if sum(len(feed.ranks) for feed in self._feeds.values()) + count <= LISTENERS_MAX:
            self._beyond.discard(worker.id)
            return True
        if worker.id not in self._beyond:
            self._beyond.add(worker.id)
            log.warning(
                "worker %s is asked how busy it is: %d load feeds are heard", worker.id, LISTENERS_MAX
            )
        return False

    async def _listen(self, worker: Worker, feed: _Feed, number: int) -> None:
        listener = feed.ranks[number].listener
        while True:
            try:
                async with aclosing(listener.readings()) as readings:
                    async for reading in readings:
                        self._heard(worker, feed, number, reading)
            except OSError as err:
                # This feed's loss: the worker is asked instead.
                log.warning("the load feed of worker %s cannot be heard: %s", worker.id, err)
            await asyncio.sleep(AGAIN_SECONDS)

    def _heard(self, worker: Worker, feed: _Feed, number: int, reading: LoadStat) -> None:
        rank, now = feed.ranks[number], self.clock()
        rank.load, rank.heard_at = reading.load, now
        self.ranks.heard(worker.id, number, reading.load, worker.ranks)
        if all(one.heard_at is not None and now - one.heard_at < SILENT_SECONDS for one in feed.ranks):
            worker.load.heard(sum((one.load for one in feed.ranks), NO_LOAD))
        if rank.rate.read(reading.prefilled_tokens, reading.prefill_us):
            rates = [one.rate.ms_per_token for one in feed.ranks if one.rate.ms_per_token is not None]
            self.told_speed(worker, min(rates))
