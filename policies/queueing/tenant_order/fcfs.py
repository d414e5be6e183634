"""Tenant order `fcfs`: first come, first served inside a tenant."""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import Ticket


class Fcfs:
    """The tenant order `fcfs`."""

    name: ClassVar[str] = "fcfs"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        """Return the ticket that arrived first."""
        return min(waiting, key=lambda ticket: ticket.number)
