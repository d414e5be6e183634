"""The requests of this gateway that wait for a turn of all gateways: Redis grants the turns, and they claim them.

    admit --room, and no request waits--------------------------------------> place
      +--> waits --the stream has its turn----> claims it --------------------^
             ^  for itself, or for the request of its tenant that goes first now
             +-- admit again: it gave its turn away, or came too late; its routes changed; messages were missed

Redis decides which tenant has its turn; the gateway of the granted ticket decides which of the tenant's requests
takes it. The stream is read by turn_stream.py, which calls `turn_granted`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.domain.errors import NoWorker
from gateway.queueing.shared.keys import BATCH, model_of
from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.membership import Membership
from gateway.queueing.shared.queue_members import QueueMember
from gateway.queueing.shared.queue_messages import QueueReply, SharedPlacement, SharedRoute, SharedTicket
from gateway.queueing.shared.queue_store import QueueStore
from policies.queueing.estimate_ages import EstimateAges
from policies.queueing.protocol import TenantOrder, Ticket
from radix_cache.match import WorkerId


class TurnLost(Exception):
    """A wait ended without a turn, and the request has to enter the queue again.

    The queue has moved (to Redis, to another shard or to this process), or the worker of the turn is gone.
    """


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request that waits for its turn."""

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


class TurnRequests:
    """The requests of one gateway that wait for their turns among those of all gateways."""

    def __init__(
        self,
        store: QueueStore,
        places: LocalPlacements,
        order: TenantOrder,
        clock: Callable[[], float],
        leave: Callable[[SharedTicket, float], bool],
        note_waiting: Callable[[str, int, float], None],
    ) -> None:
        """Create the requests of a gateway, of which none waits.

        `order`: of one tenant's requests. `clock`: seconds, never backwards. `leave`: see SharedQueue.leave.
        `note_waiting`: see OwnPlaces.note_waiting.
        """
        self.membership: Membership
        self.member: QueueMember
        self.order = order
        self._store = store
        self._places = places
        self._clock = clock
        self._leave = leave
        self._note_waiting = note_waiting
        self._waiting: dict[str, _Waiter] = {}
        self._ages = EstimateAges[str]()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    async def turn(
        self,
        shared_ticket: SharedTicket,
        ticket: Ticket,
        routes: Callable[[], Sequence[SharedRoute]],
        waits: Callable[[], None],
    ) -> SharedPlacement:
        """Return a place in the request's turn, however long that takes; `waits` is called if it takes a while.

        Raises TurnLost if the queue is not kept in Redis (any more), NoWorker once there are no routes.
        """
        if not self.membership.shared:
            raise TurnLost
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
                self._leave(shared_ticket, -shared_ticket.cost)
            del waiter  # The error of its turn refers to this frame, which would be a reference cycle.

    def dismiss(self, error: Exception) -> None:
        """End all waits with this error."""
        for waiter in self._waiting.values():
            _fail(waiter, error)

    def ask_again(self) -> None:
        """Send all waiting requests to Redis again: routes have changed, or messages were perhaps missed."""
        for waiter in list(self._waiting.values()):
            if not waiter.turn.done():
                self.membership.start(self._ask(waiter))

    def move_out(self, elsewhere: Callable[[str, str], bool]) -> None:
        """End the wait of requests on whose queue and tenant another shard decides from now on, with TurnLost."""
        for waiter in self._waiting.values():
            if elsewhere(waiter.shared.queue, waiter.shared.tenant):
                _fail(waiter, TurnLost())

    def turn_granted(self, id: str) -> None:
        """Handle the message of the stream that a ticket of any gateway has its turn."""
        if not self._waiting or not self.membership.shared:
            return
        waiter = self._waiting.get(id)
        if waiter is not None:
            self.membership.start(self._claim(waiter))
        self.estimate_one()

    def estimate_one(self) -> None:
        """Send Redis new routes of the ticket that was estimated longest ago, if that is long ago.

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

    async def _ask(self, waiter: _Waiter, routes: Sequence[SharedRoute] | None = None) -> None:
        """Request a place or a ticket for the waiter, or report other routes for the ticket that it has.

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
        called_at = self._clock()
        reply = await self.membership.await_decision(self._store.admit(shared, routes, before))
        if reply is None or reply.outcome < 0:
            _fail(waiter, TurnLost())
            return
        self._note_waiting(shared.queue, reply.waiting[0], called_at)
        self.member.adopt_tag(shared.queue, shared.tenant, reply.virtual_time, reply.finish)
        if reply.outcome == 1:
            self._place(shared.id, reply)
        self.membership.process(reply)

    def _place(self, id: str, reply: QueueReply) -> None:
        """Give a waiter the place that it has by Redis' reply.

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
        # too late, or that was made a second time, Redis has the state of both.
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
        return own[self.order.first(list(own), self._clock())] if own else waiter


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
