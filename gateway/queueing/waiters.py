"""The requests in a waiting room, each with the turn that it waits for.

enter --> waits --taken out: its turn, or its refusal, comes--> gone
            |
            +--cancelled: stays until its task runs, and can use no turn--> remove
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from policies.admission.closed_workers import ClosedWorkers
from policies.queueing.estimate_ages import EstimateAges
from policies.queueing.flow_heads import Flow, flow_of
from policies.queueing.protocol import Ticket

Placed = TypeVar("Placed")
"""What a turn gives: a placement on a worker."""


@dataclass(slots=True)
class Waiter(Generic[Placed]):
    """One request in a waiting room."""

    ticket: Ticket
    place: Callable[[ClosedWorkers], Placed | None]
    """Returns a placement if there is room now, None if there is none; raises what ends the wait.

    It gets the workers that requests before this one wait for, and adds those that this request waits for.
    """
    turn: "asyncio.Future[Placed]"
    estimate: Callable[[], Ticket] | None = None
    """Returns the ticket with the tokens and the cost as of now, or the same one; None: it stays as on arrival."""


class Waiters(Generic[Placed]):
    """All requests in a waiting room, in the order in which they came."""

    def __init__(self) -> None:
        self.by_number: dict[int, Waiter[Placed]] = {}
        """By the number of their ticket."""
        self.flows: dict[Flow, dict[int, Ticket]] = {}
        """The tickets of each flow by their numbers."""
        self.ages = EstimateAges[int]()
        """How old the estimates of the tickets are, by their number."""
        self._sizes: Counter[int] = Counter()
        """How many waiters have so many uncached prompt tokens."""
        self._least: int | None = None  # None: not known

    def __len__(self) -> int:
        return len(self.by_number)

    def __iter__(self) -> Iterator[Waiter[Placed]]:
        return iter(self.by_number.values())

    def of(self, ticket: Ticket) -> Waiter[Placed]:
        """Return the waiter that has this ticket."""
        return self.by_number[ticket.number]

    def enter(self, waiter: Waiter[Placed], now: float) -> None:
        """Add a waiter."""
        ticket = waiter.ticket
        self.by_number[ticket.number] = waiter
        self.flows.setdefault(flow_of(ticket), {})[ticket.number] = ticket
        if waiter.estimate is not None:
            self.ages.add(ticket.number, now)
        self._count(ticket, 1)

    def remove(self, waiter: Waiter[Placed]) -> None:
        """Remove a waiter. Removing it twice has no effect."""
        ticket = waiter.ticket
        if self.by_number.pop(ticket.number, None) is None:
            return
        flow = self.flows[flow_of(ticket)]
        del flow[ticket.number]
        if not flow:
            del self.flows[flow_of(ticket)]
        self.ages.remove(ticket.number)
        self._count(ticket, -1)

    def refuse(self, waiter: Waiter[Placed], error: Exception) -> None:
        """Remove a waiter and end its wait with this error."""
        self.remove(waiter)
        waiter.turn.set_exception(error)

    def change(self, waiter: Waiter[Placed], ticket: Ticket) -> None:
        """Give a waiter a ticket with the same number and other tokens."""
        self._count(waiter.ticket, -1)
        self._count(ticket, 1)
        waiter.ticket = ticket
        self.flows[flow_of(ticket)][ticket.number] = ticket

    def fail(self, error: Exception) -> None:
        """End every wait with this error."""
        for waiter in self:
            if not waiter.turn.done():
                waiter.turn.set_exception(error)
            self.ages.remove(waiter.ticket.number)
        self.by_number.clear()
        self.flows.clear()
        self._sizes.clear()
        self._least = None

    def one_of_each_flow(self) -> list[Ticket]:
        """Return one ticket of each flow that can use a turn: its task was not cancelled."""
        waiters = self.by_number
        found = (
            next((each for number, each in tickets.items() if not waiters[number].turn.done()), None)
            for tickets in self.flows.values()
        )
        return [ticket for ticket in found if ticket is not None]

    def least_tokens(self) -> int:
        """Return the fewest uncached prompt tokens of any waiter; there is at least one."""
        if self._least is None:
            self._least = min(self._sizes)
        return self._least

    def _count(self, ticket: Ticket, change: int) -> None:
        size = ticket.uncached_tokens
        left = self._sizes[size] = self._sizes[size] + change
        if not left:
            del self._sizes[size]
            if size == self._least:
                self._least = None
        elif self._least is not None and size < self._least:
            self._least = size
