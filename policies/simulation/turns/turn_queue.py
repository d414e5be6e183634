"""The queue of a simulated deployment: turns are given by the real queue policies.

There is one queue for all gateways, as in Redis. The request at the front waits until a worker has room that is
about as good for it as the best; others may go meanwhile to workers that it does not wait for.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import closing
from heapq import heapify, heappop, heappush

import msgspec

from policies.admission.search_bounds import PASSED_OVER_OF_FLOW_MAX
from policies.admission.waiting_bounds import WaitingTotals, flood_of
from policies.cell_turns import UNBOUNDED, QueueProgress, TurnBounds
from policies.queueing.cost_weights import CostWeights
from policies.queueing.estimate_ages import EstimateAges
from policies.queueing.flow_heads import Flow, flow_of
from policies.queueing.protocol import QueueCounters, QueuePolicy, QueueTurn, TenantOrder, Ticket
from policies.service_class import CHAT as IN_NO_HURRY
from policies.service_class import ServiceClass
from policies.simulation.trace import TraceRequest
from policies.simulation.turns.tenants_by_tag import TenantsByTag
from policies.simulation.turns.waiting_tickets import Awaited, FlowHeadSearch, WaitingTickets


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
        self._waiting = WaitingTickets()
        self._standing_since: dict[str, float] = {}
        self._tickets: dict[int, Ticket] = {}
        self._ages = EstimateAges[int]()
        self._turn: QueueTurn | None = None
        self._bounds = UNBOUNDED

    def __len__(self) -> int:
        return self._waiting.count

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
        return QueueProgress(self._counters.virtual_time, sum(self._waiting.weights.values()))

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
        return self._waiting.of_tenant(tenant)

    def flood_of(self, tenant: str) -> WaitingTotals:
        """Return what waits of a tenant if that is most of all that waits; else nothing."""
        return flood_of(self._waiting.totals_of(tenant), len(self))

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
        waiting = self._waiting
        flows = waiting.flows_in_order() if self._by_tag is None else waiting.flows_of(ticket.tenant)
        # One ticket of each flow: a policy uses tenants and classes alone.
        one_of_each = [next(iter(waiting.flows[flow].by_number.values())) for flow in flows]
        self._counters = self._policy.arrive(self._counters, ticket, one_of_each)

    def try_at_once(self, number: int, now: float) -> bool:
        """Return whether no request waits, so that this one may go at once; `take` then takes the turn."""
        if self._waiting.count:
            return False
        self._turn = self._policy.next(self._counters, [self._tickets[number]], now)
        return self._turn is not None

    def wait(self, number: int, now: float) -> None:
        """Let a registered request wait."""
        ticket = self._tickets[number]
        if not self._waiting.has_class(ticket.service_class):
            self._standing_since[ticket.service_class] = now
        self._waiting.add(ticket)
        self._ages.add(number, now)
        if self._by_tag is not None and self._waiting.of_tenant(ticket.tenant) == 1:
            self._by_tag.wait(ticket.tenant)

    def await_worker(self, number: int, worker: Awaited) -> None:
        """Let a request that waits await a worker of its own; None: no certain one."""
        self._waiting.flows[flow_of(self._tickets[number])].await_worker(number, worker)

    def take_due_estimate(self, now: float) -> int | None:
        """Return the waiting request that is to be estimated again by `estimate`; None if none is due."""
        return self._ages.take_due(now)

    def estimate(self, number: int, request: TraceRequest, uncached_tokens: int, output_tokens: int) -> None:
        """Set the expected cost of a request that waits."""
        before = self._tickets[number]
        ticket = self._tickets[number] = msgspec.structs.replace(
            before,
            cost=self._units(request.prompt_tokens, uncached_tokens, output_tokens),
            uncached_tokens=uncached_tokens,
            cached_tokens=request.prompt_tokens - uncached_tokens,
        )
        self._waiting.replace(before, ticket)

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

    def any_number(self) -> int | None:
        """Return one of the requests that wait; None if none does."""
        return next(iter(self._waiting.numbers()), None)

    def search(self, now: float) -> FlowHeadSearch:
        """Return a search for the requests that go at this moment, for `next_number`."""
        return FlowHeadSearch(self._waiting, self._order, now, of_flow_max=PASSED_OVER_OF_FLOW_MAX)

    def next_number(
        self,
        now: float,
        search: FlowHeadSearch | None = None,
        may_go: Callable[[Awaited], bool] | None = None,
    ) -> int | None:
        """Return which request has its turn; None if no other request waits.

        `search`: leaves out what it has passed over. `may_go`: whether those that await this worker need be looked
        at; None: all of them.
        """
        heads = (search or self.search(now)).heads(may_go)
        self._turn = self._policy.next(self._counters, heads, now) if heads else None
        return self._turn.ticket.number if self._turn is not None else None

    def pass_over(self, search: FlowHeadSearch, number: int) -> None:
        """Let a search offer this request no more."""
        search.pass_over(self._tickets[number])

    def in_turn(self, now: float, passed_over: Collection[int]) -> Generator[int, None, None]:
        """Yield which requests have their turn, one after the other while each is passed over.

        Those `passed_over` already are left out. The queue may change only after the last one, by `take`.
        """
        assert self._by_tag is not None
        counts = Counter(flow_of(self._tickets[number]) for number in passed_over)
        passed = set(passed_over)

        def head_of(flow: Flow) -> Ticket | None:
            if counts[flow] >= PASSED_OVER_OF_FLOW_MAX:
                return None
            return self._waiting.flows[flow].first(self._order, now, passed if counts[flow] else (), None)

        with closing(self._by_tag.in_order()) as tenants:
            for equal in tenants:
                flows = [flow for tenant in equal for flow in self._waiting.flows_of(tenant)]
                heads = [_in_order(head) for head in map(head_of, flows) if head is not None]
                heapify(heads)
                while heads:
                    _, number, ticket = heappop(heads)
                    self._turn = self._policy.next(self._counters, [ticket], now)
                    yield number
                    passed.add(number)
                    counts[flow_of(ticket)] += 1
                    if (following := head_of(flow_of(ticket))) is not None:
                        heappush(heads, _in_order(following))

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
        if not self._waiting.remove(ticket):
            return False
        self._ages.remove(ticket.number)
        if self._by_tag is not None and not self._waiting.of_tenant(ticket.tenant):
            self._by_tag.leave(ticket.tenant)
        return True

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
