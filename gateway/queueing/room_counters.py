"""Counters of a waiting room: the work that its tenants have received, as its queue policy counts it.

    arrives --> counters --next--> turn --granted--> counters --correct--> counters
                   ^                                               |
      adopt: as they stand in the queue of all gateways            debts: what was given here since

A policy keeps no state; its counters are kept here. Another policy begins with new counters.

The tags are changed in place: what a request costs does not depend on the number of tenants.
"""

from collections.abc import Iterable, Mapping, Sequence

from policies.queueing.noted_counters import NotedCounters
from policies.queueing.protocol import (
    TAGS_MAX,
    QueueCounters,
    QueuePolicy,
    QueueTurn,
    Ticket,
    highest_tags,
)


class RoomCounters:
    """The counters of one queue policy in one waiting room."""

    def __init__(self, policy: QueuePolicy, counted_from: int = 0, carried: Iterable[Ticket] = ()) -> None:
        """Count tickets from number `counted_from` on, and those `carried` over from the policy before."""
        self._policy = policy
        self._tags: dict[str, float] = {}
        self._now: QueueCounters = NotedCounters(tags=self._tags)
        self._adopted_time = 0.0
        self._adopted_tags: dict[str, float] = {}
        """Virtual time and tags when a tag was adopted last, of the tags that have changed since."""
        self._counted_from = counted_from
        self._carried = {ticket.number for ticket in carried}

    def arrives(self, ticket: Ticket, waiting: Sequence[Ticket]) -> None:
        """Let a ticket join the waiting ones."""
        counters = self._policy.arrive(self._now, ticket, waiting)
        if counters is not self._now:
            self._take(counters)

    def next(self, heads: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Return the turn that would be given now; nothing is counted before `granted`."""
        return self._policy.next(self._now, heads, now)

    def granted(self, turn: QueueTurn) -> None:
        """Count a turn that was taken; nothing was counted since it was returned by `next`."""
        self._take(turn.counters)

    def correct(self, ticket: Ticket, cost_change: float) -> None:
        """Correct the cost of a request that had its turn by this many units."""
        if ticket.number < self._counted_from:
            if ticket.number not in self._carried:
                return  # The counters that it was charged in are gone.
            self._carried.discard(ticket.number)
        self._take(self._policy.correct(self._now, ticket, cost_change))

    def adopt(self, tenant: str, virtual_time: float, finish: float) -> None:
        """Take over a tenant's tag from the queue of all gateways, in case this gateway has to give turns alone."""
        latest = max(virtual_time, self._now.virtual_time)
        self._take(self._now.with_tags({tenant: finish}, virtual_time=latest))
        self._adopted_time = latest
        self._adopted_tags.clear()

    def debts(self) -> dict[str, float]:
        """Return by tenant how much further ahead of the virtual time it is than when its tag was adopted."""
        time, before = self._now.virtual_time, self._adopted_time
        ahead = {
            tenant: max(0.0, tag - time) - max(0.0, self._adopted_tags.get(tenant, tag) - before)
            for tenant, tag in self._tags.items()
        }
        return {tenant: debt for tenant, debt in ahead.items() if debt > 0}

    def _take(self, counters: QueueCounters) -> None:
        """Take over the counters that the policy returned."""
        tags, adopted = self._tags, self._adopted_tags
        if isinstance(counters, NotedCounters) and counters.tags is tags:
            for name, tag in counters.changes.items():
                adopted.setdefault(name, tags.get(name, 0.0))
                tags[name] = tag
            self._now = NotedCounters(virtual_time=counters.virtual_time, tags=tags)
            if len(tags) > TAGS_MAX:
                self._replace(highest_tags(tags, counters.keep), counters.virtual_time)
        else:
            self._replace(counters.tags, counters.virtual_time)  # The policy has changed all of them.

    def _replace(self, tags: Mapping[str, float], virtual_time: float) -> None:
        """Continue with these tags in place of all others."""
        before, adopted = self._tags, self._adopted_tags
        self._adopted_tags = {name: adopted.get(name, before.get(name, 0.0)) for name in tags}
        self._tags = dict(tags)
        self._now = NotedCounters(virtual_time=virtual_time, tags=self._tags)
