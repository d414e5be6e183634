"""Virtual token counter: the tenant that has received least goes.

Each tenant has a counter of the work it received over its weight. A tenant that was idle is lifted to the least
counter among those who wait, or, if nobody waits, to that of the tenant whose turn was the last: idleness is not
banked. Charged at the estimate when the turn is given and settled at the end, where the paper counts tokens as they
come. For two tenants that wait all the time, what they received differs by at most 2U, and by what the workers'
window holds besides (U: largest cost over weight).

Sheng et al.: Fairness in Serving Large Language Models (OSDI 2024).
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import QueueCounters, QueueOptions, Ticket, Turn


class Vtc:
    """`QueueCounters.virtual_time` is the counter of the tenant that went last."""

    name: ClassVar[str] = "vtc"
    options_type: ClassVar[type[QueueOptions]] = QueueOptions

    def __init__(self, options: QueueOptions) -> None:
        self.options = options

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        tags, last = counters.tags, counters.virtual_time
        if any(other.tenant == ticket.tenant for other in waiting):
            return counters
        level = min((tags.get(other.tenant, last) for other in waiting), default=last)
        return counters.moved({ticket.tenant: max(tags.get(ticket.tenant, level), level)})

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> Turn | None:
        if not waiting:
            return None
        tags, last = counters.tags, counters.virtual_time

        def order(ticket: Ticket) -> tuple[float, int, int]:
            return tags.get(ticket.tenant, last), ticket.level, ticket.number

        ticket = min(waiting, key=order)
        before = tags.get(ticket.tenant, last)
        after = before + ticket.cost / ticket.weight
        return Turn(ticket=ticket, counters=counters.moved({ticket.tenant: after}, virtual_time=after))

    def settle(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        received = counters.tags.get(ticket.tenant, counters.virtual_time)
        return counters.moved({ticket.tenant: received + cost_change / ticket.weight})
