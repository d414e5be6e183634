"""One gateway among all: joins them in Redis, lives on, and says when it has to do without.

      alone ----another gateway joins----> shared <----Redis is back: join---- away
        ^                                    |  |                                ^
        +------------the others are gone-----+  +----Redis does not answer-------+

    shared   every place and every turn is decided in Redis; the load that other gateways put on workers is known
    alone    nobody else decides: places and turns are this process's own, no request waits for Redis
    away     so too, with this gateway's part of each worker's window, from the tags and loads last seen

A Redis that is soon away again is joined later each time: one that is now a little faster than it may be and now a
little slower would else send everybody who waits to and fro.

What it holds it tells when it joins, all of it. Every answer of Redis is heard here: each says how many gateways
live, what they have put on workers, and when somebody has to look whether a turn was claimed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gateway.concurrency.bounded_wait import bounded_wait
from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.queue_members import QueueMember
from gateway.queueing.shared.store import NotJoined, QueueReply, QueueStore
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)

LEASE_MS = 3000
BEAT_SECONDS = 1.0
AGAIN_SECONDS = 0.25
AGAIN_SECONDS_MAX = 2.0
STEADY_SECONDS = 10.0
"""Who was up for so long is joined again at once."""

LATE_MAX = 3
LATE_SECONDS = 0.2
"""So many decisions in a row came too late, over so long: Redis is away. One stall makes all late that it meets."""

FORGOTTEN = "Redis has forgotten this gateway"


class Membership:
    """`gateways`: how many live. `up`: Redis knows this one. `shared`: turns are given by all together. `told`: ids
    of tickets that Redis may know.

    `places`: what this gateway holds. `moved`: called when turns are given elsewhere from now on. `enabled`: the
    queue policy is one that Redis keeps. `timeout_seconds`: for a decision.
    """

    def __init__(
        self,
        store: QueueStore,
        places: LocalPlacements,
        *,
        moved: Callable[[], None],
        enabled: bool,
        timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.gateways = 1
        self.up = False
        self.shared = False
        self.told: set[str] = set()
        self._store = store
        self._member: QueueMember
        self._places = places
        self._moved = moved
        self._enabled = enabled
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._tasks: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._joins = 0
        self._late = 0
        self._late_since = 0.0
        self._joined_at = self._join_at = float("-inf")
        self._again_seconds = AGAIN_SECONDS
        self._wake = asyncio.Event()

    def attach(self, member: QueueMember) -> None:
        """Take part for this gateway. Call it once, before any loop runs."""
        self._member = member

    def share_of(self, window_tokens: int) -> int:
        """The part of a worker's window that is this gateway's to give, as long as it has to decide alone."""
        return window_tokens if self.shared else max(1, window_tokens // self.gateways)

    def reconfigure(self, *, enabled: bool) -> None:
        """By this, and the store's new rules, from now on."""
        self._enabled = enabled
        self._wake.set()
        if self.up:
            self.send(self._store.expire(self.queues()))  # A wider window may have room for some.

    def queues(self, first: str | None = None) -> list[str]:
        """All; or those whose workers also serve this one, which is the first."""
        queues = list(self._member.queues(first))
        return queues if first is None else [first, *(queue for queue in queues if queue != first)]

    # Loops.

    async def run(self) -> None:
        """Joins, lives on, looks who else does."""
        while True:
            self._wake.clear()
            try:
                if self.up:
                    await self._beat()
                elif self._clock() >= self._join_at:
                    await self._join()
            except NotJoined:
                self.away(FORGOTTEN)
            except RedisDown as err:
                self.away(str(err))
            try:
                async with asyncio.timeout(BEAT_SECONDS if self.up else AGAIN_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def gateways_changed(self) -> None:
        """From the stream."""
        self._wake.set()

    async def close(self) -> None:
        """Leaves: what it holds is free at once."""
        up, self.up, self.shared = self.up, False, False
        for task in list(self._tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if up:
            try:
                async with asyncio.timeout(1.0):
                    await self._store.beat(self.queues(), 0)
            except (RedisDown, NotJoined, TimeoutError):
                pass  # Its lease ends by itself.

    # What is said to Redis, and what it says.

    async def decided(self, call: Coroutine[Any, Any, QueueReply]) -> QueueReply | None:
        """A decision; None if there is none in time, or none at all."""
        asked = asyncio.ensure_future(call)
        asked.add_done_callback(_fetched)
        try:
            told = await bounded_wait(asked, self._timeout_seconds)
        except TimeoutError:
            self._late += 1
            if self._late == 1:
                self._late_since = self._clock()
            if self._late >= LATE_MAX and self._clock() - self._late_since >= LATE_SECONDS:
                self.away("no decision in time")
                if self._clock() < self._join_at:
                    self.send(self._nobody_waits())
        except RedisDown as err:
            self.away(str(err))
        except NotJoined:
            self.away(FORGOTTEN)
        else:
            self._late = 0
            return told
        return None

    async def answered(self, call: Awaitable[QueueReply]) -> QueueReply | None:
        """An answer, however long that takes; None if there is none."""
        try:
            return await call
        except RedisDown as err:
            self.away(str(err))
        except NotJoined:
            self.away(FORGOTTEN)
        return None

    def send(self, call: Awaitable[QueueReply]) -> None:
        """Nobody waits for it."""

        async def sent() -> None:
            if (told := await self.answered(call)) is not None:
                self.heard(told)

        self.start(sent())

    def start(self, work: Awaitable[None]) -> None:
        """Until this gateway leaves."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def heard(self, told: QueueReply) -> None:
        """What every answer says."""
        if not self.up:
            return
        if told.loads and self.shared:
            self._member.update_others(self._places.others(told.loads), all_workers=False)
        if told.gateways != self.gateways:
            self._wake.set()
        if told.due_seconds is not None:
            self._look_at(self._clock() + told.due_seconds)

    def away(self, why: str) -> None:
        """Redis cannot be relied on before it is joined again."""
        if not self.up:
            return
        self.up = False
        self.told.clear()
        now = self._clock()
        if now - self._joined_at > STEADY_SECONDS:
            self._again_seconds = AGAIN_SECONDS
        else:
            self._join_at = now + self._again_seconds
            self._again_seconds = min(2 * self._again_seconds, AGAIN_SECONDS_MAX)
        self._wake.set()
        log.warning("the shared queue is away: turns are given by each gateway alone (%s)", why)
        if self.shared:
            self._alone()

    # Further down.

    def _look_at(self, moment: float) -> None:
        """Somebody has to see whether a turn was claimed; the first moment counts."""
        if self._timer is not None:
            if self._due_at <= moment:
                return
            self._timer.cancel()
        self._due_at = moment
        delay = max(0.0, moment - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.up:
            self.send(self._store.expire(self.queues()))

    async def _nobody_waits(self) -> QueueReply:
        """A Redis that is late still hears. Nobody is to be given a turn who asks elsewhere until it is joined."""
        places = list(self._places)
        name = f"{self._store.gateway}.places"
        return (await self._store.join(self.queues(), LEASE_MS, name, places))[-1]

    async def _join(self) -> None:
        joined = self._store.join(self.queues(), LEASE_MS, f"{self._store.gateway}.first")
        joined.add_done_callback(_fetched)
        try:
            # A Redis that answers too late is away still.
            told = (await bounded_wait(joined, self._timeout_seconds))[-1]
        except TimeoutError:
            return
        self.up, self._late, self._joined_at = True, 0, self._clock()
        await self._counted(told.gateways)

    async def _beat(self) -> None:
        told = await self._store.beat(self.queues(), LEASE_MS)
        if self.shared:
            self._member.update_others(self._places.others(told.loads), all_workers=True)
        self.heard(told)
        gateways = told.gateways
        for dead in told.dead:
            gateways = (await self._store.reap(self.queues(), dead)).gateways
            log.warning("gateway %s is gone; what it held is free", dead)
        await self._counted(gateways)

    async def _counted(self, gateways: int) -> None:
        """So many gateways live now."""
        self.gateways = gateways
        shared = self.up and self._enabled and gateways > 1
        if shared == self.shared:
            return
        log.info("turns are given %s", f"by {gateways} gateways together" if shared else "here alone")
        if not shared:
            self._alone()
            return
        # All of it is on its way before anybody asks Redis for a turn: there, it comes first.
        joined = self._store.join(
            self.queues(),
            LEASE_MS,
            f"{self._store.gateway}.{self._joins}",
            list(self._places),
            self._member.debts(),
        )
        self.shared = True
        self.told = self._places.ids()
        self._moved()
        await joined
        self._joins += 1

    def _alone(self) -> None:
        self.shared = False
        self._member.update_others({}, all_workers=True)
        self._moved()


def _fetched(asked: "asyncio.Future[Any]") -> None:
    """Whoever has left does not fetch it; that is no news."""
    if not asked.cancelled():
        asked.exception()
