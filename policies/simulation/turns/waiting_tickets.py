"""The tickets that wait in a simulated queue, by flow, and in each flow by the worker of their own that they await.

A request whose own worker is full need not be tried (awaited_tokens.py). That holds for all that await the same
worker, so it is checked once for each worker, however many requests wait.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import NamedTuple

from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals
from policies.queueing.flow_heads import Flow, flow_of
from policies.queueing.protocol import TenantOrder, Ticket


class AwaitedWorker(NamedTuple):
    """A worker that requests of one gateway wait for, by the places of both."""

    gateway: int
    worker: int


Awaited = AwaitedWorker | None
"""None: any good worker will do."""


class FlowTickets:
    """The waiting tickets of one flow, by number in the order in which they came."""

    __slots__ = ("_awaited", "by_awaited", "by_number")

    def __init__(self) -> None:
        self.by_number: dict[int, Ticket] = {}
        self.by_awaited: dict[Awaited, dict[int, Ticket]] = {}
        """The same tickets, by the worker that they await."""
        self._awaited: dict[int, Awaited] = {}

    def awaited(self, number: int) -> Awaited:
        """Return the worker that a ticket awaits; None if it awaits no certain one."""
        return self._awaited.get(number)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket, or replace the one with its number."""
        self.by_number[ticket.number] = ticket
        self.by_awaited.setdefault(self.awaited(ticket.number), {})[ticket.number] = ticket

    def await_worker(self, number: int, worker: Awaited) -> None:
        """Let a ticket await this worker."""
        before = self.awaited(number)
        if worker != before:
            self._leave(number, before)
            self._awaited[number] = worker
            self.put(self.by_number[number])

    def remove(self, number: int) -> bool:
        """Take a ticket out; return whether it was there."""
        if self.by_number.pop(number, None) is None:
            return False
        self._leave(number, self._awaited.pop(number, None))
        return True

    def first(
        self,
        order: TenantOrder,
        now: float,
        passed_over: Collection[int],
        workers: Collection[Awaited] | None,
    ) -> Ticket | None:
        """Return the ticket that goes first of those that are not `passed_over`; None if there is none.

        `workers`: of those that await one of these; None: of all.
        """
        if workers is None:
            if order.name == "fcfs" and not passed_over:
                return next(iter(self.by_number.values()))
            left = list(self.by_number.values())
        else:
            groups = [group for worker, group in self.by_awaited.items() if worker in workers]
            left = list(chain.from_iterable(group.values() for group in groups))
        if passed_over:
            left = [ticket for ticket in left if ticket.number not in passed_over]
        return order.first(left, now) if left else None

    def _leave(self, number: int, awaited: Awaited) -> None:
        group = self.by_awaited[awaited]
        del group[number]
        if not group:
            del self.by_awaited[awaited]


