"""The shared queue: turns that all gateways give together, for the requests of one of them. See membership.py.

    asks --room, and no request waits-------------------------------> place --leave--> gone
      +--> waits --the stream says: its turn--> claims it ------------^
             ^  for itself, or for the request of its tenant that goes first now  |
             +-- asks again: it gave its turn away, or came too late; its routes changed; messages were missed

Redis says which tenant has its turn; the gateway that is told says which of the tenant's requests takes it. Without
a turn there are places that no request waits for (`spare`), and those that this gateway gave by itself and reports
(`note_placed`).

A request that leaves sends its end (verb `progress`) after its other calls, so that a turn or a place
that Redis has given it in the meantime is free again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.domain.errors import NoWorker
from gateway.fleet.loads import Loads
from gateway.queueing.shared.keys import BATCH, model_of
from gateway.queueing.shared.local_placements import LocalPlacements, OwnLoads
from gateway.queueing.shared.membership import LEASE_MS, Membership
from gateway.queueing.shared.queue_members import QueueMember
from gateway.queueing.shared.queue_store import (
    CellState,
    QueueReply,
    QueueStore,
    SharedPlacement,
    SharedRoute,
    SharedTicket,
)
from policies.cell_turns import TurnBounds
from policies.queueing.estimate_ages import EstimateAges
from policies.queueing.protocol import TenantOrder, Ticket
from radix_cache.match import WorkerId

FIRST_TOKEN_SECONDS = 0.002
"""How long the report of a first token waits for the end of the same request, which replaces it."""


class AskAnew(Exception):
    """The queue is kept elsewhere from now on: the request has to ask there."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request that asks for its turn."""

    shared: SharedTicket
    ticket: Ticket
    routes: Callable[[], Sequence[SharedRoute]]
    """Returns the routes as they are now, and raises the error that ends the wait."""
    turn: "asyncio.Future[SharedPlacement]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    sent_routes: Sequence[SharedRoute] = ()
    """The routes that Redis was sent last."""
    claimed: bool = False
    """Whether a turn is being claimed for it."""


