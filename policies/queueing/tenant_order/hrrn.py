"""Highest response ratio next inside a tenant: short prompts first, but whoever waits grows.

    ratio = (waited + own time) / own time, own time in proportion to the uncached prompt tokens

Nearly the mean wait of shortest first, and nobody starves: a ticket is never overtaken by a later one that is as
large, and a ticket of u tokens that has waited t is overtaken by one of x tokens only if that has waited more than
t x / u. Brinch Hansen (1973); SGLang orders its queue so as well.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import Ticket


class Hrrn:
    name: ClassVar[str] = "hrrn"

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        # A plain loop: hundreds may wait, for every turn, and a key for each takes four times as long.
        best, most, least_size = waiting[0], -1.0, 0
        for ticket in waiting:
            size = ticket.uncached_tokens or 1
            ratio = (now - ticket.arrived_at) / size
            if ratio < 0.0:
                ratio = 0.0
            if ratio > most or (ratio == most and (size, ticket.number) < (least_size, best.number)):
                best, most, least_size = ticket, ratio, size
        return best
