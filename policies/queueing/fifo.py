"""Queue policy `fifo`, the baseline: first come, first served across all tenants, with no fairness among them."""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import QueueCounters, QueueOptions, QueueTurn, Ticket


class Fifo:
    """The policy `fifo`."""

    name: ClassVar[str] = "fifo"
    options_type: ClassVar[type[QueueOptions]] = QueueOptions

    def __init__(self, options: QueueOptions) -> None:
        self.options = options

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        """Return the counters unchanged: the order needs none."""
        return counters

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Give the turn to the ticket that arrived first."""
        if not waiting:
            return None
        return QueueTurn(ticket=min(waiting, key=lambda ticket: ticket.number), counters=counters)

    def correct(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        """Return the counters unchanged: the order needs none."""
        return counters
