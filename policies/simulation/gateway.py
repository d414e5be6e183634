"""One simulated gateway: ranks workers with a real policy, and lets requests wait until a good worker has room.

Late binding: a request that waits is ranked again whenever a worker has made room, with the loads and the prefixes
of that moment; a request that is sent at once cannot be taken back.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import compress
from random import Random

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from policies.admission.closed_workers import ClosedWorkers
from policies.admission.hold import close_enough_to_best, hold_while_contended
from policies.admission.passed_over import VainLook, WorkerAhead
from policies.admission.ttft_chance import MeetsTarget, has_a_chance, in_time
from policies.admission.window_room import leaves_one_open
from policies.load_order.least_loaded import RANKED_MAX
from policies.routing.protocol import Route, RouteQuery, RoutingPolicy
from policies.simulation.gateway_view import GatewayView
from policies.simulation.large_fleet import LargeFleet
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.turns.dispatching import TooLate, TurnTerms
from policies.simulation.turns.queue_view import QueueView
from policies.simulation.waiting_orders import WaitingOrder
from radix_cache.match import WorkerId

OUTPUT_TOKENS_EXPECTED = 256
"""Expected length of a tenant's answers before any has been seen."""

HOLD = 0.1
"""Share by which a worker may be more expensive than the best for a request to go there instead of waiting."""

LOOKED_AT_MAX = 32
"""Waiting requests that are ranked again whenever there is room."""


