"""First come, first served inside a tenant."""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import Ticket


class Fcfs:
    name: ClassVar[str] = "fcfs"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        return min(waiting, key=lambda ticket: ticket.number)
