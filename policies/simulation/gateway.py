"""One simulated gateway: ranks with a real policy, and lets requests wait with a real queue policy."""

from collections.abc import Mapping, Sequence
from random import Random

from xxhash import xxh3_64_intdigest

from policies.admission import has_window
from policies.queueing.protocol import QueueCounters, QueuePolicy, Ticket
from policies.routing.protocol import Ranking, Route, RouteQuery, RoutingPolicy
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.view import GatewayView

OUTPUT_TOKENS_EXPECTED = 256
"""Of a tenant's answers before any has been seen."""


class OutputLengths:
    """Running means of answers' lengths by tenant: what a gateway expects of the next one."""

    def __init__(self) -> None:
        self._sums: dict[str, list[int]] = {}

    def expected(self, tenant: str) -> int:
        tokens, answers = self._sums.get(tenant, (OUTPUT_TOKENS_EXPECTED, 1))
        return max(1, tokens // answers)

    def seen(self, tenant: str, tokens: int) -> None:
        of = self._sums.setdefault(tenant, [OUTPUT_TOKENS_EXPECTED, 1])
        of[0] += tokens
        of[1] += 1


class SimulatedGateway:
    """`window_tokens`: see Scenario. Waiting requests are known by their number."""

    def __init__(
        self,
        *,
        view: GatewayView,
        policy: RoutingPolicy,
        queue: QueuePolicy,
        window_tokens: int | None,
        random: Random,
    ) -> None:
        self.view = view
        self._policy = policy
        self._queue = queue
        self._window_tokens = window_tokens
        self._random = random
        self._lengths = OutputLengths()
        self._counters = QueueCounters()
        self._waiting: dict[int, Ticket] = {}
        self._sequence = 0

    def query(self, request: TraceRequest) -> RouteQuery:
        """What the policy is told of a new request."""
        self._sequence += 1
        return RouteQuery(
            prompt_tokens=request.prompt_tokens,
            output_tokens=self._lengths.expected(request.tenant),
            sequence=self._sequence - 1,
            draw=self._random.random(),
            blocks=request.blocks,
            block_tokens=BLOCK_TOKENS,
            session=xxh3_64_intdigest(f"{request.tenant} {request.session}".encode())
            if request.session
            else None,
        )

    def ranked(
        self,
        query: RouteQuery,
        request: TraceRequest,
        confirmed: Mapping[int, int],
        up: Sequence[int],
        now: float,
    ) -> Ranking:
        candidates = self.view.candidates(confirmed, request.blocks, request.prompt_tokens, up, now)
        return self._policy.rank(query, candidates, now)

    def answered(self, request: TraceRequest) -> None:
        self._lengths.seen(request.tenant, request.output_tokens)

    def placed(self, ranking: Ranking, places: Mapping[str, int], prompt_tokens: int) -> Route | None:
        """The best route whose worker has room for it in its window."""
        if self._window_tokens is None:
            return ranking[0]
        for route in ranking:
            ahead = self.view.queued(places[route.worker])
            uncached = prompt_tokens - route.matched_tokens
            if has_window(ahead, uncached, self._window_tokens) and self.view.has_room(places[route.worker], uncached):
                return route
        return None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def wait(self, number: int, request: TraceRequest, uncached_tokens: int, now: float) -> None:
        """Takes a request into the waiting room."""
        ticket = Ticket(number=number, tenant=request.tenant, cost=uncached_tokens, arrived_at=now)
        self._counters = self._queue.arrive(self._counters, ticket)
        self._waiting[number] = ticket

    def next(self, now: float) -> int | None:
        """Whose turn it is."""
        if not self._waiting:
            return None
        turn = self._queue.next(self._counters, list(self._waiting.values()), now)
        return None if turn is None else turn.ticket.number

    def leave(self, number: int, now: float) -> None:
        """That one goes now."""
        turn = self._queue.next(self._counters, [self._waiting.pop(number)], now)
        if turn is not None:
            self._counters = turn.counters