class OutputLengths:
    """The mean length of each tenant's answers, which a gateway expects of the next one."""

    def __init__(self) -> None:
        self._sums: dict[str, list[int]] = {}

    def expected(self, tenant: str) -> int:
        """Return the output tokens that the tenant's next answer is expected to have."""
        tokens, answers = self._sums.get(tenant, (OUTPUT_TOKENS_EXPECTED, 1))
        return max(1, tokens // answers)

    def record(self, tenant: str, tokens: int) -> None:
        """Record the length of an answer."""
        of = self._sums.setdefault(tenant, [OUTPUT_TOKENS_EXPECTED, 1])
        of[0] += tokens
        of[1] += 1


class SimulatedGateway:
    """One gateway of the simulation; requests that wait in it are known by their number.

    `window_tokens`, `waiting_order`: see Scenario. `hold`: the share by which a worker may be more expensive than
    the best, of requests that take turns. `large`: the view's workers in order, where requests are ranked on a
    shortlist. `queue_view`: the loads of the queue of several gateways, where each has a view of its own.
    """

    def __init__(
        self,
        *,
        view: GatewayView,
        policy: RoutingPolicy,
        window_tokens: int | None,
        waiting_order: WaitingOrder,
        random: Random,
        hold: float | None = None,
        large: LargeFleet | None = None,
        queue_view: QueueView | None = None,
    ) -> None:
        self.view = view
        self._policy = policy
        self._window_tokens = window_tokens
        self._waiting_order = waiting_order
        self._random = random
        self._lengths = OutputLengths()
        self._hold = hold
        self._large = large
        self._queue_view = queue_view
        self._held: dict[int, tuple[float, int]] = {}  # arrival and uncached tokens
        self._vain_look: Callable[[], VainLook] | None = None
        self._sequence = 0

    @property
    def _loads(self) -> GatewayView | QueueView:
        """The loads by which a worker has room for a request in its turn."""
        return self.view if self._queue_view is None else self._queue_view

    def ahead(self, worker: int) -> WorkerAhead:
        """Return what is ahead of a worker, as it is known where turns are given."""
        return self._loads.ahead(worker)

    def vain_look(self) -> VainLook | None:
        """Return the loads of the workers of the request that was found no route in its turn just now."""
        return None if self._vain_look is None else self._vain_look()

    def follow(self, worker: int, up: Sequence[int]) -> None:
        """Take over which workers may get requests, after a worker has come or gone."""
        if self._large is not None:
            self._large.up = frozenset(up)
            self.view.leave(worker)

    def query(self, request: TraceRequest) -> RouteQuery:
        """Return a new request as the policy gets it."""
        session = f"{request.tenant} {request.session}".encode() if request.session else None
        self._sequence += 1
        return RouteQuery(
            prompt_tokens=request.prompt_tokens,
            output_tokens=self._lengths.expected(request.tenant),
            sequence=self._sequence - 1,
            draw=self._random.random(),
            blocks=request.blocks,
            block_tokens=BLOCK_TOKENS,
            session=None if session is None else xxh3_64_intdigest(session),
        )

    def route(
        self,
        query: RouteQuery,
        request: TraceRequest,
        confirmed: Mapping[int, int],
        up: Sequence[int],
        places: Mapping[WorkerId, int],
        now: float,
        closed: ClosedWorkers,
        *,
        waits: bool,
        terms: TurnTerms | None = None,
        awaited: int | None = None,
    ) -> Route | None:
        """Return the route that the request takes now; None if it waits.

        `up`: workers that may get it; `places`: the place of each worker in the fleet. `closed`: workers that a
        request with an earlier turn waits for; those that this request waits for are added. `waits`: the request
        waits already; `awaited`: for this worker.

        Without a window a request goes to the first route. With one it goes where it fits, but not to a worker that
        is much more expensive than the best: the best worker's queue is part of its cost already.
        """
        ranking, places = self.ranking(query, request, confirmed, up, places, now, waits=waits)
        if self._window_tokens is None:
            return ranking[0]
        if terms is not None:
            if awaited is not None and terms.window.awaits_one:
                ranking = [route for route in ranking if places[route.worker] == awaited] or ranking
            return self._in_turn(ranking, request, places, closed, terms, now)
        highest = ranking[0].cost_ms * (1 + HOLD)
        for route in ranking:
            if route.cost_ms > highest:
                return None
            worker, uncached = places[route.worker], request.prompt_tokens - route.matched_tokens
            window = self.view.fits(worker, uncached, self._window_tokens)
            if window and self.view.has_room(worker, uncached + query.output_tokens):
                return route
        return None

    def ranking(
        self,
        query: RouteQuery,
        request: TraceRequest,
        confirmed: Mapping[int, int],
        up: Sequence[int],
        places: Mapping[WorkerId, int],
        now: float,
        *,
        waits: bool,
    ) -> tuple[Sequence[Route], Mapping[WorkerId, int]]:
        """Return the routes of a request, best first, and the places of their workers; see `route`."""
        held = self.view.prefixes.held(confirmed, request.blocks)
        shared = self.view.prefixes.shared(request.blocks, held, confirmed, now, waits=waits)
        if shared:
            query = replace(
                query, shared=shared, requests_waiting=self.view.prefixes.requests_waiting - waits
            )
        if self._large is not None and len(up) > RANKED_MAX:
            up, totals = self._large.shortlist(held, request.prompt_tokens, query.output_tokens, now)
            query = replace(query, fleet=totals)
            places = {self.view.worker_id(worker): worker for worker in up}
        candidates = self.view.candidates(held, request.prompt_tokens, up, now)
        ranking = self._policy.rank(query, candidates, now)
        if shared and not waits:
            self.view.prefixes.regrets.record(ranking[0].regrets, now, self.view.gateways)
        return ranking, places

    def _in_turn(
        self,
        ranking: Sequence[Route],
        request: TraceRequest,
        places: Mapping[WorkerId, int],
        closed: ClosedWorkers,
        terms: TurnTerms,
        now: float,
    ) -> Route | None:
        """Return the best route to a worker with room, as in gateway/dispatch/acquisition/worker_acquisition.py."""
        if terms.due_at is not None:
            ranking = self._in_time(ranking, request, places, terms, now)
        if self._queue_view is not None:
            queued = [self.view.queued(places[route.worker]) for route in ranking]
            ranking = self._queue_view.ranked_now(ranking, queued, places)
        waited_for: list[WorkerId] = []
        kept_out: list[WorkerId] = []
        crowds = terms.narrow and not terms.background
        hold = self._hold
        if terms.window.takes_dearer(is_narrow=terms.narrow, patient=terms.patient):
            hold = hold_while_contended(hold)
        chosen = ranking
        if terms.window.filled is not None:
            asked = [(each.worker, request.prompt_tokens - each.matched_tokens) for each in ranking]
            chosen = list(compress(ranking, terms.window.choices(asked, patient=terms.patient)))
            if not terms.window.waits_for_slots(patient=terms.patient):
                chosen = [route for route in chosen if self._has_slot(route, places, terms)] or chosen
        for route in chosen:
            if not close_enough_to_best(route.cost_ms, chosen[0].cost_ms, hold):
                break
            if self._has_room(route, request, places, terms):
                if closed.allows(route.worker, crowds=crowds):
                    return route
                kept_out.append(route.worker)
            waited_for.append(route.worker)
        closed.close(waited_for, crowds=crowds)
        self._vain_look = partial(
            self._seen, ranking, places, frozenset(waited_for), frozenset(kept_out), terms, crowds=crowds
        )
        return None

    def _seen(
        self,
        ranking: Sequence[Route],
        places: Mapping[WorkerId, int],
        waits_for: frozenset[WorkerId],
        closed: frozenset[WorkerId],
        terms: TurnTerms,
        *,
        crowds: bool,
    ) -> VainLook:
        """Return the loads of the workers of a request."""
        return VainLook(
            ahead={each.worker: self.ahead(places[each.worker]) for each in ranking},
            waits_for=waits_for,
            closed=closed,
            crowds=crowds,
            slots={each.worker: self._slots_allowed(each, terms) for each in ranking},
        )

    def _slots_allowed(self, route: Route, terms: TurnTerms) -> float:
        """Return how many slots of a route's worker may be taken once the request has one."""
        return terms.window.slots_allowed(
            self.view.slots,
            background=terms.background,
            is_narrow=terms.narrow,
            work_share=terms.work_share,
            for_urgent=terms.window.keeps_for_urgent(route.worker, patient=terms.patient),
        )

    def _has_slot(self, route: Route, places: Mapping[WorkerId, int], terms: TurnTerms) -> bool:
        """Return whether the worker of a route has a slot for the request."""
        return self._loads.streams(places[route.worker]) < self._slots_allowed(route, terms)

    def _has_room(
        self, route: Route, request: TraceRequest, places: Mapping[WorkerId, int], terms: TurnTerms
    ) -> bool:
        """Return whether the worker of a route has room for the request in its window, and a slot."""
        window, worker, loads = terms.window, places[route.worker], self._loads
        uncached = request.prompt_tokens - route.matched_tokens
        tokens = window.tokens(route.worker, is_narrow=terms.narrow, patient=terms.patient)
        taken = window.taken_by(uncached, is_narrow=terms.narrow, patient=terms.patient)
        left_open = window.open_beside(is_narrow=terms.narrow, work_share=terms.work_share)
        return (
            loads.fits(worker, taken, tokens, ahead=terms.ahead)
            and self._has_slot(route, places, terms)
            and (
                not window.is_long(uncached, tokens)
                or left_open is None
                or leaves_one_open(map(loads.queued, places.values()), left_open, background=terms.background)
            )
        )

    def _in_time(
        self,
        ranking: Sequence[Route],
        request: TraceRequest,
        places: Mapping[WorkerId, int],
        terms: TurnTerms,
        now: float,
    ) -> Sequence[Route]:
        """Return the routes that can meet the request's target, if there are any. Raises TooLate."""
        assert terms.due_at is not None
        left_ms = 1000 * (terms.due_at - now)

        def meeting(meets: MeetsTarget) -> list[Route]:
            return [
                route
                for route in ranking
                if self.view.meets(
                    meets,
                    places[route.worker],
                    max(1, request.prompt_tokens - route.matched_tokens),
                    left_ms,
                    now,
                )
            ]

        found = meeting(in_time)
        if not found and terms.refused_late and not meeting(has_a_chance):
            raise TooLate
        return found or ranking

    def answered(self, request: TraceRequest) -> None:
        """Learn from an answer that has ended."""
        self._lengths.record(request.tenant, request.output_tokens)

    def wait(self, number: int, uncached_tokens: int, now: float) -> None:
        """Take a request into the waiting room."""
        self._held[number] = (now, uncached_tokens)

    def leave(self, number: int) -> None:
        """Take a request out of the waiting room."""
        del self._held[number]

    def turns(self, now: float) -> list[int]:
        """Return the first few waiting requests in order, which may go now if a good worker has room."""
        if not self._held:
            return []

        def order(number: int) -> float:
            since, uncached = self._held[number]
            return self._waiting_order(now - since, uncached, since)

        return nsmallest(LOOKED_AT_MAX, self._held, key=order)
