"""The shared queue: turns that all gateways give together, for the requests of one of them. See membership.py.

    turn         a place in the request's turn (turn_requests.py)  --note_first_token--> --leave--> gone
    give         a place that this gateway gives by itself, while no request waits (own_places.py)
    spare        a place that no request waits for
    note_placed  a place of a request that has had its turn, or of one that came while this gateway was alone

A request that leaves sends its end (verb `progress`) after its other calls, so that a turn or a place
that Redis has given it in the meantime is free again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from gateway.fleet.loads import Loads
from gateway.queueing.shared.local_placements import LocalPlacements, OwnLoads
from gateway.queueing.shared.membership import LEASE_MS, Membership
from gateway.queueing.shared.own_places import OwnPlaces
from gateway.queueing.shared.queue_members import QueueMember
from gateway.queueing.shared.queue_messages import (
    CellState,
    QueueReply,
    SharedPlacement,
    SharedRoute,
    SharedTicket,
    WorkerRoom,
)
from gateway.queueing.shared.queue_store import QueueStore
from gateway.queueing.shared.turn_requests import TurnLost, TurnRequests
from policies.cell_turns import TurnBounds
from policies.queueing.protocol import TenantOrder, Ticket
from radix_cache.match import WorkerId

FIRST_TOKEN_SECONDS = 0.002
"""How long the report of a first token waits for the end of the same request, which replaces it."""


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
        self._places = LocalPlacements(own_loads)
        self.requests = TurnRequests(store, self._places, order, clock, self.leave, self._note_waiting)
        """The requests of this gateway that wait for their turns."""
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
        self.requests.membership = self.membership
        self._own = OwnPlaces(
            store,
            self._places,
            self.membership,
            clock,
            some_wait=lambda: bool(self.requests),
            in_cell=in_cell,
        )

    def attach(self, member: QueueMember) -> None:
        """Take part for this gateway. Call it once, before any loop runs."""
        self._member = self.requests.member = self._own.member = member
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
    def is_alone(self) -> bool:
        """Whether this gateway is known to be the only one."""
        return self.membership.up and self.membership.gateways == 1

    @property
    def shared(self) -> bool:
        """Whether all gateways give turns together."""
        return self.membership.shared

    def __len__(self) -> int:
        """Return how many requests of this gateway wait."""
        return len(self.requests)

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
        """Follow these rules from now on; waiting requests enter the queue again if it moves by that."""
        self.requests.order = order
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
        """Return a place in the request's turn; see TurnRequests.turn. Raises TurnLost, NoWorker."""
        return await self.requests.turn(shared_ticket, ticket, routes, waits)

    def may_give(self, queue: str, _tenant: str = "") -> bool:
        """Return whether requests of a queue may have places without a call to Redis; see OwnPlaces."""
        return self._own.may_give(queue)

    def give(
        self,
        shared_ticket: SharedTicket,
        worker: WorkerId,
        uncached_tokens: int,
        room: WorkerRoom,
    ) -> bool:
        """Give a place without a call to Redis, and return whether there is one; see OwnPlaces."""
        return self._own.give(shared_ticket, worker, uncached_tokens, room)

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
        if self.membership.shared:
            # A request that tries another worker has had its turn: its load is reported, and no decision is needed.
            self.membership.known_ids.add(shared_ticket.id)
            queues, name = self.membership.queues(shared_ticket.queue), f"{shared_ticket.id}+"
            self.membership.send(_last(self._store.join(queues, LEASE_MS, name, [place], fresh=False)))

    def note_first_token(self, shared_ticket: SharedTicket) -> None:
        """Note that the request's prefill is done."""
        if not self._places.note_first_token(shared_ticket):
            return
        if shared_ticket.id in self._places.sums:
            self._own.note_first_token(shared_ticket)
            return
        if shared_ticket.id not in self.membership.known_ids:
            return
        if self.requests:
            self._report_first_token(shared_ticket)
            self.requests.estimate_one()
        elif shared_ticket.id not in self._first_tokens:
            # A whole answer ends at once: the report of its end is enough.
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

        Returns False if Redis does not have the ticket: the caller then corrects its cost here.
        """
        is_own = shared_ticket.id in self._places.sums
        self._places.drop(shared_ticket)
        if is_own:
            self._own.end(shared_ticket, cost_change)
            return True
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
        self.requests.dismiss(error)

    def fleet_changed(self) -> None:
        """Send all waiting requests to Redis again: a worker joined, left or changed."""
        self.membership.queues_changed()
        self.requests.ask_again()

    async def close(self) -> None:
        """Leave: what this gateway holds is free at once."""
        self._own.report()
        await self.membership.close()

    def _report_first_token(self, shared_ticket: SharedTicket) -> None:
        self._first_tokens.pop(shared_ticket.id, None)
        if self.membership.up and shared_ticket.id in self.membership.known_ids:
            # Its worker may be idle until a request that waits has its turn there.
            urgent, queues = bool(self.requests), self.membership.queues(shared_ticket.queue)
            self.membership.send(self._store.first_token(queues, shared_ticket.id, urgent=urgent))

    def _note_waiting(self, queue: str, waiting: int, called_at: float) -> None:
        self._own.note_waiting(queue, waiting, called_at)

    def _move(self) -> None:
        self.requests.dismiss(TurnLost())
        self._member.queue_moved()


async def _last(parts: Awaitable[list[QueueReply]]) -> QueueReply:
    return (await parts)[-1]
