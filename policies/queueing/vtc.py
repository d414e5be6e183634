"""Queue policy `vtc`, virtual token counter: the tenant that has received least work goes.

    next    the tenant with the least counter
    charge  counter += cost / weight (cost units)        when the turn is given
    lift    counter = max(counter, least counter of the waiting tenants)        when an idle tenant sends again

If no tenant waits, the counter of the tenant that went last is used as the least: idle time earns no credit. A turn
is charged at its estimate and corrected at the end, where the paper counts tokens as they come. For two tenants
that wait all the time, what they received differs by at most 2U, and by what the workers' window holds besides (U:
largest cost over weight).

Source: Sheng et al.: Fairness in Serving Large Language Models (OSDI 2024).
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import QueueCounters, QueueOptions, QueueTurn, Ticket


class Vtc:
    """The policy `vtc`.

    `QueueCounters.tags` are the counters by tenant; `QueueCounters.virtual_time` is the counter of the tenant that
    went last.
    """

    name: ClassVar[str] = "vtc"
    options_type: ClassVar[type[QueueOptions]] = QueueOptions

    def __init__(self, options: QueueOptions) -> None:
        self.options = options

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        """Lift a tenant that was idle to the least counter of those that wait."""
        tags, last = counters.tags, counters.virtual_time
        if any(other.tenant == ticket.tenant for other in waiting):
            return counters
        level = min((tags.get(other.tenant, last) for other in waiting), default=last)
        return counters.with_tags({ticket.tenant: max(tags.get(ticket.tenant, level), level)})

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Give the turn to the tenant with the least counter."""
        if not waiting:
            return None
        tags, last = counters.tags, counters.virtual_time

        def order(ticket: Ticket) -> tuple[float, int, int]:
            return tags.get(ticket.tenant, last), ticket.level, ticket.number

        ticket = min(waiting, key=order)
        before = tags.get(ticket.tenant, last)
        after = before + ticket.cost / ticket.weight
        return QueueTurn(
            ticket=ticket, counters=counters.with_tags({ticket.tenant: after}, virtual_time=after)
        )

    def correct(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        """Correct the tenant's counter by the cost that was not foreseen."""
        received = counters.tags.get(ticket.tenant, counters.virtual_time)
        return counters.with_tags({ticket.tenant: received + cost_change / ticket.weight})
