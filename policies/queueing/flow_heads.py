"""The first ticket of each flow: a queue policy picks among these; which one is first in a flow, a tenant order.

A flow is one tenant's waiting requests of one service class.
"""

from collections.abc import Collection, Iterable, Mapping

from policies.queueing.protocol import QueueCounters, QueuePolicy, QueueTurn, TenantOrder, Ticket

Flow = tuple[str, str]
"""Tenant and service class."""

Flows = Mapping[Flow, Mapping[int, Ticket]]
"""The waiting tickets of each flow by their numbers, in the order of arrival."""


class FlowHeads:
    """The first ticket of each flow at one moment, while turns are given or tickets passed over.

    A ticket that would rather wait for its own worker is passed over, and the next one of its flow takes its place.
    Of one flow at most `passed_over_of_flow_max` tickets are passed over, then none of its tickets is offered any
    more: otherwise a tenant with all its requests waiting for one worker would keep others from a free one.

    A ticket that waits for one of the workers in `without` is left out; `leave_out` adds to them.
    """

    def __init__(
        self,
        flows: Flows,
        order: TenantOrder,
        now: float,
        *,
        passed_over_of_flow_max: int = 0,
        without: Collection[str] = (),
    ) -> None:
        """`flows` are followed as they change: a ticket leaves them before `take`."""
        self._flows = flows
        self._order = order
        self._now = now
        self._passed_over_max = passed_over_of_flow_max
        self._without = set(without)
        self._passed_over: dict[Flow, set[int]] = {}
        self._heads: dict[Flow, Ticket] = {}
        self._without_head = set(flows)
        """The flows whose first ticket is to be found before the next turn."""

    @property
    def heads(self) -> list[Ticket]:
        """The first ticket of each flow."""
        for flow in self._without_head:
            self._find_head(flow)
        self._without_head.clear()
        return list(self._heads.values())

    def pass_over(self, ticket: Ticket) -> None:
        """Replace a head that would rather wait by the next ticket of its flow."""
        flow = flow_of(ticket)
        passed_over = self._passed_over.setdefault(flow, set())
        passed_over.add(ticket.number)
        del self._heads[flow]
        if len(passed_over) < self._passed_over_max:
            self._without_head.add(flow)

    def take(self, ticket: Ticket) -> None:
        """Remove a head that has left its flow; the next ticket takes its place."""
        flow = flow_of(ticket)
        del self._heads[flow]
        self._without_head.add(flow)

    def leave_out(self, workers: Collection[str]) -> None:
        """Leave out the tickets that wait for one of these workers."""
        self._without.update(workers)
        for flow, head in list(self._heads.items()):
            if head.awaits in workers:
                del self._heads[flow]
                self._without_head.add(flow)

    def _find_head(self, flow: Flow) -> None:
        tickets, passed_over = self._flows.get(flow, {}), self._passed_over.get(flow)
        if passed_over is not None:
            tickets = {number: ticket for number, ticket in tickets.items() if number not in passed_over}
        if self._without:
            tickets = {number: each for number, each in tickets.items() if each.awaits not in self._without}
        if tickets:
            self._heads[flow] = self._order.first(list(tickets.values()), self._now)


def flow_heads(waiting: Iterable[Ticket], order: TenantOrder, now: float) -> list[Ticket]:
    """Return the ticket that goes first of each tenant and service class."""
    flows: dict[Flow, dict[int, Ticket]] = {}
    for ticket in waiting:
        flows.setdefault(flow_of(ticket), {})[ticket.number] = ticket
    return FlowHeads(flows, order, now).heads


def next_turn(
    policy: QueuePolicy, order: TenantOrder, counters: QueueCounters, waiting: Iterable[Ticket], now: float
) -> QueueTurn | None:
    """Return the turn of the ticket that goes next; None if no ticket waits."""
    return policy.next(counters, flow_heads(waiting, order, now), now)


def flow_of(ticket: Ticket) -> Flow:
    """Return the flow of a ticket."""
    return ticket.tenant, ticket.service_class
