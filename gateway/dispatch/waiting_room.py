"""Where requests wait for a worker with room: one bounded room per model.

    arrive --- room on a worker, nobody waits ----------------------------------> place
       |                                                                            ^
       +--> [ ticket | ticket | ticket ] -- a worker has room: the policy says who -+
               |            |
               |            +--> the client leaves: the ticket is torn up
               +--> `waiting_seconds_max`: AdmissionTimeout

Nothing polls. Whoever makes room (first token, end, a worker that is back) calls `room_made`; whoever's turn it is
has its place before it wakes up, so that no later arrival can take it.

Where several gateways give turns together, the order is kept in Redis, and the room counts, bounds and times those
who wait; see gateway/queue/shared.py.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.errors import AdmissionTimeout, NoWorker, Overloaded, TenantQueueFull
from gateway.queue.shared import AskAnew
from policies.admission import retry_after_seconds
from policies.queueing.heads import next_turn
from policies.queueing.protocol import QueueCounters, QueuePolicy, TenantOrder, Ticket, Turn

Placed = TypeVar("Placed")

SERVED_REMEMBERED = 256


class NowhereToGo(Exception):
    """No worker is left that could ever give this request a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a policy may know of a request; see Ticket."""

    tenant: str
    cost: float
    weight: float = 1.0
    uncached_tokens: int = 0
    cached_tokens: int = 0
    worker: str = ""


@dataclass(slots=True)
class _Waiter(Generic[Placed]):
    """`seat` gives a place if there is room now, None if there is none; it raises NowhereToGo."""

    ticket: Ticket
    seat: Callable[[], Placed | None]
    turn: "asyncio.Future[Placed]"


class WaitingRoom(Generic[Placed]):
    """`unseat` undoes a seat for somebody who left in the moment it was given."""

    def __init__(
        self,
        model: str,
        *,
        policy: QueuePolicy,
        order: TenantOrder,
        unseat: Callable[[Placed], None],
        waiting_max: int,
        waiting_seconds_max: float,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._policy = policy
        self._order = order
        self._unseat = unseat
        self._waiting_max = waiting_max
        self._waiting_seconds_max = waiting_seconds_max
        self._clock = clock
        self._counters = QueueCounters()
        self._adopted = self._counters
        self._waiting: OrderedDict[int, _Waiter[Placed]] = OrderedDict()
        self._elsewhere: dict[int, Ticket] = {}
        self._served_at: deque[float] = deque(maxlen=SERVED_REMEMBERED)
        self._number = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting) + len(self._elsewhere)

    def ticket(self, asked: Asked, before: Ticket | None = None) -> Ticket:
        """The next number; or the one that it has had `before`, with when it came."""
        ticket = Ticket(
            number=self._number if before is None else before.number,
            tenant=asked.tenant,
            cost=asked.cost,
            weight=asked.weight,
            uncached_tokens=asked.uncached_tokens,
            cached_tokens=asked.cached_tokens,
            worker=asked.worker,
            arrived_at=self._clock() if before is None else before.arrived_at,
        )
        self._number += before is None
        self._counters = self._policy.arrive(self._counters, ticket, self._tickets())
        return ticket

    def settle(self, ticket: Ticket, cost_change: float) -> None:
        """What a request that had its turn used differs from its cost by so much."""
        self._counters = self._policy.settle(self._counters, ticket, cost_change)

    def at_once(self, ticket: Ticket, seat: Callable[[], Placed | None]) -> Placed | None:
        """A place without waiting: there is one, and nobody was here before. Raises NoWorker."""
        turn = self._policy.next(self._counters, [ticket], self._clock())
        if self._waiting or turn is None:
            return None
        placed = self._seated(seat)
        if placed is not None:
            self._granted(turn)
        return placed

    async def wait(self, ticket: Ticket, seat: Callable[[], Placed | None]) -> Placed:
        """A place in its turn. Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, AskAnew."""
        self._has_space(ticket)
        waiter = _Waiter(ticket, seat, asyncio.get_running_loop().create_future())
        self._waiting[ticket.number] = waiter
        try:
            async with self._patience(ticket):
                placed: Placed = await waiter.turn
                return placed
        except (AdmissionTimeout, asyncio.CancelledError):
            self._leave(waiter)
            raise

    async def wait_with_all(self, ticket: Ticket, turn: Callable[[], Awaitable[Placed]]) -> Placed:
        """A turn that all gateways together give. Raises what `wait` raises, and what `turn` does."""
        self._has_space(ticket)
        self._elsewhere[ticket.number] = ticket
        try:
            async with self._patience(ticket):
                placed = await turn()
            self._served_at.append(self._clock())
            return placed
        finally:
            del self._elsewhere[ticket.number]

    def move(self) -> None:
        """The queue is kept elsewhere from now on: sends everybody there."""
        self.close(AskAnew())

    def adopt(self, tenant: str, virtual_time: float, finish: float) -> None:
        """Where a tenant stands in the queue of all gateways, should this one have to go on alone."""
        passed = max(virtual_time, self._counters.virtual_time)
        self._counters = self._adopted = self._counters.moved({tenant: finish}, virtual_time=passed)

    def debts(self) -> dict[str, float]:
        """By tenant: how much further it is ahead of the virtual time than it was when its tag was adopted."""
        before, now = self._adopted, self._counters
        return {
            tenant: debt
            for tenant, tag in now.tags.items()
            if (debt := max(0.0, tag - now.virtual_time) - _ahead(before, tenant)) > 0
        }

    def room_made(self) -> None:
        """Gives out what room there is now, in the order of the policy."""
        while self._waiting:
            turn = next_turn(self._policy, self._order, self._counters, self._tickets(), self._clock())
            if turn is None:
                return
            waiter = self._waiting[turn.ticket.number]
            try:
                placed = self._seated(waiter.seat)
            except NoWorker as err:
                del self._waiting[turn.ticket.number]
                waiter.turn.set_exception(err)
                continue
            if placed is None:
                return
            del self._waiting[turn.ticket.number]
            self._granted(turn)
            waiter.turn.set_result(placed)

    def close(self, error: Exception) -> None:
        """Sends everybody away."""
        for waiter in self._waiting.values():
            if not waiter.turn.done():
                waiter.turn.set_exception(error)
        self._waiting.clear()

    def _has_space(self, ticket: Ticket) -> None:
        """Raises TenantQueueFull, Overloaded."""
        if len(self) >= self._waiting_max:
            raise self._full(ticket.tenant)

    @asynccontextmanager
    async def _patience(self, ticket: Ticket) -> AsyncIterator[None]:
        """For as long as it may wait, since it came. Raises AdmissionTimeout."""
        left = ticket.arrived_at + self._waiting_seconds_max - self._clock()
        try:
            async with asyncio.timeout(left):
                yield
        except TimeoutError:
            raise AdmissionTimeout(self._waiting_seconds_max, self._retry_after()) from None

    def _tickets(self) -> list[Ticket]:
        # Who was cancelled a moment ago still stands here until its task runs; it has no use for a turn.
        return [waiter.ticket for waiter in self._waiting.values() if not waiter.turn.done()]

    def _leave(self, waiter: _Waiter[Placed]) -> None:
        """Out of the queue; a turn that came in the same moment is given back."""
        self._waiting.pop(waiter.ticket.number, None)
        if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
            self._unseat(waiter.turn.result())
        # Whoever stood behind may fit where this one did not.
        self.room_made()

    def _seated(self, seat: Callable[[], Placed | None]) -> Placed | None:
        try:
            return seat()
        except NowhereToGo:
            raise NoWorker(self._model) from None

    def _granted(self, turn: Turn) -> None:
        self._counters = turn.counters
        self._served_at.append(self._clock())

    def _full(self, tenant: str) -> TenantQueueFull | Overloaded:
        """Who fills the room? A tenant with its even share of it or more is told so; others suffer for all."""
        tickets = [*(waiter.ticket for waiter in self._waiting.values()), *self._elsewhere.values()]
        waiting = Counter(ticket.tenant for ticket in tickets)
        share = self._waiting_max / len({*waiting, tenant})
        error = TenantQueueFull if waiting[tenant] >= share else Overloaded
        return error(self._retry_after())

    def _retry_after(self) -> float:
        """From the rate at which turns were given lately."""
        served = len(self._served_at)
        seconds = self._clock() - self._served_at[0] if served else 0.0
        rate = served / seconds if seconds > 0 else 0.0
        return retry_after_seconds(len(self), rate, self._waiting_seconds_max)


def _ahead(counters: QueueCounters, tenant: str) -> float:
    return max(0.0, counters.tags.get(tenant, 0.0) - counters.virtual_time)
