"""Turns that all gateways give together, as one of them asks for them. Whether they do, membership.py says.

    asks --room, and nobody waits-----------------------------------> place --leave--> gone
      +--> waits --the stream says: its turn--> claims it ------------^
             ^  its own, or for who of its tenant goes first now         |
             +-- asks again: it gave its turn away, or came too late; its routes changed; news was missed

Redis says which tenant's turn it is; which of the tenant's requests takes it, the gateway that is told. Without a
turn there are places that nobody waits for (`spare`), and those that were given here, which all are told (`hold`).

Whoever leaves says so, after all that was asked for it: what is decided for it meanwhile is free again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.queueing.shared.keys import BATCH
from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.membership import LEASE_MS, Membership
from gateway.queueing.shared.queue_members import QueueMember
from gateway.queueing.shared.store import QueueReply, QueueStore, SharedPlacement, SharedRoute, SharedTicket
from policies.queueing.protocol import TenantOrder, Ticket
from radix_cache.match import WorkerId


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
    turn: "asyncio.Future[SharedPlacement]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    claimed: bool = False


class SharedQueue:
    """`enabled`: the queue policy is one that Redis keeps. `timeout_seconds`: for a decision."""

    def __init__(
        self,
        store: QueueStore,
        order: TenantOrder,
        *,
        enabled: bool,
        timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._member: QueueMember
        self._order = order
        self._clock = clock
        self._places = LocalPlacements()
        self._waiting: dict[str, _Waiter] = {}
        self._number = 0
        self.membership = Membership(
            store,
            self._places,
            moved=self._move,
            enabled=enabled,
            timeout_seconds=timeout_seconds,
            clock=clock,
        )

    def attach(self, member: QueueMember) -> None:
        """Take part for this gateway. Call it once, before any loop runs."""
        self._member = member
        self.membership.attach(member)

    @property
    def gateway(self) -> str:
        """Its name among all gateways."""
        return self._store.gateway

    @property
    def gateways(self) -> int:
        """How many live."""
        return self.membership.gateways

    @property
    def shared(self) -> bool:
        """Do they give turns together?"""
        return self.membership.shared

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def share_of(self, window_tokens: int) -> int:
        """See Membership."""
        return self.membership.share_of(window_tokens)

    def reconfigure(
        self, order: TenantOrder, window_tokens: int, hold: float | None, *, enabled: bool
    ) -> None:
        """By these from now on. Where others keep the order, or nobody does any more, who waits asks anew."""
        self._order = order
        self._store.window_tokens, self._store.hold = window_tokens, hold
        self.membership.reconfigure(enabled=enabled)

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

    def second_ticket(self, first: SharedTicket) -> SharedTicket:
        """Return another ticket of the same request, at no cost."""
        self._number += 1
        return msgspec.structs.replace(first, id=f"{self._store.gateway}:{self._number}", cost=0.0)

    async def turn(
        self,
        shared: SharedTicket,
        ticket: Ticket,
        routes: Callable[[], Sequence[SharedRoute]],
        waits: Callable[[], None],
    ) -> SharedPlacement:
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

    async def spare(self, shared: SharedTicket, routes: Sequence[SharedRoute]) -> SharedPlacement | None:
        """A place that nobody waits for, at any gateway; it is held. None: there is none, or nobody can say so."""
        if not self.shared or not routes:
            return None
        self.membership.told.add(shared.id)
        placed = None
        try:
            told = await self.membership.decided(
                self._store.spare(shared, self.membership.queues(shared.queue), routes)
            )
            if told is not None and told.outcome == 1 and told.worker is not None:
                placed = self._places.put(shared, told.worker, told.uncached_tokens)
            if told is not None:
                self.membership.heard(told)
            return placed
        finally:
            if placed is None:
                # It may have been given all the same, and was not heard of.
                self.leave(shared, 0.0)

    def hold(self, shared: SharedTicket, worker: WorkerId, uncached_tokens: int) -> None:
        """It has a place that was given here."""
        place = self._places.put(shared, worker, uncached_tokens)
        if self.shared:
            # Who tries another worker has had its turn: the load is told, and nobody is asked.
            self.membership.told.add(shared.id)
            queues, name = self.membership.queues(shared.queue), f"{shared.id}+"
            self.membership.send(_last(self._store.join(queues, LEASE_MS, name, [place], fresh=False)))

    def first_token(self, shared: SharedTicket) -> None:
        """Its prefill is done."""
        if self._places.first_token(shared) and self.membership.up and shared.id in self.membership.told:
            self.membership.send(self._store.first_token(self.membership.queues(shared.queue), shared.id))

    def leave(self, shared: SharedTicket, cost_change: float) -> bool:
        """It has ended, or does not wait any more; what it used differs from its cost by so much.

        False if nobody but this gateway knows of it, who then settles it.
        """
        self._places.drop(shared)
        if shared.id not in self.membership.told:
            return False
        self.membership.told.discard(shared.id)
        if self.membership.up:
            self.membership.send(
                self._store.end(self.membership.queues(shared.queue), shared.id, cost_change)
            )
        return self.membership.up

    def dismiss(self, error: Exception) -> None:
        """Sends everybody away who waits."""
        for waiter in self._waiting.values():
            _fail(waiter, error)

    def ask_again(self) -> None:
        """Routes have changed, or turns were perhaps not heard of."""
        for waiter in list(self._waiting.values()):
            if not waiter.turn.done():
                self.membership.start(self._ask(waiter))

    def turn_told(self, id: str) -> None:
        """From the stream."""
        waiter = self._waiting.get(id)
        if waiter is not None and self.shared:
            self.membership.start(self._claim(waiter))

    # Further down.

    async def _ask(self, waiter: _Waiter) -> None:
        """Its place, a ticket, or other routes for the ticket that it has."""
        routes = _routes(waiter) if not waiter.turn.done() else None  # It may have left since this was begun.
        if routes is None:
            return
        if not routes:
            _fail(waiter, NoRoute())
            return
        shared = waiter.shared
        self.membership.told.add(shared.id)
        before = self.membership.queues(shared.queue)[1:] if shared.queue.endswith(BATCH) else ()
        told = await self.membership.decided(self._store.admit(shared, routes, before))
        if told is None or told.outcome < 0:
            _fail(waiter, AskAnew())
            return
        self._member.adopt_tag(shared.queue, shared.tenant, told.virtual_time, told.finish)
        if told.outcome == 1:
            self._seat(shared.id, told)
        self.membership.heard(told)

    def _seat(self, id: str, told: QueueReply) -> None:
        """Redis says that it has a place. Who has left meanwhile has said so too, after this was decided."""
        waiter = self._waiting.get(id)
        if waiter is not None and not waiter.turn.done() and told.worker is not None:
            waiter.turn.set_result(self._places.put(waiter.shared, told.worker, told.uncached_tokens))

    async def _claim(self, waiter: _Waiter) -> None:
        """Spends a turn on whichever of the tenant's tickets goes first now."""
        goes = self._first_of(waiter)
        routes = _routes(goes)
        if routes is None:
            # It leaves, and with it its own turn; another's is still to be spent.
            if goes is not waiter:
                await self._claim(waiter)
            return
        queues = self.membership.queues(waiter.shared.queue)
        other = goes.shared.id if goes is not waiter else None
        goes.claimed = True
        try:
            told = await self.membership.answered(self._store.claim(queues, waiter.shared.id, other, routes))
        finally:
            goes.claimed = False
        if told is None:
            return
        if told.outcome == 1:
            self._seat(told.id, told)
        self.membership.heard(told)
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

    def _move(self) -> None:
        for waiter in self._waiting.values():
            _fail(waiter, AskAnew())
        self._member.queue_moved()


def _routes(waiter: _Waiter) -> Sequence[SharedRoute] | None:
    """As they are now; None where that has ended its wait."""
    try:
        return waiter.routes()
    except Exception as err:  # noqa: BLE001 - whatever its policy raises is a matter of this request alone
        _fail(waiter, err)
        return None


def _fail(waiter: _Waiter, error: Exception) -> None:
    if not waiter.turn.done():
        waiter.turn.set_exception(error)
        waiter.turn.exception()  # Whoever has left does not fetch it.


async def _last(parts: Awaitable[list[QueueReply]]) -> QueueReply:
    return (await parts)[-1]
