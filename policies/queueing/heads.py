"""Puts the two rules together: the first ticket of each tenant by one, the tenant by the other."""

from collections.abc import Iterable

from policies.queueing.protocol import QueueCounters, QueuePolicy, TenantOrder, Ticket, Turn


def heads(waiting: Iterable[Ticket], order: TenantOrder, now: float) -> list[Ticket]:
    """Of each tenant and service class the ticket that goes first."""
    flows: dict[tuple[str, str], list[Ticket]] = {}
    for ticket in waiting:
        flows.setdefault((ticket.tenant, ticket.service_class), []).append(ticket)
    return [flow[0] if len(flow) == 1 else order.first(flow, now) for flow in flows.values()]


def next_turn(
    policy: QueuePolicy, order: TenantOrder, counters: QueueCounters, waiting: Iterable[Ticket], now: float
) -> Turn | None:
    """Who goes now; None if nobody waits."""
    return policy.next(counters, heads(waiting, order, now), now)
