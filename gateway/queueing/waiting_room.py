"""Where requests wait for a worker with room: one bounded room per model, and one for its batch work.

    arrive --- room on a worker, nobody waits ----------------------------------> place
       |                                                                            ^
       +--> [ ticket | ticket | ticket ] -- a worker has room: the policy says who -+
               |            |
               |            +--> the client leaves: the ticket is torn up
               +--> its patience is over: AdmissionTimeout, or what the service class says

Nothing polls. Whoever makes room (first token, end, a worker that is back) calls `room_made`; whoever's turn it is
has its place before it wakes up, so that no later arrival can take it. Who would rather wait for a worker that has
its prompt cached than go to one that is free keeps its place in the order, and nobody takes that worker; others may
go to the free one.

Where several gateways give turns together, the order is kept in Redis, and the room counts, bounds and times those
who wait; see gateway/queueing/shared/shared_queue.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic

from gateway.domain.errors import AdmissionTimeout, NoWorker
from gateway.queueing.room_counters import RoomCounters
from gateway.queueing.room_occupancy import Space
from gateway.queueing.shared.shared_queue import AskAnew
from gateway.queueing.waiters import Placed, Waiter, Waiters
from policies.admission.waiting_room import DrainRate, WaitingRoomBounds, retry_after_seconds
from policies.queueing.fairness_account import FairnessAccount
from policies.queueing.protocol import QueuePolicy, QueueTurn, TenantOrder, Ticket
from policies.queueing.two_level_order import FlowHeads
from radix_cache.match import WorkerId


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
    deadline: float | None = None
    service_class: str = "chat"
    level: int = 0


@dataclass(frozen=True, slots=True)
class Patience:
    """Until when one waits, and what is raised then; it gets the seconds after which to come back."""

    until: float
    over: Callable[[float], Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomRules:
    """How a room gives turns, and how many may wait there for how long.

    `passed_max`: so many may wait for a worker of theirs while others go elsewhere, if there is room at workers
    that nobody waits for; `passed_of_flow_max`: of one tenant and service class.
    """

    policy: QueuePolicy
    order: TenantOrder
    bounds: WaitingRoomBounds
    waiting_seconds_max: float
    passed_max: int = 0
    passed_of_flow_max: int = 0


class WaitingRoom(Generic[Placed]):
    """`unseat` undoes a seat for somebody who left in the moment it was given. `first`: nobody goes before those
    who wait here. `room_left`: may a worker that is not closed have room for one of them? The least has so many
    tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        rules: RoomRules,
        unseat: Callable[[Placed], None],
        clock: Callable[[], float],
        first: Callable[[], bool] = lambda: True,
        room_left: Callable[[set[WorkerId], int], bool] = lambda closed, tokens: True,
    ) -> None:
        self.model = model
        self.account = FairnessAccount()
        self.rules = rules
        self._space = Space(rules.bounds, self.account, clock)
        self._unseat = unseat
        self._clock = clock
        self._first = first
        self._room_left = room_left
        self._counters = RoomCounters(rules.policy)
        self._waiting = Waiters[Placed]()
        self._elsewhere: dict[int, Ticket] = {}
        self._drained = DrainRate()
        self._number = 0

    def restate(self, rules: RoomRules) -> None:
        """By these rules from now on. Under another policy everybody has received nothing; who waits asks anew."""
        anew, self.rules = rules.policy is not self.rules.policy, rules
        self._space.bounds = rules.bounds
        if anew:
            self._counters = RoomCounters(rules.policy, self._number, self.waiting())
            self.move()

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
            deadline=asked.deadline,
            service_class=asked.service_class,
            level=asked.level,
            arrived_at=self._clock() if before is None else before.arrived_at,
        )
        self._number += before is None
        self._counters.arrives(ticket, self._waiting.for_a_turn())
        return ticket

    def settle(self, ticket: Ticket, cost_change: float) -> None:
        """What a request that had its turn used differs from its cost by so much."""
        self._counters.settle(ticket, cost_change)

    def used(self, ticket: Ticket, cost_change: float) -> None:
        """The same, for the account; whoever settles it."""
        self.account.record(ticket.tenant, ticket.weight, cost_change, self._clock())

    def drained_per_second(self) -> float:
        """Cost units that get their turn, as measured lately; 0 where nothing is known."""
        return self._drained.per_second(self._clock())

    def evenness(self) -> float:
        """See FairnessAccount."""
        return self.account.evenness(self._clock())

    @property
    def goes_first(self) -> bool:
        """Does nobody in another room go before those who wait here?"""
        return self._first()

    @property
    def tokens(self) -> int:
        """Uncached prompt tokens that wait."""
        return self._space.everybody.tokens

    def at_once(self, ticket: Ticket, seat: Callable[[], Placed | None]) -> Placed | None:
        """A place without waiting: there is one, and nobody was here before. Raises NoWorker, and as `seat`."""
        turn = self._counters.next([ticket], self._clock())
        if self._waiting or turn is None or not self._first():
            return None
        placed = self._seated(seat)
        if placed is not None:
            self._granted(turn)
        return placed

    async def wait(
        self,
        ticket: Ticket,
        seat: Callable[[set[WorkerId]], Placed | None],
        patience: Patience | None = None,
    ) -> Placed:
        """A place in its turn. Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, AskAnew, and what
        `patience` and `seat` raise."""
        with self._space.taken(ticket, self.retry_after):
            waiter = Waiter(ticket, seat, asyncio.get_running_loop().create_future())
            self._waiting.enter(waiter)
            placed: Placed | None = None
            try:
                self.waits(ticket)
                if self.rules.passed_max:
                    self.room_made()  # Those before it may wait for other workers than this one.
                async with self._patience(ticket, patience):
                    placed = await waiter.turn
                return placed
            finally:
                if placed is None:
                    self._leave(waiter)

    async def wait_with_all(
        self, ticket: Ticket, turn: Callable[[], Awaitable[Placed]], patience: Patience | None = None
    ) -> Placed:
        """A turn that all gateways together give. Raises what `wait` raises, and what `turn` does."""
        with self._space.taken(ticket, self.retry_after):
            self._elsewhere[ticket.number] = ticket
            try:
                async with self._patience(ticket, patience):
                    placed = await turn()
                self._gave(ticket)
                return placed
            finally:
                del self._elsewhere[ticket.number]

    def waits(self, ticket: Ticket) -> None:
        """It does not have its turn at once."""
        self._space.waits(ticket)

    @property
    def standing_since(self) -> float | None:
        """Somebody has waited without a break."""
        return self._space.standing_since

    @property
    def classes(self) -> set[str]:
        """Those that have waited here."""
        return self._space.classes

    def waiting(self) -> Sequence[Ticket]:
        """Everybody who does."""
        return [*(waiter.ticket for waiter in self._waiting), *self._elsewhere.values()]

    def move(self) -> None:
        """The queue is kept elsewhere from now on: sends everybody there."""
        self.close(AskAnew())

    def adopt(self, tenant: str, virtual_time: float, finish: float) -> None:
        """See RoomCounters."""
        self._counters.adopt(tenant, virtual_time, finish)

    def debts(self) -> dict[str, float]:
        """See RoomCounters."""
        return self._counters.debts()

    def room_made(self, turns_max: int | None = None) -> bool:
        """Gives out what room there is now, in the order of the policy. `turns_max`: not more. Was there any?"""
        given, passed, closed = 0, 0, set[WorkerId]()
        line: FlowHeads | None = None
        while (
            given != turns_max
            and self._waiting
            and self._first()
            and self._room_left(closed, self._waiting.least_tokens())
        ):
            if line is None:
                line = FlowHeads(
                    self._waiting.for_a_turn(),
                    self.rules.order,
                    self._clock(),
                    passed_of_flow_max=self.rules.passed_of_flow_max,
                )
            turn = self._counters.next(line.heads, self._clock())
            if turn is None:
                break
            waiter = self._waiting.of(turn.ticket)
            try:
                placed = self._seated(partial(waiter.seat, closed))
            except Exception as err:  # noqa: BLE001 - whatever its policy raises is a matter of this request alone
                line.take(turn.ticket)
                self._waiting.remove(waiter)
                waiter.turn.set_exception(err)
                continue
            if placed is None:
                passed += 1
                line.pass_over(turn.ticket)
                if passed > self.rules.passed_max:
                    break
                continue
            line.take(turn.ticket)
            self._waiting.remove(waiter)
            self._granted(turn)
            waiter.turn.set_result(placed)
            given += 1
        return given > 0

    def close(self, error: Exception) -> None:
        """Sends everybody away."""
        self._waiting.fail(error)

    def retry_after(self, tenant: str | None = None) -> float:
        """When to come back: once what waits has had its turn; of one tenant, what it has waiting, at its share."""
        now, waiting = self._clock(), self.waiting()
        units, rate = sum(ticket.cost for ticket in waiting), self._drained.per_second(now)
        weights = {ticket.tenant: ticket.weight for ticket in waiting}
        if tenant in weights:
            units = sum(ticket.cost for ticket in waiting if ticket.tenant == tenant)
            rate *= weights[tenant] / sum(weights.values())
        return retry_after_seconds(units, rate, self.rules.waiting_seconds_max)

    @asynccontextmanager
    async def _patience(self, ticket: Ticket, patience: Patience | None) -> AsyncIterator[None]:
        """For as long as it may wait, since it came. Raises AdmissionTimeout, or what is over sooner."""
        seconds = self.rules.waiting_seconds_max
        longest = Patience(ticket.arrived_at + seconds, lambda retry: AdmissionTimeout(seconds, retry))
        if patience is not None and patience.until < longest.until:
            longest = patience
        try:
            async with asyncio.timeout(longest.until - self._clock()):
                yield
        except TimeoutError:
            raise longest.over(self.retry_after()) from None

    def _leave(self, waiter: Waiter[Placed]) -> None:
        """Out of the queue; a turn that came in the same moment is given back."""
        self._waiting.remove(waiter)
        if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
            self._unseat(waiter.turn.result())
        # Whoever stood behind may fit where this one did not.
        self.room_made()

    def _seated(self, seat: Callable[[], Placed | None]) -> Placed | None:
        try:
            return seat()
        except NowhereToGo:
            raise NoWorker(self.model) from None

    def _granted(self, turn: QueueTurn) -> None:
        self._counters.gave(turn)
        self._gave(turn.ticket)

    def _gave(self, ticket: Ticket) -> None:
        now = self._clock()
        self._drained.record(now, ticket.cost)
        self.account.record(ticket.tenant, ticket.weight, ticket.cost, now)