class WaitingTickets:
    """The waiting tickets of all flows, with their number and tokens by tenant."""

    def __init__(self) -> None:
        self.count = 0
        self.flows: dict[Flow, FlowTickets] = {}
        self.weights: dict[str, float] = {}
        """By tenant that waits."""
        self._of_tenants: Counter[str] = Counter()
        self._totals: dict[str, WaitingTotals] = {}
        self._classes_of: dict[str, list[str]] = {}
        """The service classes of a tenant's flows."""

    def add(self, ticket: Ticket) -> None:
        """Add a ticket."""
        flow = flow_of(ticket)
        if flow not in self.flows:
            self.flows[flow] = FlowTickets()
            self._classes_of.setdefault(ticket.tenant, []).append(ticket.service_class)
        self.flows[flow].put(ticket)
        self.count += 1
        self._of_tenants[ticket.tenant] += 1
        self.weights[ticket.tenant] = ticket.weight
        self._count(ticket, 1)

    def replace(self, before: Ticket, ticket: Ticket) -> None:
        """Replace a ticket by one with the same number and flow."""
        self.flows[flow_of(ticket)].put(ticket)
        self._count(before, -1)
        self._count(ticket, 1)

    def remove(self, ticket: Ticket) -> bool:
        """Take a ticket out; return whether it was there."""
        flow, tenant = flow_of(ticket), ticket.tenant
        tickets = self.flows.get(flow)
        if tickets is None or not tickets.remove(ticket.number):
            return False
        self.count -= 1
        self._of_tenants[tenant] -= 1
        self._count(ticket, -1)
        if not tickets.by_number:
            del self.flows[flow]
            self._classes_of[tenant].remove(ticket.service_class)
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant], self._classes_of[tenant], self.weights[tenant]
        return True

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all tickets."""
        return chain.from_iterable(tickets.by_number for tickets in self.flows.values())

    def has_class(self, service_class: str) -> bool:
        """Return whether a ticket of this service class waits."""
        return any(name == service_class for _, name in self.flows)

    def of_tenant(self, tenant: str) -> int:
        """Return how many tickets of a tenant wait."""
        return self._of_tenants[tenant]

    def totals_of(self, tenant: str) -> WaitingTotals:
        """Return how many tickets of a tenant wait, and their uncached tokens."""
        return self._totals.get(tenant, NONE_WAITING)

    def flows_of(self, tenant: str) -> Iterator[Flow]:
        """Yield the flows of a tenant that waits."""
        for service_class in self._classes_of.get(tenant, ()):
            yield tenant, service_class

    def flows_in_order(self) -> Iterator[Flow]:
        """Yield all flows, those of one tenant together."""
        return chain.from_iterable(map(self.flows_of, self._classes_of))

    def awaited(self) -> set[Awaited]:
        """Return the workers that any ticket awaits; None is among them if one awaits no certain worker."""
        return set(chain.from_iterable(tickets.by_awaited for tickets in self.flows.values()))

    def _count(self, ticket: Ticket, change: int) -> None:
        self._totals[ticket.tenant] = self.totals_of(ticket.tenant).plus(
            change, change * ticket.uncached_tokens
        )


class FlowHeadSearch:
    """The first ticket of each flow at one moment, while turns are given and tickets passed over.

    A head stays the first of its flow until it is taken or passed over, or its worker is found to be full.
    """

    def __init__(self, waiting: WaitingTickets, order: TenantOrder, now: float, *, of_flow_max: int) -> None:
        """At most `of_flow_max` tickets of one flow are passed over; then none of its tickets is offered."""
        self._waiting = waiting
        self._order = order
        self._now = now
        self._of_flow_max = of_flow_max
        self.passed_over_count = 0
        self._passed_over: dict[Flow, set[int]] = {}
        self._heads: dict[Flow, Ticket | None] = {}
        self._workers: set[Awaited] | None = None

    def pass_over(self, ticket: Ticket) -> None:
        """Offer this ticket no more."""
        self._passed_over.setdefault(flow_of(ticket), set()).add(ticket.number)
        self.passed_over_count += 1

    def heads(self, may_go: Callable[[Awaited], bool] | None) -> list[Ticket]:
        """Return the first ticket of each flow, of those that await a worker that `may_go` allows; None: of all."""
        workers = None if may_go is None else set(filter(may_go, self._waiting.awaited()))
        if workers != self._workers:
            if workers is None or self._workers is None or not workers <= self._workers:
                self._heads.clear()
            self._workers = workers
        heads = map(self._head, self._waiting.flows_in_order())
        return [head for head in heads if head is not None]

    def _head(self, flow: Flow) -> Ticket | None:
        tickets, passed_over = self._waiting.flows[flow], self._passed_over.get(flow, ())
        if len(passed_over) >= self._of_flow_max:
            return None
        if flow in self._heads:
            head = self._heads[flow]
            if head is None or self._is_offered(head, tickets, passed_over):
                return head
        found = self._heads[flow] = tickets.first(self._order, self._now, passed_over, self._workers)
        return found

    def _is_offered(self, head: Ticket, tickets: FlowTickets, passed_over: Collection[int]) -> bool:
        if tickets.by_number.get(head.number) is not head or head.number in passed_over:
            return False
        return self._workers is None or tickets.awaited(head.number) in self._workers
