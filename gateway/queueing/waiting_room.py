"""The waiting room: requests wait for a worker with room, in one bounded room per model, and one for batch work.

    arrive --- room on a worker, none waits ------------------------------------> placement
       |                                                                             ^
       +--> [ ticket | ticket | ticket ] -- a worker has room: the policy chooses ---+
               |            |
               |            +--> the client leaves: the ticket is removed
               +--> its wait ends:        AdmissionTimeout, or the error of the service class

The room bounds how many requests wait and how long; turn_giving.py gives them their turns. Where several gateways
give turns together, the order is kept in Redis, and the room counts, bounds and times the requests that wait; see
gateway/queueing/shared/shared_queue.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Generic

from gateway.domain.errors import AdmissionTimeout
from gateway.queueing.queued_request import QueuedRequest, ticket_of
from gateway.queueing.received_work import ReceivedWork
from gateway.queueing.room_counters import RoomCounters
from gateway.queueing.room_occupancy import RoomOccupancy
from gateway.queueing.room_rules import RoomRules, WaitEnd
from gateway.queueing.shared.turn_requests import TurnLost
from gateway.queueing.turn_giving import TurnGiving
from gateway.queueing.waiters import Placed, Waiter
from policies.admission.closed_workers import ClosedWorkers
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals, flood_of
from policies.queueing.protocol import Ticket
from radix_cache.match import WorkerId

TENANTS_COUNTED = 256
"""Tenants whose waiting requests are counted for the reason of a wait."""


class WaitingRoom(Generic[Placed]):
    """The requests for one model that wait for room on a worker."""

    def __init__(
        self,
        model: str,
        *,
        rules: RoomRules,
        give_back: Callable[[Placed], None],
        clock: Callable[[], float],
        may_give_turns: Callable[[], bool] | None = None,
        has_room: Callable[[set[WorkerId], int], bool] = lambda closed, tokens: True,
        full_workers: Callable[[], Collection[WorkerId] | None] = lambda: None,
    ) -> None:
        """`give_back` ends a placement that was given in the moment in which its request left.

        `may_give_turns`: a room of batch work may give turns while no request waits in the other rooms of its
        workers. None: always.
        `has_room` returns whether a worker outside the given set may have room for so many uncached tokens.
        `full_workers` returns the workers without any room; None where no request waits for a worker of its own.
        """
        self.model = model
        self.rules = rules
        self.received = ReceivedWork(clock)
        self._occupancy = RoomOccupancy(rules.bounds, self.received.account, clock)
        self.tenants: Collection[str] = self._occupancy.of_tenants.keys()
        """The tenants that have requests waiting."""
        self._give_back = give_back
        self._clock = clock
        turns = self._turns = TurnGiving[Placed](
            rules,
            self._occupancy,
            self.received,
            clock,
            may_give_turns=may_give_turns,
            has_room=has_room,
            full_workers=full_workers,
        )
        self.waiters = turns.waiters
        """The requests that this gateway gives their turns."""
        self.give_turns = turns.give_turns
        self.at_once = turns.at_once
        self._elsewhere: dict[int, Ticket] = {}
        self._number = 0

    def reconfigure(self, rules: RoomRules) -> None:
        """Use these rules from now on. A new policy starts with empty counters; waiting requests enter again."""
        policy_changed, self.rules = rules.policy is not self.rules.policy, rules
        self._occupancy.bounds = rules.bounds
        self._turns.rules = rules
        if policy_changed:
            self._turns.counters = RoomCounters(rules.policy, self._number, self.waiting())
            self.move()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self.waiters.by_number) + len(self._elsewhere)

    def ticket(self, asked: QueuedRequest, before: Ticket | None = None) -> Ticket:
        """Return a ticket with the next number, or with the number and arrival of the ticket `before`."""
        if before is None:
            number, arrived_at = self._number, self._clock()
            self._number += 1
        else:
            number, arrived_at = before.number, before.arrived_at
        ticket = ticket_of(asked, number, arrived_at)
        self._turns.counters.arrives(
            ticket, self.waiters.one_of_each_flow() if self.waiters.by_number else ()
        )
        return ticket

    def correct(self, ticket: Ticket, cost_change: float, *, counted_elsewhere: bool = False) -> None:
        """Correct the cost of a request that had its turn by this many units.

        `counted_elsewhere`: the policy's counters are kept in Redis; only what was received here is corrected.
        """
        self.received.correct(ticket, cost_change)
        if not counted_elsewhere:
            self._turns.counters.correct(ticket, cost_change)

    @property
    def may_give_turns(self) -> bool:
        """Whether this room may give turns now; false while requests in another room go before those here."""
        return self._turns.may_give_turns

    @property
    def tokens(self) -> int:
        """Uncached prompt tokens of all requests that wait."""
        return self._occupancy.totals.tokens

    def flood_of(self, tenant: str) -> WaitingTotals:
        """Return what waits of a tenant if that is most of all that waits; else nothing."""
        own = self._occupancy.of_tenants.get(tenant)
        return NONE_WAITING if own is None else flood_of(own, self._occupancy.totals.requests)

    async def wait(
        self,
        ticket: Ticket,
        place: Callable[[ClosedWorkers], Placed | None],
        wait_end: WaitEnd | None = None,
        estimate: Callable[[], Ticket] | None = None,
    ) -> Placed:
        """Return a placement in the ticket's turn; `estimate`: see Waiter.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, TurnLost, and what `wait_end` and `place` raise.
        """
        with self._occupancy.taken(ticket, self.retry_after):
            waiter = Waiter(ticket, place, asyncio.get_running_loop().create_future(), estimate)
            self.waiters.enter(waiter, self._clock())
            placed: Placed | None = None
            try:
                self.note_waiting(ticket)
                if self.rules.passed_over_max:
                    # The requests before this one may wait for workers of their own, and leave room to this one.
                    self.give_turns()
                async with self._until_wait_ends(ticket, wait_end):
                    placed = await waiter.turn
                return placed
            finally:
                if placed is None:
                    self._leave(waiter)
                self._occupancy.correct(waiter.ticket, ticket)
                del waiter  # The error of its turn refers to this frame, which would be a reference cycle.

    async def wait_with_all(
        self, ticket: Ticket, turn: Callable[[], Awaitable[Placed]], wait_end: WaitEnd | None = None
    ) -> Placed:
        """Return a placement in the turn that all gateways give together. Raises what `wait` and `turn` raise."""
        with self._occupancy.taken(ticket, self.retry_after):
            self._elsewhere[ticket.number] = ticket
            try:
                async with self._until_wait_ends(ticket, wait_end):
                    placed = await turn()
                self.received.record(ticket, self._clock())
                return placed
            finally:
                self._occupancy.correct(self._elsewhere.pop(ticket.number), ticket)

    @property
    def some_wait(self) -> bool:
        """Whether a request has no turn yet; one that waits for the first reply of Redis does not count."""
        return self._occupancy.some_wait

    def update_estimate(self, ticket: Ticket) -> None:
        """Replace a ticket that waits for a turn of all gateways by a later estimate of the same request."""
        before = self._elsewhere.get(ticket.number)
        if before is not None:
            self._occupancy.correct(before, ticket)
            self._elsewhere[ticket.number] = ticket

    def note_waiting(self, ticket: Ticket) -> None:
        """Note that the ticket does not have its turn at once."""
        self._occupancy.note_waiting(ticket)

    def waiting_of(self, tenant: str) -> int:
        """Return how many requests of a tenant wait."""
        return self._occupancy.waiting_of(tenant)

    def standing_since(self, service_class: str) -> float | None:
        """Return since when at least one request of this class has waited without a break."""
        return self._occupancy.standing_since.get(service_class)

    @property
    def classes(self) -> set[str]:
        """The service classes that have waited here."""
        return self._occupancy.classes

    def waiting(self) -> Sequence[Ticket]:
        """Return the tickets of all requests that wait."""
        return [*(waiter.ticket for waiter in self.waiters), *self._elsewhere.values()]

    def waiting_beside(self, ticket: Ticket) -> tuple[WaitingTotals, dict[str, int]]:
        """Return what waits beside a ticket, and the requests by tenant, of at most TENANTS_COUNTED."""
        totals = self._occupancy.totals
        of_tenants = islice(self._occupancy.of_tenants.items(), TENANTS_COUNTED)
        tenants = {tenant: own.requests for tenant, own in of_tenants}
        if ticket.number in self.waiters.by_number or ticket.number in self._elsewhere:
            totals = totals.plus(-1, -ticket.uncached_tokens)
            if tenants.get(ticket.tenant, 0) > 1:
                tenants[ticket.tenant] -= 1
            else:
                tenants.pop(ticket.tenant, None)
        return totals, tenants

    def move(self) -> None:
        """End all waits with TurnLost: the queue has moved, and the requests enter it again."""
        self.close(TurnLost())

    def adopt(self, tenant: str, virtual_time: float, finish: float) -> None:
        """Take over a tenant's tag from the queue of all gateways; see RoomCounters."""
        self._turns.counters.adopt(tenant, virtual_time, finish)

    def debts(self) -> dict[str, float]:
        """Return how far tenants are ahead of the virtual time; see RoomCounters."""
        return self._turns.counters.debts()

    def close(self, error: Exception) -> None:
        """End every wait with this error."""
        self.waiters.fail(error)

    def retry_after(self, tenant: str | None = None) -> float:
        """Return the seconds until what waits has had its turn: of one tenant at its share, or of all tenants."""
        return self.received.retry_after(self.waiting(), tenant, self.rules.waiting_seconds_max)

    @asynccontextmanager
    async def _until_wait_ends(self, ticket: Ticket, wait_end: WaitEnd | None) -> AsyncIterator[None]:
        """End the wait in time. Raises AdmissionTimeout, or the error of what ends the wait sooner."""
        seconds = self.rules.waiting_seconds_max
        end = WaitEnd(ticket.arrived_at + seconds, lambda retry: AdmissionTimeout(seconds, retry))
        if wait_end is not None and wait_end.until < end.until:
            end = wait_end
        try:
            async with asyncio.timeout(end.until - self._clock()):
                yield
        except TimeoutError:
            raise end.error(self.retry_after(ticket.tenant)) from None

    def _leave(self, waiter: Waiter[Placed]) -> None:
        """Remove a waiter, and give back a turn that came in the same moment."""
        self.waiters.remove(waiter)
        if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
            self._give_back(waiter.turn.result())
        # The next request may be smaller than this one, and fit where this one did not.
        self.give_turns()
