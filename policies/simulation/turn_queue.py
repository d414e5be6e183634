"""The queue of a simulated deployment: turns are given by the real queue policies.

There is one queue for all gateways, as in Redis. The request at the front waits until a worker has room that is
about as good for it as the best; others may go meanwhile to workers that it does not wait for.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import msgspec

from policies.admission.search_bounds import PASSED_OVER_OF_FLOW_MAX, passed_over_max
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals, flood_of
from policies.cell_turns import UNBOUNDED, QueueProgress, TurnBounds
from policies.queueing.cost_weights import CostWeights
from policies.queueing.estimate_ages import EstimateAges
from policies.queueing.flow_heads import Flow
from policies.queueing.protocol import QueueCounters, QueuePolicy, QueueTurn, TenantOrder, Ticket
from policies.registry import queue_policy, tenant_order
from policies.service_class import CHAT as IN_NO_HURRY
from policies.service_class import ServiceClass
from policies.simulation.tenants_by_tag import TenantsByTag
from policies.simulation.trace import TraceRequest

RELEASE_WINDOW_TOKENS = 16_384
"""Default of the setting `queueing.release_window_tokens`."""

REQUESTS = "requests"
"""Name in place of a policy: start-time fair queueing in which every request costs the same, however long it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """The rules of a queue."""

    across: str = "sfq"
    """Name of the queue policy across tenants, or REQUESTS."""
    within: str = "hrrn"
    """Name of the order inside a tenant."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of tenants; 1 by default."""
    hold: float | None = 0.0
    """Share by which a worker may be more expensive than the best; see hold.close_enough_to_best."""

    def queue(self, *, workers: int = 0, by_tag: bool = False) -> "TurnQueue":
        """Make an empty queue with these rules, for so many workers; `by_tag`: tenants are in order, as in Redis.

        Raises PolicyError.
        """
        by_requests = self.across == REQUESTS
        policy = queue_policy("sfq" if by_requests else self.across)
        return TurnQueue(
            policy,
            tenant_order(self.within),
            self.weights,
            by_requests=by_requests,
            passed_over_max=passed_over_max(workers if by_tag else 0) if self.hold is not None else 0,
            by_tag=TenantsByTag() if by_tag and policy.name == "sfq" else None,
        )


