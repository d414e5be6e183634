"""Queue policy `sfq`, start-time fair queueing: each tenant gets its weight's share of the work.

    start S = max(v, F)      v: start tag of the turn given last      F: finish tag of the tenant's previous turn
    finish F = S + cost / weight (cost units)                         the smallest start tag goes next

The shares hold whatever the workers' speed.

A tag is made when the turn is given, so a cost may be an estimate: a correction shifts F, and with it the tenant's
next turn. A tenant that was idle is lifted to v: idle time earns no credit. For two tenants that wait all the
time,

    |W1/w1 - W2/w2| <= c1/w1 + c2/w2                  of work given out
    |W1/w1 - W2/w2| <= (D + 1) (c1/w1 + c2/w2)        of actual work, D requests at a time with the workers

W1, W2: work received      w1, w2: weights      c1, c2: largest cost of one request (all in cost units)

Sources: Goyal, Vin, Cheng: Start-time fair queuing (SIGCOMM 1996); Jin, Chase, Kaur: Interposed proportional
sharing for a storage service utility (SIGMETRICS 2004), SFQ(D).

The weight is that of the tenant's plan; queued_request of gateway/dispatch/acquisition/request_ranking.py puts it
on the ticket. gateway/queueing/shared/lua/tenants.lua repeats this arithmetic in Redis; a property test holds both
to the same turns. Equal start tags are decided by the tickets' level and number here, and by their number alone
there.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import QueueCounters, QueueOptions, QueueTurn, Ticket


class Sfq:
    """The policy `sfq`.

    `QueueCounters.tags` has the finish tag F of each tenant, which is the start tag of its next turn unless v is
    larger: `arrive` has lifted it to v then. `QueueCounters.virtual_time` is v.
    """

    name: ClassVar[str] = "sfq"
    options_type: ClassVar[type[QueueOptions]] = QueueOptions

    def __init__(self, options: QueueOptions) -> None:
        self.options = options

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        """Lift a tenant that was idle to the virtual time."""
        finish = counters.tags.get(ticket.tenant)
        if finish is not None and finish >= counters.virtual_time:
            return counters
        if any(other.tenant == ticket.tenant for other in waiting):
            return counters
        return counters.with_tags({ticket.tenant: counters.virtual_time})

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Give the turn to the tenant with the smallest start tag."""
        if not waiting:
            return None
        tags, virtual_time = counters.tags, counters.virtual_time
        ticket = waiting[0]
        if len(waiting) > 1:
            ticket = min(waiting, key=lambda one: (tags.get(one.tenant, virtual_time), one.level, one.number))
        start = tags.get(ticket.tenant, virtual_time)
        return QueueTurn(
            ticket=ticket,
            counters=counters.with_tags(
                {ticket.tenant: start + ticket.cost / ticket.weight},
                virtual_time=max(virtual_time, start),
            ),
        )

    def correct(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        """Shift the tenant's finish tag by the cost that was not foreseen."""
        finish = counters.tags.get(ticket.tenant, counters.virtual_time)
        return counters.with_tags({ticket.tenant: finish + cost_change / ticket.weight})
