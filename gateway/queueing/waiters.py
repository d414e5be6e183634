"""Those who stand in a waiting room, each with the turn that it waits for.

enter --> stands --taken out: its turn, or its refusal, comes--> gone
            |
            +--cancelled: stands until its task runs, and has no use for a turn--> remove
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from policies.queueing.protocol import Ticket
from radix_cache.match import WorkerId

Placed = TypeVar("Placed")


@dataclass(slots=True)
class Waiter(Generic[Placed]):
    """`seat` gives a place if there is room now, None if there is none; it raises what ends the wait.

    It gets the workers that somebody waits for who goes before it, and adds those that it waits for itself.
    """

    ticket: Ticket
    seat: Callable[[set[WorkerId]], Placed | None]
    turn: "asyncio.Future[Placed]"


class Waiters(Generic[Placed]):
    """In the order in which they came."""

    def __init__(self) -> None:
        self._waiters: dict[int, Waiter[Placed]] = {}
        self._least: int | None = None  # None: not known

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter[Placed]]:
        return iter(self._waiters.values())

    def of(self, ticket: Ticket) -> Waiter[Placed]:
        return self._waiters[ticket.number]

    def enter(self, waiter: Waiter[Placed]) -> None:
        self._waiters[waiter.ticket.number] = waiter
        if self._least is not None:
            self._least = min(self._least, waiter.ticket.uncached_tokens)

    def remove(self, waiter: Waiter[Placed]) -> None:
        """Removing twice is removing once."""
        if self._waiters.pop(waiter.ticket.number, None) and waiter.ticket.uncached_tokens == self._least:
            self._least = None

    def fail(self, error: Exception) -> None:
        """All of them go."""
        for waiter in self:
            if not waiter.turn.done():
                waiter.turn.set_exception(error)
        self._waiters.clear()
        self._least = None

    def for_a_turn(self) -> list[Ticket]:
        """Of those who have a use for one."""
        return [waiter.ticket for waiter in self if not waiter.turn.done()]

    def least_tokens(self) -> int:
        """Uncached prompt tokens of the one with the fewest; there is one."""
        if self._least is None:
            self._least = min(waiter.ticket.uncached_tokens for waiter in self)
        return self._least
