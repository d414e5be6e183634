"""Puts the two rules together: the first ticket of each tenant by one, the tenant by the other."""

from collections.abc import Iterable

from policies.queueing.protocol import QueueCounters, QueuePolicy, TenantOrder, Ticket, Turn

Flow = tuple[str, str]
"""Tenant and service class."""


class Line:
    """Those who wait, at one moment: `heads` has of each tenant and service class the ticket that goes first.

    One that would rather wait is passed, and the next of its flow stands there: so many of a flow, then nobody of
    it any more, lest a tenant whose requests all wait for one worker keeps others from a free one.
    """

    def __init__(
        self, waiting: Iterable[Ticket], order: TenantOrder, now: float, *, passed_of_flow_max: int = 0
    ) -> None:
        self._order = order
        self._now = now
        self._passed_max = passed_of_flow_max
        self._passed: dict[Flow, int] = {}
        self._flows: dict[Flow, list[Ticket]] = {}
        for ticket in waiting:
            self._flows.setdefault(_flow(ticket), []).append(ticket)
        self._heads = {flow: self._first(tickets) for flow, tickets in self._flows.items()}

    @property
    def heads(self) -> list[Ticket]:
        return list(self._heads.values())

    def pass_by(self, ticket: Ticket) -> None:
        """The head of its flow would rather wait."""
        flow = _flow(ticket)
        passed = self._passed[flow] = self._passed.get(flow, 0) + 1
        del self._heads[flow]
        if passed < self._passed_max:
            self._put_next(flow, ticket)

    def take(self, ticket: Ticket) -> None:
        """The head of its flow has gone."""
        flow = _flow(ticket)
        del self._heads[flow]
        self._put_next(flow, ticket)

    def _put_next(self, flow: Flow, gone: Ticket) -> None:
        tickets = self._flows[flow]
        tickets.remove(gone)
        if tickets:
            self._heads[flow] = self._first(tickets)

    def _first(self, tickets: list[Ticket]) -> Ticket:
        return tickets[0] if len(tickets) == 1 else self._order.first(tickets, self._now)


def heads(waiting: Iterable[Ticket], order: TenantOrder, now: float) -> list[Ticket]:
    """Of each tenant and service class the ticket that goes first."""
    return Line(waiting, order, now).heads


def next_turn(
    policy: QueuePolicy, order: TenantOrder, counters: QueueCounters, waiting: Iterable[Ticket], now: float
) -> Turn | None:
    """Who goes now; None if nobody waits."""
    return policy.next(counters, heads(waiting, order, now), now)


def _flow(ticket: Ticket) -> Flow:
    return ticket.tenant, ticket.service_class
