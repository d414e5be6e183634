"""Tenant order `hrrn`, highest response ratio next: short prompts first, but every request rises while it waits.

    ratio = (waited + own time) / own time         own time: in proportion to the uncached prompt tokens

The mean wait is nearly that of shortest first, and no request starves: a ticket is never overtaken by a later one
that is as large, and a ticket of u tokens that has waited t is overtaken by one of x tokens only if that has waited
more than t x / u.

Source: Brinch Hansen (1973); SGLang orders its queue so as well.
"""

from collections.abc import Sequence
from math import inf
from typing import ClassVar

from policies.queueing.protocol import Ticket


class Hrrn:
    """The tenant order `hrrn`."""

    name: ClassVar[str] = "hrrn"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        """Return the ticket with the highest response ratio; of equal ones the smallest, then the oldest."""
        # A plain loop: hundreds may wait, for every turn, and min() with a key takes four times as long.
        best, most, least_size, oldest = waiting[0], -1.0, 0, inf
        for ticket in waiting:
            size, arrived_at = ticket.uncached_tokens or 1, ticket.arrived_at
            if size >= least_size and arrived_at > oldest:
                continue  # It is as large as the best one, and came later.
            ratio = (now - arrived_at) / size
            if ratio < 0.0:
                ratio = 0.0
            if ratio > most or (ratio == most and (size, ticket.number) < (least_size, best.number)):
                best, most, least_size, oldest = ticket, ratio, size, arrived_at
        return best
