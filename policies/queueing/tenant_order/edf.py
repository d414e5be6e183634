"""Earliest deadline first inside a tenant, of those that can still be met.

On one server it meets all deadlines if any order does (Jackson 1955; Liu, Layland 1973). Under overload it would
serve who is late already and so make the next one late: who cannot be met any more goes after who can. Without a
deadline there is no hurry, and those go last, in their order.
"""

from collections.abc import Sequence
from math import inf
from typing import ClassVar

from policies.queueing.protocol import Ticket


class Edf:
    name: ClassVar[str] = "edf"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        def order(ticket: Ticket) -> tuple[bool, float, int]:
            deadline = inf if ticket.deadline is None else ticket.deadline
            return deadline < now, deadline, ticket.number

        return min(waiting, key=order)
