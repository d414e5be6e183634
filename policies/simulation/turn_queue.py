"""Whose turn it is in a simulated gateway: the real queue policies, as the gateway's waiting room uses them.

One queue for all gateways, as Redis keeps it. Who stands first waits until a worker has room that is about as good
for it as the best; others may go to workers meanwhile that it does not wait for.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from policies.admission.dispatch_window import PASSED_MAX, PASSED_OF_FLOW_MAX
from policies.queueing.cost_weights import CostWeights
from policies.queueing.protocol import QueueCounters, QueuePolicy, QueueTurn, TenantOrder, Ticket
from policies.registry import queue_policy, tenant_order
from policies.simulation.trace import TraceRequest

RELEASE_WINDOW_TOKENS = 16_384
"""As `queueing.release_window_tokens` is by default."""

REQUESTS = "requests"
"""In place of a policy: start-time fair queueing where a request is a request, however long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """`across`, `within`: names of policies, or REQUESTS. `weights`: of tenants; 1 by default. `hold`: how much
    dearer than its best worker one may be; see admission.close_enough_to_best."""

    across: str = "sfq"
    within: str = "hrrn"
    weights: Mapping[str, float] = field(default_factory=dict)
    hold: float | None = 0.0

    def queue(self) -> "TurnQueue":
        """Raises PolicyError."""
        by_requests = self.across == REQUESTS
        policy = queue_policy("sfq" if by_requests else self.across)
        return TurnQueue(
            policy,
            tenant_order(self.within),
            self.weights,
            by_requests=by_requests,
            passed_max=PASSED_MAX if self.hold is not None else 0,
        )


class TurnQueue:
    """Requests are known by their number. `passed_max`: so many may wait for a worker while others go elsewhere."""

    def __init__(
        self,
        policy: QueuePolicy,
        order: TenantOrder,
        weights: Mapping[str, float],
        *,
        by_requests: bool,
        passed_max: int = 0,
    ) -> None:
        self.passed_max = passed_max
        self._policy = policy
        self._order = order
        self._weights = weights
        self._by_requests = by_requests
        self._costs = CostWeights()
        self._counters = QueueCounters()
        self._waiting: dict[str, dict[int, Ticket]] = {}
        self._tickets: dict[int, Ticket] = {}
        self._turn: QueueTurn | None = None
        # By tenant, where it depends on nothing but who came first.
        self._heads_kept: dict[str, Ticket] | None = {} if order.name == "fcfs" else None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def arrive(
        self, number: int, request: TraceRequest, uncached_tokens: int, output_tokens: int, now: float
    ) -> None:
        """It asks for its turn, at what it is expected to cost."""
        ticket = self._tickets[number] = Ticket(
            number=number,
            tenant=request.tenant,
            cost=self._units(request.prompt_tokens, uncached_tokens, output_tokens),
            weight=self._weights.get(request.tenant, 1.0),
            arrived_at=now,
            uncached_tokens=uncached_tokens,
            cached_tokens=request.prompt_tokens - uncached_tokens,
        )
        self._counters = self._policy.arrive(self._counters, ticket, self._heads(now))

    def at_once(self, number: int, now: float) -> bool:
        """May it go before anybody else does? It is taken if `take` is called."""
        if any(self._waiting.values()):
            return False
        self._turn = self._policy.next(self._counters, [self._tickets[number]], now)
        return self._turn is not None

    def wait(self, number: int) -> None:
        ticket = self._tickets[number]
        self._waiting.setdefault(ticket.tenant, {})[number] = ticket
        if self._heads_kept is not None:
            self._heads_kept.setdefault(ticket.tenant, ticket)

    def first(self, now: float, passed: Collection[int] = ()) -> int | None:
        """Whose turn it is, without those who would rather wait; None if nobody else does."""
        heads = self._heads(now, passed)
        self._turn = self._policy.next(self._counters, heads, now) if heads else None
        return self._turn.ticket.number if self._turn is not None else None

    def take(self) -> None:
        """The turn that was told last is taken."""
        assert self._turn is not None
        ticket, self._counters, self._turn = self._turn.ticket, self._turn.counters, None
        flow = self._waiting.get(ticket.tenant)
        if flow is None or flow.pop(ticket.number, None) is None:
            return
        if not flow:
            del self._waiting[ticket.tenant]
        if self._heads_kept is not None:
            del self._heads_kept[ticket.tenant]
            if flow:
                self._heads_kept[ticket.tenant] = next(iter(flow.values()))

    def ended(self, number: int, request: TraceRequest, cached_tokens: int) -> None:
        """It is settled to what it used."""
        ticket = self._tickets.pop(number)
        used = self._units(
            request.prompt_tokens, request.prompt_tokens - cached_tokens, request.output_tokens
        )
        self._counters = self._policy.settle(self._counters, ticket, used - ticket.cost)

    def lost(self, number: int) -> None:
        """Its worker has died: its charge is taken back, and it asks again."""
        ticket = self._tickets.pop(number)
        self._counters = self._policy.settle(self._counters, ticket, -ticket.cost)

    def _heads(self, now: float, passed: Collection[int] = ()) -> list[Ticket]:
        by_tenant = Counter(self._tickets[number].tenant for number in passed)
        if self._heads_kept is not None and not passed:
            return list(self._heads_kept.values())
        heads = []
        for tenant, flow in self._waiting.items():
            if by_tenant[tenant] >= PASSED_OF_FLOW_MAX:
                continue
            left = [ticket for ticket in flow.values() if not passed or ticket.number not in passed]
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
