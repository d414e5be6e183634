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
        def order(ticket: Ticket) -> tuple[float, int, int]:
            size = max(1, ticket.uncached_tokens)
            return -max(0.0, now - ticket.arrived_at) / size, size, ticket.number

        return min(waiting, key=order)
