"""Placements in turns that this gateway gives by itself, on workers that have room by its own knowledge."""

from collections.abc import Callable

from gateway.dispatch.acquisition.request_ranking import RequestRanking
from gateway.dispatch.acquisition.ttft_target import TtftTargets, uncached_tokens
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements, prefill_worker_of
from gateway.fleet.fleet import Fleet
from gateway.queueing.shared.queue_store import SharedTicket
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_room import NowhereToGo
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.queueing.worker_window import WorkerWindow
from gateway.routing.router import Decision
from policies.admission.dispatch_window import (
    ClosedWorkers,
    close_enough_to_best,
    fits_window,
    hold_while_contended,
    leaves_one_open,
)
from policies.routing.protocol import Ranking


class OwnTurnPlacements:
    """Places requests in turns that this gateway gives. `clock`: seconds on the monotonic clock."""

    def __init__(
        self,
        *,
        limits: DispatchLimits,
        fleet: Fleet,
        ranking: RequestRanking,
        targets: TtftTargets,
        queue: SharedTurns,
        rooms: WaitingRooms[Placement],
        placements: Placements,
        window: WorkerWindow,
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self._fleet = fleet
        self._ranking = ranking
        self._router = ranking.router
        self._targets = targets
        self._queue = queue
        self._rooms = rooms
        self._placements = placements
        self._window = window
        self._clock = clock

    def place_now(
        self,
        request: PendingRequest,
        closed: ClosedWorkers | None = None,
        *,
        decision: Decision | None = None,
    ) -> Placement | None:
        """Rank the request as of now and take the best worker that has room; return None if none has.

        `closed`: workers that requests before this one wait for; the workers that this request waits for are added.
        After a failure no room is needed: the request has had its turn.
        """
        over = bool(request.failed) and request.had_its_turn
        if decision is None:
            decision = self._ranking.rank(request)
            if not over:
                room = self._rooms.of(request.queue)
                self._targets.check(request, decision.routes, room, demotes=False)
        if not decision.routes:
            if over:
                return None
            raise NowhereToGo
        hold, least_ms = self.limits.hold, decision.routes[0].cost_ms
        window = self._window.of(request.ctx.model.name)
        # Without `closed` no request waits.
        background = request.service_class.background
        crowds = (
            window.contended and not background and closed is not None and self._has_others_waiting(request)
        )
        if background or crowds:
            tokens = window.narrow
        else:
            tokens = window.wide
            if window.contended:
                hold = hold_while_contended(hold)
        waited_for = []
        for route in decision.routes:
            if not (over or close_enough_to_best(route.cost_ms, least_ms, hold)):
                break
            worker = self._fleet[route.prefill_worker or route.worker]
            uncached = max(1, request.prompt.prompt_tokens - route.matched_tokens)
            if over or (
                (closed is None or closed.is_open(worker.id, crowds=crowds))
                and fits_window(worker.load.all_tokens_queued, uncached, tokens)
                and (
                    uncached <= tokens
                    or window.open is None
                    or self._leaves_one_open(request, decision.routes, window.open)
                )
            ):
                if not over and self._router.shadow is not None:
                    self._router.shadowed(decision)
                assert request.ticket is not None
                ticket = self._queue.ticket(request.ticket, request.queue, request.kv_tokens)
                self._queue.hold(ticket, worker.id, uncached)
                return self._placements.place(
                    request,
                    route,
                    uncached_tokens=uncached,
                    ticket=ticket,
                    now=self._clock(),
                    match=decision.match,
                )
            waited_for.append(worker.id)
        if closed is not None:
            closed.close(waited_for, crowds=crowds)
        return None

    def place_second(
        self, request: PendingRequest, ticket: SharedTicket, decision: Decision
    ) -> Placement | None:
        """Return one more placement for the same request on a worker with room; None if none has."""
        window = self._window.of(request.ctx.model.name)
        for route in decision.routes:
            worker = self._fleet[prefill_worker_of(route)]
            uncached = uncached_tokens(request.prompt.prompt_tokens, route)
            if fits_window(worker.load.all_tokens_queued, uncached, window.wide) and (
                uncached <= window.wide
                or window.open is None
                or self._leaves_one_open(request, decision.routes, window.open)
            ):
                self._queue.hold(ticket, worker.id, uncached)
                return self._placements.place(
                    request,
                    route,
                    uncached_tokens=uncached,
                    ticket=ticket,
                    now=self._clock(),
                    match=decision.match,
                )
        return None

    def _has_others_waiting(self, request: PendingRequest) -> bool:
        """Return whether the tenant of a request that waits has more requests waiting."""
        return self._rooms.of(request.queue).waiting_of(request.ctx.tenant.id) > 1

    def _leaves_one_open(self, request: PendingRequest, routes: Ranking, open_tokens: int) -> bool:
        """Return whether another of these workers is open when an idle one takes a long prompt."""
        workers = {prefill_worker_of(route) for route in routes}
        return leaves_one_open(
            (self._fleet[worker].load.all_tokens_queued for worker in workers),
            open_tokens,
            background=request.service_class.background,
        )
