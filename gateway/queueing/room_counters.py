"""Counters of a waiting room: the work that its tenants have received, as its queue policy counts it.

    arrives --> counters --next--> turn --granted--> counters --correct--> counters
                   ^                                               |
      adopt: as they stand in the queue of all gateways            debts: what was given here since

A policy keeps no state; its counters are kept here. Another policy begins with new counters.
"""

from collections.abc import Iterable, Sequence

from policies.queueing.protocol import QueueCounters, QueuePolicy, QueueTurn, Ticket


class RoomCounters:
    """The counters of one queue policy in one waiting room."""

    def __init__(self, policy: QueuePolicy, counted_from: int = 0, carried: Iterable[Ticket] = ()) -> None:
        """Count tickets from number `counted_from` on, and those `carried` over from the policy before."""
        self._policy = policy
        self._now = self._adopted = QueueCounters()
        self._counted_from = counted_from
        self._carried = {ticket.number for ticket in carried}

    def arrives(self, ticket: Ticket, waiting: Sequence[Ticket]) -> None:
        """Let a ticket join the waiting ones."""
        self._now = self._policy.arrive(self._now, ticket, waiting)

    def next(self, heads: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Return the turn that would be given now; nothing is counted before `granted`."""
        return self._policy.next(self._now, heads, now)

    def granted(self, turn: QueueTurn) -> None:
        """Count a turn that was taken; nothing was counted since it was returned by `next`."""
        self._now = turn.counters

    def correct(self, ticket: Ticket, cost_change: float) -> None:
        """Correct the cost of a request that had its turn by this many units."""
        if ticket.number < self._counted_from:
            if ticket.number not in self._carried:
                return  # The counters that it was charged in are gone.
            self._carried.discard(ticket.number)
        self._now = self._policy.correct(self._now, ticket, cost_change)

    def adopt(self, tenant: str, virtual_time: float, finish: float) -> None:
        """Take over a tenant's tag from the queue of all gateways, in case this gateway has to give turns alone."""
        latest = max(virtual_time, self._now.virtual_time)
        self._now = self._adopted = self._now.with_tags({tenant: finish}, virtual_time=latest)

    def debts(self) -> dict[str, float]:
        """Return by tenant how much further ahead of the virtual time it is than when its tag was adopted."""
        ahead = {
            tenant: _ahead(self._now, tenant) - _ahead(self._adopted, tenant) for tenant in self._now.tags
        }
        return {tenant: debt for tenant, debt in ahead.items() if debt > 0}


def _ahead(counters: QueueCounters, tenant: str) -> float:
    return max(0.0, counters.tags.get(tenant, 0.0) - counters.virtual_time)
