"""One gateway's part of the shared queue: asks for turns, holds places, and says when it has to do without.

    alone ----another gateway joins----> shared <----Redis is back: join---- away
      ^                                    |  |                                ^
      +------------the others are gone-----+  +----Redis does not answer-------+

    shared   every place and every turn is decided in Redis; the load that other gateways put on workers is known
    alone    nobody else decides: places and turns are this process's own, no request waits for Redis
    away     so too, with this gateway's part of each worker's window, from the tags and loads last seen

Whenever the state changes, those who wait ask anew. What a gateway holds it tells when it joins, all of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.queue.household import Household
from gateway.queue.keys import BATCH
from gateway.queue.places import Placed, Places
from gateway.queue.store import NotJoined, QueueStore, SharedRoute, SharedTicket, Told
from gateway.within import within
from policies.queueing.protocol import TenantOrder, Ticket
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)

LEASE_MS = 3000
BEAT_SECONDS = 1.0
AGAIN_SECONDS = 0.25
LATE_MAX = 3
"""Decisions in a row that came too late: Redis is away then."""

FORGOTTEN = "Redis has forgotten this gateway"


class AskAnew(Exception):
    """The queue is not kept where it was asked any more."""


class NoRoute(Exception):
    """No worker is left that could ever give this request a place."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """`routes`: as they are now; it raises what ends the wait. `claimed`: a turn is being taken for it."""

    shared: SharedTicket
    ticket: Ticket
    routes: Callable[[], Sequence[SharedRoute]]
    turn: "asyncio.Future[Placed]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    claimed: bool = False


class SharedQueue:
    """`enabled`: the queue policy is one that Redis keeps. `timeout_seconds`: for a decision."""

    def __init__(
        self,
        store: QueueStore,
        household: Household,
        order: TenantOrder,
        *,
        enabled: bool,
        timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.gateways = 1
        self.shared = False
        self._store = store
        self._household = household
        self._order = order
        self._enabled = enabled
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._up = False
        self._waiting: dict[str, _Waiter] = {}
        self._places = Places()
        self._told: set[str] = set()  # ids that Redis may know
        self._tasks: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._number = 0
        self._joins = 0
        self._late = 0
        self._wake = asyncio.Event()

    @property
    def gateway(self) -> str:
        """Its name among all gateways."""
        return self._store.gateway

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def share_of(self, window_tokens: int) -> int:
        """The part of a worker's window that is this gateway's to give, as long as it has to decide alone."""
        return window_tokens if self.shared else max(1, window_tokens // self.gateways)

    def restate(self, order: TenantOrder, window_tokens: int, hold: float | None, *, enabled: bool) -> None:
        """By these from now on. Where others keep the order, or nobody does any more, who waits asks anew."""
        self._order, self._enabled = order, enabled
        self._store.window_tokens, self._store.hold = window_tokens, hold
        self._wake.set()
        if self._up:
            self._send(self._store.expire(self._queues()))  # A wider window may have room for some.

    # Turns and places.

    def ticket(
        self, ticket: Ticket, queue: str, kv_tokens: int, *, cost: float | None = None
    ) -> SharedTicket:
        """Its name among all gateways' tickets. `cost`: by default the ticket's."""
        self._number += 1
        return SharedTicket(
            id=f"{self._store.gateway}:{self._number}",
            queue=queue,
            tenant=ticket.tenant,
            weight=ticket.weight,
            cost=ticket.cost if cost is None else cost,
            kv_tokens=kv_tokens,
        )

    async def turn(
        self,
        shared: SharedTicket,
        ticket: Ticket,
        routes: Callable[[], Sequence[SharedRoute]],
        waits: Callable[[], None],
    ) -> Placed:
        """A place in its turn, however long that takes; it is held. `waits`: called if it is not had at once.

        Raises AskAnew if the queue is not kept in Redis (any more), NoRoute when there are no routes any more.
        """
        if not self.shared:
            raise AskAnew
        waiter = _Waiter(shared, ticket, routes)
        self._waiting[shared.id] = waiter
        placed = None
        try:
            await self._ask(waiter)
            if not waiter.turn.done():
                waits()
            placed = await waiter.turn
            return placed
        finally:
            self._waiting.pop(shared.id, None)
            if placed is None:
                waiter.turn.cancel()
                self.leave(shared, -shared.cost)

    async def spare(self, shared: SharedTicket, routes: Sequence[SharedRoute]) -> Placed | None:
        """A place that nobody waits for, at any gateway; it is held. None: there is none, or nobody can say so."""
        if not self.shared or not routes:
            return None
        self._told.add(shared.id)
        placed = None
        try:
            told = await self._in_time(self._store.spare(shared, self._queues(shared.queue), routes))
            if told is not None and told.outcome == 1 and told.worker is not None:
                placed = Placed(told.worker, told.uncached_tokens)
                self._places.put(shared, placed)
            if told is not None:
                self._heard(told)
            return placed
        finally:
            if placed is None:
                # It may have been given all the same, and was not heard of.
                self.leave(shared, 0.0)

    def hold(self, shared: SharedTicket, placed: Placed) -> None:
        """It has a place that was given here."""
        place = self._places.put(shared, placed)
        if self.shared:
            # Who tries another worker has had its turn: the load is told, and nobody is asked.
            self._told.add(shared.id)
            queues, name = self._queues(shared.queue), f"{shared.id}+"
            self._send(_last(self._store.join(queues, LEASE_MS, name, [place], fresh=False)))

    def first_token(self, shared: SharedTicket) -> None:
        """Its prefill is done."""
        if self._places.first_token(shared) and self._up and shared.id in self._told:
            self._send(self._store.first_token(self._queues(shared.queue), shared.id))

    def leave(self, shared: SharedTicket, cost_change: float) -> bool:
        """It has ended, or does not wait any more; what it used differs from its cost by so much.

        False if nobody but this gateway knows of it, who then settles it.
        """
        self._places.drop(shared)
        if shared.id not in self._told:
            return False
        self._told.discard(shared.id)
        if self._up:
            self._send(self._store.end(self._queues(shared.queue), shared.id, cost_change))
        return self._up

    def dismiss(self, error: Exception) -> None:
        """Sends everybody away who waits."""
        for waiter in self._waiting.values():
            _fail(waiter, error)

    def ask_again(self) -> None:
        """Routes have changed, or turns were perhaps not heard of."""
        for waiter in list(self._waiting.values()):
            if not waiter.turn.done():
                self._start(self._ask(waiter))

    # Loops.

    async def run(self) -> None:
        """Joins, lives on, looks who else does."""
        while True:
            self._wake.clear()
            try:
                if self._up:
                    await self._beat()
                else:
                    await self._join()
            except NotJoined:
                self._away(FORGOTTEN)
            except RedisDown as err:
                self._away(str(err))
            try:
                async with asyncio.timeout(BEAT_SECONDS if self._up else AGAIN_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Leaves: what it holds is free at once."""
        up, self._up, self.shared = self._up, False, False
        for task in list(self._tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if up:
            try:
                async with asyncio.timeout(1.0):
                    await self._store.beat(self._queues(), 0)
            except (RedisDown, NotJoined, TimeoutError):
                pass  # Its lease ends by itself.

    def turn_told(self, id: str) -> None:
        """From the stream."""
        waiter = self._waiting.get(id)
        if waiter is not None and self.shared:
            self._start(self._claim(waiter))

    def gateways_changed(self) -> None:
        """From the stream."""
        self._wake.set()

    # Further down.

    def _queues(self, first: str | None = None) -> list[str]:
        queues = list(self._household.queues(first))
        return queues if first is None else [first, *(queue for queue in queues if queue != first)]

    async def _ask(self, waiter: _Waiter) -> None:
        """Its place, a ticket, or other routes for the ticket that it has."""
        shared = waiter.shared
        routes = waiter.routes()
        if not routes:
            _fail(waiter, NoRoute())
            return
        self._told.add(shared.id)
        before = self._queues(shared.queue)[1:] if shared.queue.endswith(BATCH) else ()
        told = await self._in_time(self._store.admit(shared, routes, before))
        if told is None or told.outcome < 0:
            _fail(waiter, AskAnew())
            return
        self._household.tags(shared.queue, shared.tenant, told.virtual_time, told.finish)
        if told.outcome == 1:
            self._seat(shared.id, told)
        self._heard(told)

    async def _in_time(self, call: Coroutine[Any, Any, Told]) -> Told | None:
        """A decision; None if there is none in time, or none at all."""
        asked = asyncio.ensure_future(call)
        asked.add_done_callback(_fetched)
        try:
            told = await within(asked, self._timeout_seconds)
        except TimeoutError:
            self._late += 1
            if self._late >= LATE_MAX:
                self._away("no decision in time")
        except RedisDown as err:
            self._away(str(err))
        except NotJoined:
            self._away(FORGOTTEN)
        else:
            self._late = 0
            return told
        return None

    def _seat(self, id: str, told: Told) -> None:
        """Redis says that it has a place. Who has left meanwhile has said so too, after this was decided."""
        waiter = self._waiting.get(id)
        if waiter is not None and not waiter.turn.done() and told.worker is not None:
            placed = Placed(told.worker, told.uncached_tokens)
            self._places.put(waiter.shared, placed)
            waiter.turn.set_result(placed)

    async def _claim(self, waiter: _Waiter) -> None:
        """Spends a turn on whichever of the tenant's tickets goes first now."""
        goes = self._first_of(waiter)
        routes = goes.routes()
        goes.claimed = True
        other = goes.shared.id if goes is not waiter else None
        try:
            told = await self._store.claim(self._queues(waiter.shared.queue), waiter.shared.id, other, routes)
        except RedisDown as err:
            self._away(str(err))
            return
        except NotJoined:
            self._away(FORGOTTEN)
            return
        finally:
            goes.claimed = False
        if told.outcome == 1:
            self._seat(told.id, told)
        self._heard(told)
        # Who gave its turn away waits there for the worker of that turn alone. Of a claim that came too late, or
        # repeats one that was not heard of, it is known there how both stand.
        for each in dict.fromkeys((waiter, goes)) if told.outcome != 1 else (waiter,):
            if not each.turn.done():
                await self._ask(each)

    def _first_of(self, waiter: _Waiter) -> _Waiter:
        shared = waiter.shared
        own = {
            other.ticket: other
            for other in self._waiting.values()
            if (other.shared.tenant, other.shared.queue) == (shared.tenant, shared.queue)
            and not other.turn.done()
            and (other is waiter or not other.claimed)
        }
        return own[self._order.first(list(own), self._clock())] if own else waiter

    def _send(self, call: Awaitable[Told]) -> None:
        """Nobody waits for it."""

        async def sent() -> None:
            try:
                self._heard(await call)
            except RedisDown as err:
                self._away(str(err))
            except NotJoined:
                self._away(FORGOTTEN)

        self._start(sent())

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _heard(self, told: Told) -> None:
        if not self._up:
            return
        if told.loads and self.shared:
            self._household.others(self._places.others(told.loads), all_workers=False)
        if told.gateways != self.gateways:
            self._wake.set()
        if told.due_seconds is not None:
            self._look_at(self._clock() + told.due_seconds)

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
        if self._up:
            self._send(self._store.expire(self._queues()))

    async def _join(self) -> None:
        joined = self._store.join(self._queues(), LEASE_MS, f"{self._store.gateway}.first")
        joined.add_done_callback(_fetched)
        try:
            # A Redis that answers too late is away still.
            told = (await within(joined, self._timeout_seconds))[-1]
        except TimeoutError:
            return
        self._up, self._late = True, 0
        await self._counted(told.gateways)

    async def _beat(self) -> None:
        told = await self._store.beat(self._queues(), LEASE_MS)
        if self.shared:
            self._household.others(self._places.others(told.loads), all_workers=True)
        self._heard(told)
        gateways = told.gateways
        for dead in told.dead:
            gateways = (await self._store.reap(self._queues(), dead)).gateways
            log.warning("gateway %s is gone; what it held is free", dead)
        await self._counted(gateways)

    async def _counted(self, gateways: int) -> None:
        """So many gateways live now."""
        self.gateways = gateways
        shared = self._up and self._enabled and gateways > 1
        if shared == self.shared:
            return
        log.info("turns are given %s", f"by {gateways} gateways together" if shared else "here alone")
        if not shared:
            self.shared = False
            self._household.others({}, all_workers=True)
            self._move()
            return
        # All of it is on its way before anybody asks Redis for a turn: there, it comes first.
        joined = self._store.join(
            self._queues(),
            LEASE_MS,
            f"{self._store.gateway}.{self._joins}",
            list(self._places),
            self._household.debts(),
        )
        self.shared = True
        self._told = self._places.ids()
        self._move()
        await joined
        self._joins += 1

    def _away(self, why: str) -> None:
        if not self._up:
            return
        self._up = False
        self._told.clear()
        self._wake.set()
        log.warning("the shared queue is away: turns are given by each gateway alone (%s)", why)
        if self.shared:
            self.shared = False
            self._household.others({}, all_workers=True)
            self._move()

    def _move(self) -> None:
        for waiter in self._waiting.values():
            _fail(waiter, AskAnew())
        self._household.moved()


def _fail(waiter: _Waiter, error: Exception) -> None:
    if not waiter.turn.done():
        waiter.turn.set_exception(error)
        waiter.turn.exception()  # Whoever has left does not fetch it.


async def _last(parts: Awaitable[list[Told]]) -> Told:
    return (await parts)[-1]


def _fetched(asked: "asyncio.Future[Any]") -> None:
    """Whoever has left does not fetch it; that is no news."""
    if not asked.cancelled():
        asked.exception()
