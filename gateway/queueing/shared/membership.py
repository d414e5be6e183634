"""The membership of one gateway in the shared queue: it joins in Redis, and gives turns alone while Redis is away.

      alone ----another gateway joins----> shared <----Redis is back: join---- away
        ^                                    |  |                                ^
        +---------the others are gone--------+  +----Redis does not answer-------+

    shared   turns are given in Redis, and all places but those of own_places.py; the load of other gateways on
             workers is known
    alone    no other gateway decides: places and turns are given by this process, no request waits for Redis; not
             in a cell, whose gateways get the loads of other cells from Redis
    away     the same, with this gateway's part of each worker's window, from the tags and loads last seen

If Redis goes away again soon after a join, each next join waits longer; otherwise a Redis that is sometimes just
too late would move all waiting requests back and forth.

`up` is False while the gateway is away, and `shared` is True while it is shared; alone it is up and not shared.

Each beat renews the gateway's lease in Redis, and returns the gateways whose leases are over; a call of `reap` for
each of these frees what it held (lua/gateways.lua).

A gateway reports all that it holds when it joins. Every reply of Redis is processed here: each says how many
gateways are alive, what they have put on workers, and when it has to be checked whether a turn was claimed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gateway.concurrency.bounded_wait import bounded_wait
from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.queue_members import QueueMember
from gateway.queueing.shared.queue_messages import QueueReply
from gateway.queueing.shared.queue_store import NotJoined, QueueStore
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

LEASE_MS = 3000
BEAT_SECONDS = 1.0
AGAIN_SECONDS = 0.25
AGAIN_SECONDS_MAX = 2.0
STEADY_SECONDS = 10.0
"""If Redis was joined for longer than this before it went away, it is joined again at once."""

LATE_MAX = 3
LATE_SECONDS = 0.2
"""Redis counts as away after LATE_MAX late decisions in a row that span LATE_SECONDS; one stall alone makes every
decision late that is under way."""

UNLISTED = "Redis no longer lists this gateway"


class Membership:
    """The state of one gateway among all that share the queue."""

    def __init__(
        self,
        store: QueueStore,
        places: LocalPlacements,
        *,
        on_moved: Callable[[], None],
        enabled: bool,
        timeout_seconds: float,
        clock: Callable[[], float],
        always_joined: bool = True,
        in_cell: bool = False,
    ) -> None:
        """Create the state of a gateway that has not joined.

        Args:
            store: Calls the queue's functions.
            places: What this gateway holds.
            on_moved: Called when the queue has moved, to Redis or to this process.
            enabled: Whether Redis can keep the queue policy.
            timeout_seconds: How long a request waits for a decision.
            clock: Returns seconds and never goes backwards.
            always_joined: Whether the gateway joins without queues and placements, too.
            in_cell: Whether other cells use the same workers: Redis then gives the turns of a single gateway, too.
        """
        self.gateways = 1
        """How many gateways are alive."""
        self.up = False
        """Whether this gateway has joined in Redis."""
        self.joining = asyncio.Event()
        """Set while this gateway has joined or tries to."""
        self.shared = False
        """Whether all gateways give turns together."""
        self.known_ids: set[str] = set()
        """Ids of tickets that Redis may have."""
        self._store = store
        self._member: QueueMember
        self._places = places
        self._on_moved = on_moved
        self._enabled = enabled
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._tasks: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._join_sent = False
        """Whether this gateway may be a member in Redis: Redis has carried out a join by now, or will."""
        self._joins = 0
        self._late = 0
        self._late_since = 0.0
        self._joined_at = self._join_at = float("-inf")
        self._again_seconds = AGAIN_SECONDS
        self._wake = asyncio.Event()
        self._always_joined = always_joined
        self._in_cell = in_cell

    def attach(self, member: QueueMember) -> None:
        """Take part for this gateway. Call it once, before any loop runs."""
        self._member = member

    def share_of(self, window_tokens: int) -> int:
        """Return the part of a worker's window that this gateway gives while it has to decide alone."""
        return window_tokens if self.shared else max(1, window_tokens // self.gateways)

    def reconfigure(self, *, enabled: bool) -> None:
        """Follow this setting, and the store's new rules, from now on."""
        self._enabled = enabled
        self._wake.set()
        if self.up:
            self.send(self._store.expire(self.queues()))  # A wider window may have room for some requests.

    def queues(self, first: str | None = None) -> list[str]:
        """Return all queues, or the queue `first` and those that share workers with it."""
        queues = list(self._member.queues(first))
        return queues if first is None else [first, *(queue for queue in queues if queue != first)]

    # Loops.

    async def run(self) -> None:
        """Join the other gateways, then renew the lease and read which gateways are alive, until cancelled."""
        while True:
            self._wake.clear()
            try:
                if not (self._always_joined or self.queues() or self._places.ids()):
                    await self._leave()
                    await self._wake.wait()
                    continue
                self.joining.set()
                if self.up:
                    await self._beat()
                elif self._clock() >= self._join_at:
                    await self._join()
            except NotJoined:
                self.go_away(UNLISTED)
            except RedisDown as err:
                self.go_away(str(err))
            try:
                async with asyncio.timeout(BEAT_SECONDS if self.up else AGAIN_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def queues_changed(self) -> None:
        """Join or leave at once, where this gateway has its first queue here or none any more."""
        if not self._always_joined and self.joining.is_set() != bool(self.queues()):
            self._wake.set()

    def gateways_changed(self) -> None:
        """Handle the message of the stream that gateways came or went."""
        self._wake.set()

    async def close(self) -> None:
        """Leave: what this gateway holds is free at once."""
        for task in list(self._tasks):
            task.cancel()
        self.shared = False
        await self._leave()

    async def _leave(self) -> None:
        self.joining.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        join_sent, self._join_sent, self.up = self._join_sent, False, False
        self._forget_placements()
        if self.shared:
            self._stop_sharing()
        if join_sent:
            try:
                async with asyncio.timeout(1.0):
                    await self._store.beat(self.queues(), 0)
            except (RedisDown, NotJoined, TimeoutError):
                pass  # The gateway's lease ends by itself.

    # Calls and replies.

    async def await_decision(self, call: Coroutine[Any, Any, QueueReply]) -> QueueReply | None:
        """Return the reply to a call; None if there is none in time, or none at all."""
        asked = asyncio.ensure_future(call)
        asked.add_done_callback(fetch_exception)
        try:
            reply = await bounded_wait(asked, self._timeout_seconds)
        except TimeoutError:
            self._late += 1
            if self._late == 1:
                self._late_since = self._clock()
            if self._late >= LATE_MAX and self._clock() - self._late_since >= LATE_SECONDS:
                self.go_away("no decision in time")
                if self._clock() < self._join_at:
                    self.send(self._drop_tickets())
        except RedisDown as err:
            self.go_away(str(err))
        except NotJoined:
            self.go_away(UNLISTED)
        else:
            self._late = 0
            return reply
        return None

    async def await_reply(self, call: Awaitable[Answer]) -> Answer | None:
        """Return the reply to a call, however long it takes; None if there is none."""
        try:
            return await call
        except RedisDown as err:
            self.go_away(str(err))
        except NotJoined:
            self.go_away(UNLISTED)
        return None

    def send(self, call: Awaitable[QueueReply]) -> None:
        """Make a call that no request waits for."""

        async def process() -> None:
            if (reply := await self.await_reply(call)) is not None:
                self.process(reply)

        self.start(process())

    def start(self, work: Awaitable[None]) -> None:
        """Run work in the background until this gateway leaves."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def process(self, reply: QueueReply) -> None:
        """Take over what every reply has: loads, the number of gateways, and when turns have to be claimed."""
        if not self.up:
            return
        if reply.loads and self.shared:
            self._member.update_others(self._places.others(reply.loads), all_workers=False)
        if reply.gateways != self.gateways:
            self._wake.set()
        if reply.due_seconds is not None:
            self._expire_at(self._clock() + reply.due_seconds)

    def go_away(self, why: str) -> None:
        """Give turns alone until Redis is joined again, because it cannot be relied on."""
        if not self.up:
            return
        self.up = False
        self._forget_placements()
        now = self._clock()
        if now - self._joined_at > STEADY_SECONDS:
            self._again_seconds = AGAIN_SECONDS
        else:
            self._join_at = now + self._again_seconds
            self._again_seconds = min(2 * self._again_seconds, AGAIN_SECONDS_MAX)
        self._wake.set()
        log.warning("the shared queue is away: turns are given by each gateway alone (%s)", why)
        if self.shared:
            self._stop_sharing()

    # Timers, joining and beats.

    def _expire_at(self, moment: float) -> None:
        """Check at this time, or sooner if that was asked before, whether turns were claimed."""
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

    async def _drop_tickets(self) -> QueueReply:
        """Report that this gateway holds its places only, and no tickets.

        A Redis that answers late still gets calls. Until it is joined again, it must give no turn to a request that
        now waits in the queue of this process.
        """
        places = list(self._places)
        name = f"{self._store.gateway}.places"
        return (await self._store.join(self.queues(), LEASE_MS, name, places))[-1]

    async def _join(self) -> None:
        self._join_sent = True
        joined = self._store.join(self.queues(), LEASE_MS, f"{self._store.gateway}.first")
        joined.add_done_callback(fetch_exception)
        try:
            # A Redis that answers too late is still away.
            reply = (await bounded_wait(joined, self._timeout_seconds))[-1]
        except TimeoutError:
            return
        self.up, self._late, self._joined_at = True, 0, self._clock()
        await self._set_gateways(reply.gateways)

    async def _beat(self) -> None:
        reply = await self._store.beat(self.queues(), LEASE_MS)
        if self.shared:
            self._member.update_others(self._places.others(reply.loads), all_workers=True)
        self.process(reply)
        gateways = reply.gateways
        for dead in reply.dead:
            gateways = (await self._store.reap(self.queues(), dead)).gateways
            log.warning("gateway %s is gone; what it held is free", dead)
        await self._set_gateways(gateways)

    async def _set_gateways(self, gateways: int) -> None:
        """Note how many gateways are alive, and begin or stop to give turns together."""
        self.gateways = gateways
        shared = self.up and self._enabled and (gateways > 1 or self._in_cell)
        if shared == self.shared:
            return
        log.info(
            "turns are given %s",
            f"by {gateways} gateways together; this one is {self._store.gateway}"
            if shared and gateways > 1
            else "by this gateway alone",
        )
        if not shared:
            self._stop_sharing()
            return
        # Sent before any request enters the queue in Redis: Redis then counts what this gateway placed by itself.
        self._places.forget_sums()
        joined = self._store.join(
            self.queues(),
            LEASE_MS,
            f"{self._store.gateway}.{self._joins}",
            list(self._places),
            self._member.debts(),
        )
        self.shared = True
        self.known_ids = self._places.ids()
        self._on_moved()
        await joined
        self._joins += 1

    def _forget_placements(self) -> None:
        """Note that Redis has none of this gateway's placements until they are reported again."""
        self.known_ids.clear()
        self._places.forget_sums()

    def _stop_sharing(self) -> None:
        self.shared = False
        self._member.forget_others()
        self._on_moved()


def fetch_exception(asked: "asyncio.Future[Any]") -> None:
    """Fetch the exception of a call, because a caller that has left never fetches it and asyncio would log that."""
    if not asked.cancelled():
        asked.exception()