class SharedQueue:
    """The queue of all gateways, as the requests of one gateway use it."""

    def __init__(
        self,
        store: QueueStore,
        order: TenantOrder,
        *,
        enabled: bool,
        timeout_seconds: float,
        clock: Callable[[], float],
        shard: int = 0,
        always_joined: bool = True,
        in_cell: bool = False,
        own_loads: OwnLoads | None = None,
    ) -> None:
        """Create the queue of a gateway that has not joined.

        Args:
            store: Calls the queue's functions.
            order: The order of the requests of one tenant.
            enabled: Whether Redis can keep the queue policy.
            timeout_seconds: How long a request waits for a decision.
            clock: Returns seconds and never goes backwards.
            shard: Its number among the shards of a cluster.
            always_joined: Whether the gateway joins without queues and placements, too.
            in_cell: Whether other cells use the same workers.
            own_loads: The loads of this gateway's placements; given where several shards use the same workers.
        """
        self._store = store
        self._member: QueueMember
        self._order = order
        self._clock = clock
        self._places = LocalPlacements(own_loads)
        self._waiting: dict[str, _Waiter] = {}
        self._ages = EstimateAges[str]()
        self._first_tokens: dict[str, asyncio.TimerHandle] = {}
        """First tokens that are not reported yet, by id of the ticket."""
        self._number = 0
        self.number = shard
        """Its number among the shards of a cluster."""
        self.membership = Membership(
            store,
            self._places,
            on_moved=self._move,
            enabled=enabled,
            timeout_seconds=timeout_seconds,
            clock=clock,
            always_joined=always_joined,
            in_cell=in_cell,
        )

    def attach(self, member: QueueMember) -> None:
        """Take part for this gateway. Call it once, before any loop runs."""
        self._member = member
        self.membership.attach(member)

    @property
    def gateway(self) -> str:
        """This gateway's name among all gateways."""
        return self._store.gateway

    @property
    def gateways(self) -> int:
        """How many gateways are alive."""
        return self.membership.gateways

    @property
    def shared(self) -> bool:
        """Whether all gateways give turns together."""
        return self.membership.shared

    def __len__(self) -> int:
        """Return how many requests of this gateway wait."""
        return len(self._waiting)

    @property
    def shards(self) -> "Sequence[SharedQueue]":
        """This queue alone: all of it is decided in one place."""
        return [self]

    @property
    def stream(self) -> str:
        """The key of the stream of its turns."""
        return self._store.keys.turns

    @property
    def only_membership(self) -> Membership:
        """This gateway's part among all that share the queue."""
        return self.membership

    def membership_of(self, _queue: str, _tenant: str = "") -> Membership:
        """Return this gateway's part among all that share the queue."""
        return self.membership

    def reconfigure(self, order: TenantOrder, hold: float | None, *, enabled: bool) -> None:
        """Follow these rules from now on; waiting requests ask anew if the queue is then kept elsewhere."""
        self._order = order
        self._store.hold = hold
        self.membership.reconfigure(enabled=enabled)

    def ticket(
        self, ticket: Ticket, queue: str, kv_tokens: int, *, cost: float | None = None
    ) -> SharedTicket:
        """Return a ticket under a name that no other ticket of any gateway has. `cost`: by default the ticket's."""
        self._number += 1
        return SharedTicket(
            id=f"{self._store.gateway}:{self._number}",
            queue=queue,
            tenant=ticket.tenant,
            weight=ticket.weight,
            cost=ticket.cost if cost is None else cost,
            kv_tokens=kv_tokens,
            target_seconds=ticket.target_seconds,
            work_share=ticket.work_share,
            shard=self.number,
        )

    def second_ticket(self, first: SharedTicket) -> SharedTicket:
        """Return another ticket of the same request, at no cost."""
        self._number += 1
        return msgspec.structs.replace(first, id=f"{self._store.gateway}:{self._number}", cost=0.0)

    async def turn(
        self,
        shared_ticket: SharedTicket,
        ticket: Ticket,
        routes: Callable[[], Sequence[SharedRoute]],
        waits: Callable[[], None],
    ) -> SharedPlacement:
        """Return a place in the request's turn, however long that takes; `waits` is called if it takes a while.

        Raises AskAnew if the queue is not kept in Redis (any more), NoWorker once there are no routes.
        """
        if not self.shared:
            raise AskAnew
        waiter = _Waiter(shared_ticket, ticket, routes)
        self._waiting[shared_ticket.id] = waiter
        self._ages.add(shared_ticket.id, self._clock())
        placed = None
        try:
            await self._ask(waiter)
            if not waiter.turn.done():
                waits()
            placed = await waiter.turn
            return placed
        finally:
            self._waiting.pop(shared_ticket.id, None)
            self._ages.remove(shared_ticket.id)
            if placed is None:
                waiter.turn.cancel()
                self.leave(shared_ticket, -shared_ticket.cost)
            del waiter  # The error of its turn refers to this frame, which would be a reference cycle.

    async def spare(
        self, shared_ticket: SharedTicket, routes: Sequence[SharedRoute]
    ) -> SharedPlacement | None:
        """Return a place that no request of any gateway waits for; None without one, or without an answer."""
        if not self.shared or not routes:
            return None
        self.membership.known_ids.add(shared_ticket.id)
        placed = None
        try:
            reply = await self.membership.await_decision(
                self._store.spare(shared_ticket, self.membership.queues(shared_ticket.queue), routes)
            )
            if reply is not None and reply.outcome == 1 and reply.worker is not None:
                placed = self._places.put(shared_ticket, reply.worker, reply.uncached_tokens)
            if reply is not None:
                self.membership.process(reply)
            return placed
        finally:
            if placed is None:
                # It may have been given all the same, by a reply that never came.
                self.leave(shared_ticket, 0.0)

    def note_placed(self, shared_ticket: SharedTicket, worker: WorkerId, uncached_tokens: int) -> None:
        """Note a place that was given here, without the queue."""
        place = self._places.put(shared_ticket, worker, uncached_tokens)
        if self.shared:
            # A request that tries another worker has had its turn: its load is reported, and no decision is needed.
            self.membership.known_ids.add(shared_ticket.id)
            queues, name = self.membership.queues(shared_ticket.queue), f"{shared_ticket.id}+"
            self.membership.send(_last(self._store.join(queues, LEASE_MS, name, [place], fresh=False)))

    def first_token(self, shared_ticket: SharedTicket) -> None:
        """Note that the request's prefill is done."""
        if not self._places.first_token(shared_ticket) or shared_ticket.id not in self.membership.known_ids:
            return
        if self._waiting:
            self._report_first_token(shared_ticket)
            self._estimate_one()
        elif shared_ticket.id not in self._first_tokens:
            # A whole answer ends at once: its end says enough.
            self._first_tokens[shared_ticket.id] = asyncio.get_running_loop().call_later(
                FIRST_TOKEN_SECONDS, self._report_first_token, shared_ticket
            )

    async def exchange_with_cells(
        self, others: Loads | None, bounds: Mapping[str, TurnBounds], lease_ms: int
    ) -> CellState:
        """Take over what other cells and shards have on workers, and the bounds of turns that follow.

        Returns the state of this one; nothing if that is unknown. The bounds hold for `lease_ms`. Without `others`
        nothing is taken over.
        """
        if not self.shared:
            return CellState()
        here = self._member.worker_ids()
        mine = others and {worker: load for worker, load in others.items() if worker in here}
        answer = await self.membership.await_reply(
            self._store.cells(self.membership.queues(), mine, bounds, lease_ms)
        )
        if answer is None:
            return CellState()
        reply, own = answer
        self.membership.process(reply)
        return own

    def leave(self, shared_ticket: SharedTicket, cost_change: float) -> bool:
        """Note that a request has ended or waits no longer; its usage differs from its cost by `cost_change`.

        Returns False if only this gateway knows the ticket: the caller then corrects its cost here.
        """
        self._places.drop(shared_ticket)
        if (report := self._first_tokens.pop(shared_ticket.id, None)) is not None:
            report.cancel()
        if shared_ticket.id not in self.membership.known_ids:
            return False
        self.membership.known_ids.discard(shared_ticket.id)
        if self.membership.up:
            self.membership.send(
                self._store.end(self.membership.queues(shared_ticket.queue), shared_ticket.id, cost_change)
            )
        return self.membership.up

    def dismiss(self, error: Exception) -> None:
        """End all waits with this error."""
        for waiter in self._waiting.values():
            _fail(waiter, error)

    def ask_again(self) -> None:
        """Ask again for all waiting requests: routes have changed, or messages were perhaps missed."""
        for waiter in list(self._waiting.values()):
            if not waiter.turn.done():
                self.membership.start(self._ask(waiter))

    def fleet_changed(self) -> None:
        """Ask again for all waiting requests: a worker joined, left or changed."""
        self.membership.queues_changed()
        self.ask_again()

    def move_out(self, elsewhere: Callable[[str, str], bool]) -> None:
        """Have those requests ask anew on whose queue and tenant another shard decides from now on."""
        for waiter in self._waiting.values():
            if elsewhere(waiter.shared.queue, waiter.shared.tenant):
                _fail(waiter, AskAnew())

    async def close(self) -> None:
        """Leave: what this gateway holds is free at once."""
        await self.membership.close()

    def turn_granted(self, id: str) -> None:
        """Handle the message of the stream that a ticket of any gateway has its turn."""
        if not self._waiting or not self.shared:
            return
        waiter = self._waiting.get(id)
        if waiter is not None:
            self.membership.start(self._claim(waiter))
        self._estimate_one()

    def _estimate_one(self) -> None:
        """Tell Redis of other routes of the ticket that was estimated longest ago, if that is long ago.

        What it is charged remains the cost on arrival until the request has ended.
        """
        id = self._ages.take_due(self._clock())
        waiter = self._waiting[id] if id is not None else None
        if waiter is None or waiter.claimed or waiter.turn.done():
            return
        sent, routes = waiter.sent_routes, _routes(waiter)
        if routes and _tokens(routes) != _tokens(sent):
            prompt_tokens = waiter.ticket.uncached_tokens + waiter.ticket.cached_tokens
            waiter.ticket = msgspec.structs.replace(
                waiter.ticket,
                uncached_tokens=routes[0].uncached_tokens,
                cached_tokens=prompt_tokens - routes[0].uncached_tokens,
            )
            self.membership.start(self._ask(waiter, routes))

    def _report_first_token(self, shared_ticket: SharedTicket) -> None:
        self._first_tokens.pop(shared_ticket.id, None)
        if self.membership.up and shared_ticket.id in self.membership.known_ids:
            self.membership.send(
                self._store.first_token(self.membership.queues(shared_ticket.queue), shared_ticket.id)
            )

    async def _ask(self, waiter: _Waiter, routes: Sequence[SharedRoute] | None = None) -> None:
        """Ask for the waiter's place or ticket, or report other routes for the ticket that it has.

        `routes`: those as of now, if they are known.
        """
        if waiter.turn.done():
            return  # It may have left since this was begun.
        if routes is None and (routes := _routes(waiter)) is None:
            return
        if not routes:
            _fail(waiter, NoWorker(model_of(waiter.shared.queue)))
            return
        waiter.sent_routes, shared = routes, waiter.shared
        self.membership.known_ids.add(shared.id)
        before = self.membership.queues(shared.queue)[1:] if shared.queue.endswith(BATCH) else ()
        reply = await self.membership.await_decision(self._store.admit(shared, routes, before))
        if reply is None or reply.outcome < 0:
            _fail(waiter, AskAnew())
            return
        self._member.adopt_tag(shared.queue, shared.tenant, reply.virtual_time, reply.finish)
        if reply.outcome == 1:
            self._place(shared.id, reply)
        self.membership.process(reply)

    def _place(self, id: str, reply: QueueReply) -> None:
        """Give a waiter the place that Redis says it has.

        A waiter that has left meanwhile has reported that, too, after this was decided.
        """
        waiter = self._waiting.get(id)
        if waiter is not None and not waiter.turn.done() and reply.worker is not None:
            waiter.turn.set_result(self._places.put(waiter.shared, reply.worker, reply.uncached_tokens))

    async def _claim(self, waiter: _Waiter) -> None:
        """Claim a turn for that ticket of the tenant which goes first now."""
        first = self._first_of(waiter)
        routes = _routes(first)
        if routes is None:
            # The first one leaves, and with it its own turn; another one's is still to be claimed.
            if first is not waiter:
                await self._claim(waiter)
            return
        queues = self.membership.queues(waiter.shared.queue)
        other = first.shared.id if first is not waiter else None
        first.claimed = True
        try:
            reply = await self.membership.await_reply(
                self._store.claim(queues, waiter.shared.id, other, routes)
            )
        finally:
            first.claimed = False
        if reply is None:
            return
        if reply.outcome == 1:
            self._place(reply.id, reply)
        self.membership.process(reply)
        # A ticket that gave its turn away waits in Redis for the worker of that turn alone. After a claim that came
        # too late, or that was made a second time, Redis knows the state of both.
        for each in dict.fromkeys((waiter, first)) if reply.outcome != 1 else (waiter,):
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
    """Return a waiter's routes as they are now; None where that has ended its wait."""
    try:
        return waiter.routes()
    except Exception as err:  # noqa: BLE001 - what its policy raises concerns this request alone
        _fail(waiter, err)
        return None


def _tokens(routes: Sequence[SharedRoute]) -> dict[WorkerId, int]:
    return {route.worker: route.uncached_tokens for route in routes}


def _fail(waiter: _Waiter, error: Exception) -> None:
    if not waiter.turn.done():
        waiter.turn.set_exception(error)
        waiter.turn.exception()  # Fetched here, because a request that has left never fetches it.


async def _last(parts: Awaitable[list[QueueReply]]) -> QueueReply:
    return (await parts)[-1]
