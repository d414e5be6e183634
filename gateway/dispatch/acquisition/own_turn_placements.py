"""Placements in turns that this gateway gives by itself, on workers that have room by its own counts."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from gateway.dispatch.acquisition.filled_routes import allowed_routes
from gateway.dispatch.acquisition.request_ranking import RequestRanking
from gateway.dispatch.acquisition.ttft_target import TtftTargets, tokens_to_compute
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.last_ranking import LastRanking
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements, prefill_worker_of
from gateway.domain.errors import NoWorker
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.queueing.dispatch_windows import OwnDispatchWindows
from gateway.queueing.shared.queue_messages import SharedTicket, WorkerRoom
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.routing.router import Decision
from policies.admission.awaited_tokens import own_worker_route
from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.hold import close_enough_to_best, hold_while_contended
from policies.admission.window_room import fits_window, leaves_one_open
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Ranking, Route
from radix_cache.match import WorkerId

COST_MS = attrgetter("cost_ms")


class Look(NamedTuple):
    """What holds for one request while its workers are looked at."""

    pending: PendingRequest
    closed: ClosedWorkers | None
    """The workers that requests before this one wait for. None: it has just come, and no other waits; no worker is
    closed to it, and it closes none."""
    window: DispatchWindow
    hold: float | None
    """How much more than the best worker another one may cost; see close_enough_to_best."""
    crowds: bool
    """Whether its tenant has more requests waiting, while tenants contend, and it is not batch work."""
    is_narrow: bool
    """Whether the narrow dispatch window holds for it: it is batch work, or its tenant crowds."""
    patient: bool
    """Whether it fills the workers that others leave; see DispatchWindow.is_patient."""


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
        window: OwnDispatchWindows,
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
        pending: PendingRequest,
        closed: ClosedWorkers | None = None,
        *,
        decision: Decision | None = None,
    ) -> Placement | None:
        """Rank the request as of now and take the best worker that has room; return None if none has.

        `closed`: workers that requests before this one wait for; the workers that this request waits for are added.
        It is None for a request that has just come while no other request waits. Raises NoWorker if no worker is
        left to rank, and what TtftTargets.check raises.
        """
        if decision is None:
            if closed is not None and self._still_waits(pending, closed):
                return None
            decision = self._ranking.rank(pending)
            room = self._rooms.of(pending.queue_name)
            self._targets.check(pending, decision.routes, room, demotes=False)
        if not decision.routes:
            raise NoWorker(pending.ctx.model.name)
        look = self._look(pending, closed)
        routes = self._routes_to_look_at(look, decision.routes)
        route = self._with_room(zip(map(COST_MS, routes), routes, strict=True), decision.routes, look)
        if route is not None:
            if self._router.shadow is not None:
                self._router.compare_with_shadow(decision)
            return self._place_on(route, pending, decision)
        if closed is not None:
            workers = self._fleet.serving(pending.ctx.model.name)
            pending.last_ranking = LastRanking.of(routes, self._fleet, workers, look.window, self._clock())
        return None

    def place_without_call(self, pending: PendingRequest, decision: Decision) -> Placement | None:
        """Place a request that has just come on its best worker, from this gateway's part of the window there.

        Return None if Redis has to decide: see gateway/queueing/shared/own_places.py.
        """
        background, routes = pending.service_class.background, decision.routes
        if background or not routes or not self._queue.may_give(pending.queue_name, pending.ctx.tenant.id):
            return None
        look = self._look(pending, None)
        route = self._routes_to_look_at(look, routes)[0]
        worker, window = prefill_worker_of(route), look.window
        if not self.has_room(
            worker, route, pending, routes, window, is_narrow=look.is_narrow, patient=look.patient
        ):
            return None
        assert pending.ticket is not None
        ticket = self._queue.ticket(pending.ticket, pending.queue_name, pending.kv_tokens)
        uncached = tokens_to_compute(pending.prompt.prompt_tokens, route)
        there = self._fleet[worker]
        room = WorkerRoom(
            there.load.all_tokens_queued,
            window.tokens(worker, is_narrow=look.is_narrow, patient=look.patient),
            there.speed.ms_per_token,
        )
        if not self._queue.give(ticket, worker, uncached, room):
            return None
        if self._router.shadow is not None:
            self._router.compare_with_shadow(decision)
        return self._placements.place(
            pending, route, uncached_tokens=uncached, ticket=ticket, now=self._clock(), match=decision.match
        )

    def place_after_failure(self, pending: PendingRequest) -> Placement | None:
        """Place a request whose worker has failed on the best of the others; return None if there is none.

        No room is needed there: the request has waited its turn.
        """
        decision = self._ranking.rank(pending)
        return self._place_on(decision.routes[0], pending, decision) if decision.routes else None

    def _routes_to_look_at(self, look: Look, routes: Ranking) -> Ranking:
        """Return the routes that are open to a request: all, those that its window allows, or the awaited one."""
        window = look.window
        if window.filled is not None and (look.patient or window.contended or window.counts_own):
            prompt_tokens = look.pending.prompt.prompt_tokens
            routes = allowed_routes(routes, prompt_tokens, window, patient=look.patient)
            if not window.waits_for_slots(patient=look.patient):
                routes = tuple(each for each in routes if self._has_slot(each, look)) or routes
        if look.closed is not None and look.hold is not None and window.awaits_one:
            routes = self._awaited_route(look.pending, routes)
        return routes

    def _still_waits(self, pending: PendingRequest, closed: ClosedWorkers) -> bool:
        """Return whether no worker will do by the request's last ranking either; see last_ranking.py."""
        last = pending.last_ranking
        if last is None:
            return False
        model = pending.ctx.model.name
        if not last.holds(self._fleet.serving(model), self._window.of(model), self._clock()):
            return False
        look = self._look(pending, closed)
        return self._with_room(last.routes_now(self._fleet), last.routes, look) is None

    def _look(self, pending: PendingRequest, closed: ClosedWorkers | None) -> Look:
        """Return what holds for the request while its workers are looked at."""
        window, hold = self._window.of(pending.ctx.model.name), self.limits.hold
        background = pending.service_class.background
        crowds = (
            window.contended and not background and closed is not None and self._has_others_waiting(pending)
        )
        is_narrow = background or crowds
        patient = window.filled is not None and window.is_patient(
            pending.service_class.ttft_seconds,
            is_narrow=is_narrow,
            work_share=pending.ticket.work_share if pending.ticket is not None else 0.0,
        )
        if window.takes_dearer(is_narrow=is_narrow, patient=patient):
            hold = hold_while_contended(hold)
        return Look(pending, closed, window, hold, crowds, is_narrow, patient)

    def _with_room(self, routes: Iterable[tuple[float, Route]], ranking: Ranking, look: Look) -> Route | None:
        """Return the first route, by cost, whose worker has room; None if it is better to wait.

        The workers that the request then waits for are closed to later requests.
        """
        least_ms, waited_for, closed = None, [], look.closed
        for cost_ms, route in routes:
            if least_ms is None:
                least_ms = cost_ms
            elif not close_enough_to_best(cost_ms, least_ms, look.hold):
                break
            worker = route.prefill_worker or route.worker
            if (closed is None or closed.allows(worker, crowds=look.crowds)) and self.has_room(
                worker,
                route,
                look.pending,
                ranking,
                look.window,
                is_narrow=look.is_narrow,
                patient=look.patient,
            ):
                return route
            waited_for.append(worker)
        if closed is not None:
            closed.close(waited_for, crowds=look.crowds)
        return None

    def own_route(self, pending: PendingRequest, routes: Ranking) -> Route | None:
        """Return the route to the request's own worker (awaited_tokens.py); None if it waits for no certain one."""
        model = pending.ctx.model.name
        # Of a large fleet a ranking has a part only.
        small = routes and self._fleet.least_loaded(model) is None
        if small and self.limits.hold is not None and self._window.of(model).awaits_one:
            return own_worker_route(routes)
        return None

    def await_worker(self, pending: PendingRequest, routes: Ranking) -> Ticket:
        """Let a request wait for its own worker, if it has one; return its ticket, which names that.

        Its prompt counts there for other requests: once for each gateway, since all get the same traffic, and none
        reports which requests wait in it.
        """
        self.stop_awaiting(pending)
        ticket, own = pending.ticket, self.own_route(pending, routes)
        pending.last_ranking = None
        assert ticket is not None
        worker = WorkerId("")
        if own is not None:
            worker = prefill_worker_of(own)
            uncached = tokens_to_compute(pending.prompt.prompt_tokens, own)
            self._router.awaited.wait(pending.ctx.id, worker, uncached, gateways=self._queue.gateways)
        if ticket.awaits != worker:
            ticket = pending.ticket = replace(ticket, awaits=worker)
        return ticket

    def stop_awaiting(self, pending: PendingRequest) -> None:
        """End a request's wait for its own worker. Calling it twice has no effect."""
        self._router.awaited.leave(pending.ctx.id)

    def _awaited_route(self, pending: PendingRequest, routes: Ranking) -> Ranking:
        """Return the route to the request's own worker; all routes if that is gone, or it has none."""
        awaited = pending.ticket.awaits if pending.ticket is not None else ""
        return tuple(route for route in routes if prefill_worker_of(route) == awaited)[:1] or routes

    def place_second(
        self, pending: PendingRequest, ticket: SharedTicket, decision: Decision
    ) -> Placement | None:
        """Return one more placement for the same request on a worker with room; None if none has."""
        window = self._window.of(pending.ctx.model.name)
        for route in decision.routes:
            worker = prefill_worker_of(route)
            if self.has_room(worker, route, pending, decision.routes, window, is_narrow=False):
                return self._place_on(route, pending, decision, ticket)
        return None

    def has_room(
        self,
        worker: WorkerId,
        route: Route,
        pending: PendingRequest,
        routes: Ranking,
        window: DispatchWindow,
        *,
        is_narrow: bool,
        patient: bool = False,
    ) -> bool:
        """Return whether the worker that computes the prompt on this route has room for it, and a slot.

        A long prompt (DispatchWindow.is_long) also has to leave another worker open.
        """
        uncached, there = tokens_to_compute(pending.prompt.prompt_tokens, route), self._fleet[worker]
        tokens_max = window.tokens(worker, is_narrow=is_narrow, patient=patient)
        taken = window.taken_by(uncached, is_narrow=is_narrow, patient=patient)
        if not fits_window(there.load.all_tokens_queued, taken, tokens_max):
            return False
        if not self._leaves_slots(there, pending, window, is_narrow=is_narrow, patient=patient):
            return False
        if not window.is_long(uncached, tokens_max):
            return True
        work_share = pending.ticket.work_share if pending.ticket is not None else 0.0
        left_open = window.open_beside(is_narrow=is_narrow, work_share=work_share)
        return left_open is None or self._leaves_one_open(pending, routes, left_open)

    def _has_slot(self, route: Route, look: Look) -> bool:
        """Return whether the engine that computes the prompt on this route has a slot for the request."""
        worker = self._fleet[prefill_worker_of(route)]
        return self._leaves_slots(
            worker, look.pending, look.window, is_narrow=look.is_narrow, patient=look.patient
        )

    def _leaves_slots(
        self,
        worker: Worker,
        pending: PendingRequest,
        window: DispatchWindow,
        *,
        is_narrow: bool,
        patient: bool,
    ) -> bool:
        """Return whether the request leaves the slots of an engine that others have to find."""
        return worker.slots is None or worker.load.all_streams < window.slots_allowed(
            worker.slots,
            background=pending.service_class.background,
            is_narrow=is_narrow,
            work_share=pending.ticket.work_share if pending.ticket is not None else 0.0,
            for_urgent=window.keeps_for_urgent(worker.id, patient=patient),
        )

    def _place_on(
        self, route: Route, pending: PendingRequest, decision: Decision, ticket: SharedTicket | None = None
    ) -> Placement:
        """Take a place on the worker of a route; `ticket`: of another placement for the same request."""
        if pending.waits:
            self.stop_awaiting(pending)
        uncached = tokens_to_compute(pending.prompt.prompt_tokens, route)
        if ticket is None:
            assert pending.ticket is not None
            ticket = self._queue.ticket(pending.ticket, pending.queue_name, pending.kv_tokens)
        self._queue.note_placed(ticket, route.prefill_worker or route.worker, uncached)
        return self._placements.place(
            pending, route, uncached_tokens=uncached, ticket=ticket, now=self._clock(), match=decision.match
        )

    def _has_others_waiting(self, pending: PendingRequest) -> bool:
        """Return whether the tenant of a request that waits has more requests waiting."""
        return self._rooms.of(pending.queue_name).waiting_of(pending.ctx.tenant.id) > 1

    def _leaves_one_open(self, pending: PendingRequest, routes: Ranking, open_tokens: int) -> bool:
        """Return whether another of these workers is open when an idle one takes a long prompt."""
        workers = {prefill_worker_of(route) for route in routes}
        return leaves_one_open(
            (self._fleet[worker].load.all_tokens_queued for worker in workers),
            open_tokens,
            background=pending.service_class.background,
        )
