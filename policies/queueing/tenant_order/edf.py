"""Tenant order `edf`, earliest deadline first, of the deadlines that can still be met.

On one server this order meets all deadlines if any order does (Jackson 1955; Liu, Layland 1973). Under overload it
would serve a request that is late already and so make the next one late: a request with a passed deadline goes
after the others. Requests without a deadline are in no hurry and go last of these, in the order
of arrival.
"""

from collections.abc import Sequence
from math import inf
from typing import ClassVar

from policies.queueing.protocol import Ticket


class Edf:
    """The tenant order `edf`."""

    name: ClassVar[str] = "edf"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        """Return the ticket with the earliest deadline that has not passed."""

        def order(ticket: Ticket) -> tuple[bool, float, int]:
            deadline = inf if ticket.deadline is None else ticket.deadline
            return deadline < now, deadline, ticket.number

        return min(waiting, key=order)
