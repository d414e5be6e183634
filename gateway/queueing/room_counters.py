"""What the tenants of a waiting room have received, as its policy counts it.

    arrives --> counters --next--> turn --gave--> counters --settle--> counters
                   ^                                            |
      adopt: as they stand in the queue of all gateways         debts: what was given here since

A policy keeps no state; its counters are these. Another policy begins with new ones, which know of those who had
their turn before only that it was not theirs to give.
"""

from collections.abc import Iterable, Sequence

from policies.queueing.protocol import QueueCounters, QueuePolicy, Ticket, Turn


class RoomCounters:
    """`counted_from`: tickets before that number had their turn from another policy; not those `carried` over."""

    def __init__(self, policy: QueuePolicy, counted_from: int = 0, carried: Iterable[Ticket] = ()) -> None:
        self._policy = policy
        self._now = self._adopted = QueueCounters()
        self._counted_from = counted_from
        self._carried = {ticket.number for ticket in carried}

    def arrives(self, ticket: Ticket, waiting: Sequence[Ticket]) -> None:
        """A ticket joins those who wait."""
        self._now = self._policy.arrive(self._now, ticket, waiting)

    def next(self, heads: Sequence[Ticket], now: float) -> Turn | None:
        """Who would go now; nothing is counted before `gave`."""
        return self._policy.next(self._now, heads, now)

    def gave(self, turn: Turn) -> None:
        """It was taken, and nothing was counted since it was asked for."""
        self._now = turn.counters

    def settle(self, ticket: Ticket, cost_change: float) -> None:
        """What a request that had its turn used differs from its cost by so much."""
        if ticket.number < self._counted_from and ticket.number not in self._carried:
            return  # The counters in which it was charged are gone.
        self._carried.discard(ticket.number)
        self._now = self._policy.settle(self._now, ticket, cost_change)

    def adopt(self, tenant: str, virtual_time: float, finish: float) -> None:
        """Where a tenant stands in the queue of all gateways, should this one have to go on alone."""
        passed = max(virtual_time, self._now.virtual_time)
        self._now = self._adopted = self._now.moved({tenant: finish}, virtual_time=passed)

    def debts(self) -> dict[str, float]:
        """By tenant: how much further it is ahead of the virtual time than it was when its tag was adopted."""
        ahead = {
            tenant: _ahead(self._now, tenant) - _ahead(self._adopted, tenant) for tenant in self._now.tags
        }
        return {tenant: debt for tenant, debt in ahead.items() if debt > 0}


def _ahead(counters: QueueCounters, tenant: str) -> float:
    return max(0.0, counters.tags.get(tenant, 0.0) - counters.virtual_time)
