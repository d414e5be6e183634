"""The two-level order of a queue: a queue policy picks the tenant, a tenant order picks the ticket of that tenant.

A flow is one tenant's waiting requests of one service class.
"""

from collections.abc import Iterable

from policies.queueing.protocol import QueueCounters, QueuePolicy, QueueTurn, TenantOrder, Ticket

Flow = tuple[str, str]
"""Tenant and service class."""


class FlowHeads:
    """The first ticket of each flow at one moment, while turns are given or tickets passed over.

    A ticket that would rather wait for its own worker is passed over, and the next one of its flow takes its place.
    Of one flow at most `passed_over_of_flow_max` tickets are passed over, then none of its tickets is offered any
    more: otherwise a tenant with all its requests waiting for one worker would keep others from a free one.
    """

    def __init__(
        self, waiting: Iterable[Ticket], order: TenantOrder, now: float, *, passed_over_of_flow_max: int = 0
    ) -> None:
        self._order = order
        self._now = now
        self._passed_over_max = passed_over_of_flow_max
        self._passed_over: dict[Flow, int] = {}
        self._flows: dict[Flow, list[Ticket]] = {}
        for ticket in waiting:
            self._flows.setdefault(_flow(ticket), []).append(ticket)
        self._heads = {flow: self._first(tickets) for flow, tickets in self._flows.items()}

    @property
    def heads(self) -> list[Ticket]:
        """The first ticket of each flow."""
        return list(self._heads.values())

    def pass_over(self, ticket: Ticket) -> None:
        """Replace a head that would rather wait by the next ticket of its flow."""
        flow = _flow(ticket)
        passed_over = self._passed_over[flow] = self._passed_over.get(flow, 0) + 1
        del self._heads[flow]
        if passed_over < self._passed_over_max:
            self._put_next(flow, ticket)

    def take(self, ticket: Ticket) -> None:
        """Remove a head that got its turn; the next ticket of its flow takes its place."""
        flow = _flow(ticket)
        del self._heads[flow]
        self._put_next(flow, ticket)

    def _put_next(self, flow: Flow, previous: Ticket) -> None:
        tickets = self._flows[flow]
        tickets.remove(previous)
        if tickets:
            self._heads[flow] = self._first(tickets)

    def _first(self, tickets: list[Ticket]) -> Ticket:
        return tickets[0] if len(tickets) == 1 else self._order.first(tickets, self._now)


def flow_heads(waiting: Iterable[Ticket], order: TenantOrder, now: float) -> list[Ticket]:
    """Return the ticket that goes first of each tenant and service class."""
    return FlowHeads(waiting, order, now).heads


def next_turn(
    policy: QueuePolicy, order: TenantOrder, counters: QueueCounters, waiting: Iterable[Ticket], now: float
) -> QueueTurn | None:
    """Return the turn of the ticket that goes next; None if no ticket waits."""
    return policy.next(counters, flow_heads(waiting, order, now), now)


def _flow(ticket: Ticket) -> Flow:
    return ticket.tenant, ticket.service_class
