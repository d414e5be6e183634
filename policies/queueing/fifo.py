"""First come, first served, whoever they are: the baseline, fair to nobody in particular."""

from collections.abc import Sequence
from typing import ClassVar

from policies.queueing.protocol import QueueCounters, QueueOptions, Ticket, Turn


class Fifo:
    name: ClassVar[str] = "fifo"
    options_type: ClassVar[type[QueueOptions]] = QueueOptions

    def __init__(self, options: QueueOptions) -> None:
        self.options = options

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        return counters

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> Turn | None:
        if not waiting:
            return None
        return Turn(ticket=min(waiting, key=lambda ticket: ticket.number), counters=counters)

    def settle(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        return counters
