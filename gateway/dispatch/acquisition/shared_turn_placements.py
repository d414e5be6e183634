"""Placements in turns that all gateways give together: Redis decides when, and on which of the ranked workers."""

from collections.abc import Callable

from gateway.dispatch.acquisition.own_turn_placements import OwnTurnPlacements
from gateway.dispatch.acquisition.request_ranking import RequestRanking, queued_request
from gateway.dispatch.acquisition.ttft_target import Demoted, TtftTargets, tokens_to_compute
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements, in_fleet, prefill_worker_of
from gateway.domain.errors import GatewayError
from gateway.fleet.fleet import Fleet
from gateway.queueing.queued_request import with_estimate
from gateway.queueing.shared.queue_messages import SharedRoute, SharedTicket
from gateway.queueing.shared.queue_store import ROUTES_MAX
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.shared.turn_requests import TurnLost
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.routing.router import Decision
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Ranking, Route
from radix_cache.match import WorkerId


class SharedTurnPlacements:
    """Places requests in turns of all gateways. `clock`: seconds on the monotonic clock."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        ranking: RequestRanking,
        targets: TtftTargets,
        queue: SharedTurns,
        rooms: WaitingRooms[Placement],
        placements: Placements,
        own_turns: OwnTurnPlacements,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._ranking = ranking
        self._targets = targets
        self._queue = queue
        self._rooms = rooms
        self._placements = placements
        self._own_turns = own_turns
        self._clock = clock

    async def place_in_turn(
        self,
        pending: PendingRequest,
        ticket: Ticket,
        decision: Decision,
        waits: Callable[[PendingRequest, Decision], None],
    ) -> Placement:
        """Return a placement in the request's turn.

        `decision`: the ranking as of this moment. `waits` is called when the request begins to wait. Raises
        TurnLost where the turns are given elsewhere by now, NoWorker, and what TtftTargets.check raises.
        """
        known: dict[WorkerId, Route] = {}
        assert pending.ticket is not None
        shared = self._queue.ticket(pending.ticket, pending.queue_name, pending.kv_tokens)
        asked = False

        def begin_to_wait() -> None:
            self._rooms.of(pending.queue_name).note_waiting(ticket)
            waits(pending, decision)
            self._own_turns.await_worker(pending, decision.routes)

        def routes() -> list[SharedRoute]:
            nonlocal asked, decision
            if asked:
                self._own_turns.stop_awaiting(pending)
                decision = self._ranking.rank(pending)
                asked_now = queued_request(pending, decision.routes, decision.query.shared)
                self._rooms.of(pending.queue_name).update_estimate(with_estimate(ticket, asked_now))
                self._own_turns.await_worker(pending, decision.routes)
            asked = True
            own = self._own_turns.own_route(pending, decision.routes)
            return self._shared_routes(pending, decision.routes if own is None else (own,), known)

        try:
            turn = await self._queue.turn(shared, ticket, routes, begin_to_wait)
        finally:
            self._own_turns.stop_awaiting(pending)
        route = known[turn.worker]
        try:
            # The turn was asked for when all of these workers were in the fleet.
            if not in_fleet(self._fleet, route):
                raise TurnLost
            left = tuple(each for each in decision.routes if in_fleet(self._fleet, each))
            self._targets.check(pending, left, self._rooms.of(pending.queue_name))
        except (GatewayError, Demoted, TurnLost):
            self._queue.leave(shared, -shared.cost)
            raise
        self._ranking.router.compare_with_shadow(decision)
        return self._place(pending, route, turn.uncached_tokens, shared, decision)

    async def place_second(
        self, pending: PendingRequest, ticket: SharedTicket, decision: Decision
    ) -> Placement | None:
        """Return one more placement for the same request, where no request of any gateway waits; None without."""
        known: dict[WorkerId, Route] = {}
        turn = await self._queue.spare(ticket, self._shared_routes(pending, decision.routes, known))
        if turn is None:
            return None
        if not in_fleet(self._fleet, known[turn.worker]):
            self._queue.leave(ticket, 0.0)
            return None
        return self._place(pending, known[turn.worker], turn.uncached_tokens, ticket, decision)

    def _place(
        self, pending: PendingRequest, route: Route, uncached: int, ticket: SharedTicket, decision: Decision
    ) -> Placement:
        return self._placements.place(
            pending, route, uncached_tokens=uncached, ticket=ticket, now=self._clock(), match=decision.match
        )

    def _shared_routes(
        self, pending: PendingRequest, routes: Ranking, known: dict[WorkerId, Route]
    ) -> list[SharedRoute]:
        """Return the routes for the queue in Redis: one for each worker that prefills, the better one of two."""
        ranking = {prefill_worker_of(route): route for route in reversed(routes)}
        known.update(ranking)
        return [
            self._shared_route(pending, ranking[worker]) for worker in list(ranking)[: -ROUTES_MAX - 1 : -1]
        ]

    def _shared_route(self, pending: PendingRequest, route: Route) -> SharedRoute:
        """Return a route with a cost that Redis can compute for any number of tokens queued at the turn."""
        worker = prefill_worker_of(route)
        queued = self._fleet[worker].load.all_tokens_queued
        return SharedRoute(
            worker,
            tokens_to_compute(pending.prompt.prompt_tokens, route),
            route.cost_ms - route.ms_per_queued_token * queued,
            route.ms_per_queued_token,
            queued,
            self._fleet[worker].slots or 0,
            route.computed_tokens,
        )