class TurnQueue:
    """A queue of requests, known by their number.

    At most `passed_over_max` requests may wait for their own worker while others go elsewhere. `by_tag`: the
    tenants in the order of their tags, so that not all of them are looked at.
    """

    def __init__(
        self,
        policy: QueuePolicy,
        order: TenantOrder,
        weights: Mapping[str, float],
        *,
        by_requests: bool,
        passed_over_max: int = 0,
        by_tag: TenantsByTag | None = None,
    ) -> None:
        self.passed_over_max = passed_over_max
        self._policy = policy
        self._order = order
        self._weights = weights
        self._by_requests = by_requests
        self._costs = CostWeights()
        self._plain_counters = QueueCounters()
        self._by_tag = by_tag
        self._waiting: dict[Flow, dict[int, Ticket]] = {}
        self._of_tenants: Counter[str] = Counter()
        self._totals: dict[str, WaitingTotals] = {}
        self._classes_of: dict[str, list[str]] = {}
        """The service classes of a tenant's flows."""
        self._waiting_count = 0
        self._standing_since: dict[str, float] = {}
        self._tickets: dict[int, Ticket] = {}
        self._ages = EstimateAges[int]()
        self._turn: QueueTurn | None = None
        self._bounds = UNBOUNDED
        self._weights_waiting: dict[str, float] = {}
        """By tenant that waits."""
        # The first ticket by flow, kept where the order is that of arrival alone.
        self._heads_kept: dict[Flow, Ticket] | None = {} if order.name == "fcfs" else None

    def __len__(self) -> int:
        return self._waiting_count

    @property
    def by_tag(self) -> bool:
        """Whether its tenants are in the order of their tags."""
        return self._by_tag is not None

    @property
    def _counters(self) -> QueueCounters:
        return self._plain_counters if self._by_tag is None else self._by_tag.counters

    @_counters.setter
    def _counters(self, counters: QueueCounters) -> None:
        if self._by_tag is None:
            self._plain_counters = counters
        else:
            self._by_tag.apply(counters)

    @property
    def progress(self) -> QueueProgress:
        """How far it has come with its turns."""
        return QueueProgress(self._counters.virtual_time, sum(self._weights_waiting.values()))

    def keep_in_step(self, bounds: TurnBounds) -> None:
        """Follow the published progress of other cells with this queue."""
        self._bounds = bounds
        if bounds.lift > self._counters.virtual_time:
            self._counters = self._counters.with_tags({}, virtual_time=bounds.lift)

    def is_ahead(self, tenant: str) -> bool:
        """Return whether a tenant's next turn is too far ahead of other cells for a worker that is not idle."""
        virtual_time = self._counters.virtual_time
        return self._counters.tags.get(tenant, virtual_time) > self._bounds.start_max

    def waiting_of(self, tenant: str) -> int:
        """Return how many requests of a tenant wait."""
        return self._of_tenants[tenant]

    def flood_of(self, tenant: str) -> WaitingTotals:
        """Return what waits of a tenant if that is most of all that waits; else nothing."""
        return flood_of(self._totals.get(tenant, NONE_WAITING), len(self))

    def _count(self, ticket: Ticket, change: int) -> None:
        own = self._totals.get(ticket.tenant, NONE_WAITING)
        self._totals[ticket.tenant] = own.plus(change, change * ticket.uncached_tokens)

    def arrive(
        self,
        number: int,
        request: TraceRequest,
        uncached_tokens: int,
        output_tokens: int,
        now: float,
        service_class: ServiceClass | None = None,
    ) -> None:
        """Register a request with its expected cost; without a service class it is in no hurry."""
        urgency = service_class or IN_NO_HURRY
        ticket = self._tickets[number] = Ticket(
            number=number,
            tenant=request.tenant,
            cost=self._units(request.prompt_tokens, uncached_tokens, output_tokens),
            weight=self._weights.get(request.tenant, 1.0),
            arrived_at=now,
            uncached_tokens=uncached_tokens,
            cached_tokens=request.prompt_tokens - uncached_tokens,
            deadline=now + urgency.ttft_seconds if service_class is not None else None,
            service_class=urgency.name,
            level=urgency.level,
        )
        waiting = self._heads(now) if self._by_tag is None else self._heads_of((ticket.tenant,), now, {})
        self._counters = self._policy.arrive(self._counters, ticket, waiting)

    def try_at_once(self, number: int, now: float) -> bool:
        """Return whether no request waits, so that this one may go at once; `take` then takes the turn."""
        if any(self._waiting.values()):
            return False
        self._turn = self._policy.next(self._counters, [self._tickets[number]], now)
        return self._turn is not None

    def wait(self, number: int, now: float) -> None:
        """Let a registered request wait."""
        ticket = self._tickets[number]
        if all(name != ticket.service_class for _, name in self._waiting):
            self._standing_since[ticket.service_class] = now
        self._of_tenants[ticket.tenant] += 1
        self._weights_waiting[ticket.tenant] = ticket.weight
        self._count(ticket, 1)
        self._ages.add(number, now)
        self._waiting_count += 1
        if _flow(ticket) not in self._waiting:
            self._classes_of.setdefault(ticket.tenant, []).append(ticket.service_class)
        if self._by_tag is not None and self._of_tenants[ticket.tenant] == 1:
            self._by_tag.wait(ticket.tenant)
        self._waiting.setdefault(_flow(ticket), {})[number] = ticket
        if self._heads_kept is not None:
            self._heads_kept.setdefault(_flow(ticket), ticket)

    def take_due_estimate(self, now: float) -> int | None:
        """Return which waiting request is to be estimated anew by `estimate`; None if none is due."""
        return self._ages.take_due(now)

    def estimate(self, number: int, request: TraceRequest, uncached_tokens: int, output_tokens: int) -> None:
        """Set the expected cost of a request that waits."""
        before = self._tickets[number]
        ticket = self._tickets[number] = self._waiting[_flow(before)][number] = msgspec.structs.replace(
            before,
            cost=self._units(request.prompt_tokens, uncached_tokens, output_tokens),
            uncached_tokens=uncached_tokens,
            cached_tokens=request.prompt_tokens - uncached_tokens,
        )
        self._count(before, -1)
        self._count(ticket, 1)
        if self._heads_kept is not None and self._heads_kept[_flow(before)] is before:
            self._heads_kept[_flow(before)] = ticket

    def standing_since(self, service_class: str) -> float:
        """Return since when at least one request of this class, of which one waits, has waited without a break."""
        return self._standing_since[service_class]

    def leave(self, number: int) -> bool:
        """Take out a request that waits; return whether it waited."""
        ticket = self._tickets.get(number)
        if ticket is None or not self._remove(ticket):
            return False
        del self._tickets[number]
        return True

    def next_number(
        self, now: float, passed_over: Collection[int] = (), may_go: Callable[[int], bool] | None = None
    ) -> int | None:
        """Return which request has its turn, except those passed over; None if no other request waits.

        `may_go`: whether a request need be looked at; None: all of them.
        """
        heads = self._heads(now, passed_over, may_go)
        self._turn = self._policy.next(self._counters, heads, now) if heads else None
        return self._turn.ticket.number if self._turn is not None else None

    def in_turn(self, now: float, passed_over: Collection[int]) -> Generator[int, None, None]:
        """Yield which requests have their turn, one after the other while each is passed over.

        Those `passed_over` already are left out. The queue may change only after the last one, by `take`.
        """
        assert self._by_tag is not None
        counts = Counter(_flow(self._tickets[number]) for number in passed_over)
        passed = set(passed_over)
        with closing(self._by_tag.in_order()) as tenants:
            for equal in tenants:
                heads = [_in_order(ticket) for ticket in self._heads_of(equal, now, counts, passed)]
                heapify(heads)
                while heads:
                    _, number, ticket = heappop(heads)
                    self._turn = self._policy.next(self._counters, [ticket], now)
                    yield number
                    passed.add(number)
                    flow = _flow(ticket)
                    counts[flow] += 1
                    left = [other for at, other in self._waiting[flow].items() if at not in passed]
                    if left and counts[flow] < PASSED_OVER_OF_FLOW_MAX:
                        heappush(heads, _in_order(self._order.first(left, now)))

    def take(self) -> None:
        """Take the turn that was offered last."""
        assert self._turn is not None
        ticket, self._counters, self._turn = self._turn.ticket, self._turn.counters, None
        self._remove(ticket)

    def finish(self, number: int, request: TraceRequest, cached_tokens: int) -> None:
        """Charge an answered request with what it used."""
        ticket = self._tickets.pop(number)
        used = self._units(
            request.prompt_tokens, request.prompt_tokens - cached_tokens, request.output_tokens
        )
        self._counters = self._policy.correct(self._counters, ticket, used - ticket.cost)

    def cancel(self, number: int) -> None:
        """Take back the charge of a request that was lost with its worker."""
        ticket = self._tickets.pop(number)
        self._counters = self._policy.correct(self._counters, ticket, -ticket.cost)

    def _remove(self, ticket: Ticket) -> bool:
        """Take a ticket out of those that wait; return whether it waited."""
        name = _flow(ticket)
        flow = self._waiting.get(name)
        if flow is None or flow.pop(ticket.number, None) is None:
            return False
        self._of_tenants[ticket.tenant] -= 1
        self._count(ticket, -1)
        self._ages.remove(ticket.number)
        self._waiting_count -= 1
        if not flow:
            del self._waiting[name]
            self._classes_of[ticket.tenant].remove(ticket.service_class)
        if not self._of_tenants[ticket.tenant]:
            del self._of_tenants[ticket.tenant], self._classes_of[ticket.tenant]
            del self._weights_waiting[ticket.tenant]
            if self._by_tag is not None:
                self._by_tag.leave(ticket.tenant)
        if self._heads_kept is not None and self._heads_kept[name] is ticket:
            del self._heads_kept[name]
            if flow:
                self._heads_kept[name] = next(iter(flow.values()))
        return True

    def _heads(
        self, now: float, passed_over: Collection[int] = (), may_go: Callable[[int], bool] | None = None
    ) -> list[Ticket]:
        """Return the first ticket of each flow; of very many tenants, of those with the least tag."""
        passed_over_of = Counter(_flow(self._tickets[number]) for number in passed_over)
        if self._by_tag is not None:
            with closing(self._by_tag.in_order()) as tenants:
                of_least = (self._heads_of(equal, now, passed_over_of, passed_over) for equal in tenants)
                return next((heads for heads in of_least if heads), [])
        if self._heads_kept is not None and not passed_over and may_go is None:
            return list(self._heads_kept.values())
        return self._heads_of(self._classes_of, now, passed_over_of, passed_over, may_go)

    def _heads_of(
        self,
        tenants: Iterable[str],
        now: float,
        passed_over_of: Mapping[Flow, int],
        passed_over: Collection[int] = (),
        may_go: Callable[[int], bool] | None = None,
    ) -> list[Ticket]:
        heads = []
        flows = ((tenant, name) for tenant in tenants for name in self._classes_of.get(tenant, ()))
        for name in flows:
            flow = self._waiting[name]
            if passed_over_of.get(name, 0) >= PASSED_OVER_OF_FLOW_MAX:
                continue
            left = [
                ticket
                for ticket in flow.values()
                if ticket.number not in passed_over and (may_go is None or may_go(ticket.number))
            ]
            if left:
                heads.append(self._order.first(left, now))
        return heads

    def _units(self, prompt_tokens: int, uncached_tokens: int, output_tokens: int) -> float:
        if self._by_requests:
            return 1.0
        return self._costs.units(
            uncached_tokens=uncached_tokens,
            cached_tokens=prompt_tokens - uncached_tokens,
            output_tokens=output_tokens,
        )


def _in_order(ticket: Ticket) -> tuple[int, int, Ticket]:
    """Return what orders tickets of equal tags."""
    return ticket.level, ticket.number, ticket


def _flow(ticket: Ticket) -> Flow:
    return ticket.tenant, ticket.service_class
