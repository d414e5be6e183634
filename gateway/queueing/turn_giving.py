"""The giving of turns in a waiting room: while workers have room, requests go in the order of the queue policy.

    give_turns  gives the next turn to the tenant that the queue policy names (`next` of policies/queueing/sfq.py by
                default, through RoomCounters); its request has its placement before its task runs, so that no later
                arrival can take it
    pass over   a request that would rather wait for a worker that has its prompt cached than go to a free worker
                keeps its place in the order, and no other request takes that worker; others may go to the free one
    at_once     a request that arrives where none waits gets its turn without waiting

Code that makes room (a first token, an end, a worker that is back) calls `give_turns`; nothing polls.
"""

from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Generic

from gateway.queueing.received_work import ReceivedWork
from gateway.queueing.room_counters import RoomCounters
from gateway.queueing.room_occupancy import RoomOccupancy
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.waiters import Placed, Waiter, Waiters
from policies.admission.closed_workers import ClosedWorkers
from policies.queueing.flow_heads import FlowHeads
from policies.queueing.protocol import QueueTurn, Ticket
from radix_cache.match import WorkerId


class _Outcome(Enum):
    """What became of a request whose turn it could be."""

    PLACED = auto()
    """It has its placement."""
    PASSED_OVER = auto()
    """It waits on, for room or for a worker of its own."""
    GONE = auto()
    """It can have no turn: its client has left, or its ranking raised an error."""


class TurnGiving(Generic[Placed]):
    """Gives the requests of one waiting room their turns."""

    def __init__(
        self,
        rules: RoomRules,
        occupancy: RoomOccupancy,
        received: ReceivedWork,
        clock: Callable[[], float],
        *,
        may_give_turns: Callable[[], bool] | None,
        has_room: Callable[[set[WorkerId], int], bool],
        full_workers: Callable[[], Collection[WorkerId] | None],
    ) -> None:
        """Make the giving of turns of an empty room; the callables are those of WaitingRoom."""
        self.rules = rules
        self.waiters = Waiters[Placed]()
        """The requests that this gateway gives their turns."""
        self.counters = RoomCounters(rules.policy)
        """What tenants received, as the policy counts it."""
        self._occupancy = occupancy
        self._received = received
        self._clock = clock
        self._may_give_turns = may_give_turns
        self._has_room = has_room
        self._full_workers = full_workers

    @property
    def may_give_turns(self) -> bool:
        """Whether this room may give turns now; false while requests in another room go before those here."""
        return self._may_give_turns is None or self._may_give_turns()

    def at_once(self, ticket: Ticket, place: Callable[[], Placed | None]) -> Placed | None:
        """Return a placement without waiting, if there is room and no request was here before.

        Raises what `place` raises.
        """
        if self.waiters.by_number or not (self._may_give_turns is None or self._may_give_turns()):
            return None
        now = self._clock()
        turn = self.counters.next((ticket,), now)
        if turn is None:
            return None
        placed = place()
        if placed is not None:
            self._granted(turn, now)
        return placed

    def give_turns(self, turns_max: int | None = None) -> bool:
        """Give out what room there is now, in the order of the policy, and return whether there was any.

        A request that would rather wait for its own worker is passed over. `turns_max` bounds how many turns are
        given.
        """
        closed = ClosedWorkers()
        if turns_max == 0 or not self._may_have_room(closed):
            return False
        self._estimate_one()
        full = self._full_workers()
        own_workers, heads = full is not None, self._heads(full or ())
        given = passed_over = 0
        while (turn := self.counters.next(heads.heads, self._clock())) is not None:
            outcome = self._look(self.waiters.of(turn.ticket), turn, closed)
            if outcome is _Outcome.PASSED_OVER:
                heads.pass_over(turn.ticket)
                passed_over += 1
                if own_workers:
                    heads.leave_out(closed)
            else:
                given += outcome is _Outcome.PLACED
                heads.take(turn.ticket)
                if own_workers:
                    heads.leave_out(self._full_workers() or ())
            if (
                given == turns_max
                or passed_over > self.rules.passed_over_max
                or not self._may_have_room(closed)
            ):
                break
        return given > 0

    def _may_have_room(self, closed: ClosedWorkers) -> bool:
        """Return whether a request here may get its turn now, on a worker that is not closed."""
        return (
            bool(self.waiters.by_number)
            and self.may_give_turns
            and self._has_room(closed, self.waiters.least_tokens())
        )

    def _heads(self, full: Collection[WorkerId]) -> FlowHeads:
        """Return the requests that go first, of each tenant and class; none that waits for a full worker."""
        return FlowHeads(
            self.waiters.flows,
            self.rules.order,
            self._clock(),
            passed_over_of_flow_max=self.rules.passed_over_of_flow_max,
            without=full,
        )

    def _estimate_one(self) -> None:
        """Bring the ticket up to date that was estimated longest ago, if that is long ago."""
        number = self.waiters.ages.take_due(self._clock())
        waiter = self.waiters.by_number[number] if number is not None else None
        if waiter is None or waiter.estimate is None or waiter.turn.done():
            return
        try:
            ticket = waiter.estimate()
        except Exception as err:  # noqa: BLE001 - what its routing policy raises concerns this request alone
            self.waiters.refuse(waiter, err)
            return
        if ticket is not waiter.ticket:
            self._occupancy.correct(waiter.ticket, ticket)
            self.waiters.change(waiter, ticket)

    def _look(self, waiter: Waiter[Placed], turn: QueueTurn, closed: ClosedWorkers) -> _Outcome:
        """Give a request its placement if there is room for it, and return what became of the request."""
        if waiter.turn.done():  # Its task was cancelled.
            self.waiters.remove(waiter)
            return _Outcome.GONE
        try:
            placed = waiter.place(closed)
        except Exception as err:  # noqa: BLE001 - what its routing policy raises concerns this request alone
            self.waiters.refuse(waiter, err)
            return _Outcome.GONE
        if placed is None:
            return _Outcome.PASSED_OVER
        self.waiters.remove(waiter)
        self._granted(turn, self._clock())
        waiter.turn.set_result(placed)
        return _Outcome.PLACED

    def _granted(self, turn: QueueTurn, now: float) -> None:
        """Count the work of a request that has its turn."""
        self.counters.granted(turn)
        self._received.record(turn.ticket, now)
