"""The requests that stand in a waiting room, each with the turn that it waits for.

enter --> stands --taken out: its turn, or its refusal, comes--> gone
            |
            +--cancelled: stands until its task runs, and can use no turn--> remove
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from policies.admission.dispatch_window import ClosedWorkers
from policies.queueing.estimate_ages import EstimateAges
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
        self.ages = EstimateAges[int]()
        """How old the estimates of the tickets are, by their number."""
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
        self.by_number[waiter.ticket.number] = waiter
        if waiter.estimate is not None:
            self.ages.add(waiter.ticket.number, now)
        if self._least is not None:
            self._least = min(self._least, waiter.ticket.uncached_tokens)

    def remove(self, waiter: Waiter[Placed]) -> None:
        """Remove a waiter. Removing it twice has no effect."""
        if self.by_number.pop(waiter.ticket.number, None) is None:
            return
        self.ages.remove(waiter.ticket.number)
        if waiter.ticket.uncached_tokens == self._least:
            self._least = None

    def refuse(self, waiter: Waiter[Placed], error: Exception) -> None:
        """Remove a waiter and end its wait with this error."""
        self.remove(waiter)
        waiter.turn.set_exception(error)

    def change(self, waiter: Waiter[Placed], ticket: Ticket) -> None:
        """Give a waiter a ticket with the same number and other tokens."""
        waiter.ticket, self._least = ticket, None

    def fail(self, error: Exception) -> None:
        """End every wait with this error."""
        for waiter in self:
            if not waiter.turn.done():
                waiter.turn.set_exception(error)
            self.ages.remove(waiter.ticket.number)
        self.by_number.clear()
        self._least = None

    def for_a_turn(self) -> list[Ticket]:
        """Return the tickets that can use a turn: their tasks were not cancelled."""
        return [waiter.ticket for waiter in self.by_number.values() if not waiter.turn.done()]

    def least_tokens(self) -> int:
        """Return the fewest uncached prompt tokens of any waiter; there is at least one."""
        if self._least is None:
            self._least = min(waiter.ticket.uncached_tokens for waiter in self)
        return self._least
