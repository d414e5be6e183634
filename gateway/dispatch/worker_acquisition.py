"""How a request gets its placement on a worker: ranked, in its turn, at this gateway or at all of them together.

    alone    rank --- room, and no request waits ---> placement    waiting room: ranked again in its turn
    shared   rank --- Redis says when and where ----> placement    ranked again when its turn has come

Where turns are given may change while a request waits (gateway/queueing/shared/membership.py): it then asks anew,
and keeps its ticket's number. Its service class and its client's own timeout say when it is too late: the request
is then let go before it costs a prefill.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.first_worker import FirstWorkerWait
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements, in_fleet, prefill_worker_of
from gateway.dispatch.preemption import Preemption
from gateway.dispatch.provider_overflow import REFUSALS, OverflowDue, ProviderOverflow
from gateway.dispatch.queue_wait import queue_wait
from gateway.dispatch.ttft_target import Demoted, TtftTargets, target_at, uncached_tokens
from gateway.domain.errors import GatewayError, NoWorker, Overloaded
from gateway.domain.token_usage import ChargedTokens
from gateway.fleet.fleet import Fleet
from gateway.queueing.shared.preemption_requests import Need, PreemptionRequests
from gateway.queueing.shared.queue_store import ROUTES_MAX, SharedRoute, SharedTicket
from gateway.queueing.shared.shared_queue import AskAnew, NoRoute
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_room import NowhereToGo, Patience, QueuedRequest, WaitingRoom
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.queueing.worker_window import WorkerWindow
from gateway.quotas.quota_store import Lease
from gateway.routing.router import Decision, Router
from gateway.telemetry.request_events import ROUTES_MAX as ROUTES_KEPT_MAX
from policies.admission.dispatch_window import (
    close_enough_to_best,
    fits_window,
    hold_while_contended,
    leaves_one_open,
)
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Ranking, Route
from radix_cache.index import PrefixIndex
from radix_cache.match import PrefixMatch, WorkerId


class WorkerAcquisition:
    """Finds a placement for each request. `clock`: seconds on the monotonic clock."""

    def __init__(
        self,
        *,
        limits: DispatchLimits,
        fleet: Fleet,
        router: Router,
        index: PrefixIndex,
        queue: SharedTurns,
        rooms: WaitingRooms[Placement],
        placements: Placements,
        overflow: ProviderOverflow,
        window: WorkerWindow,
        preemption: Preemption,
        preemption_requests: PreemptionRequests,
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self._fleet = fleet
        self._router = router
        self._index = index
        self._queue = queue
        self._only = queue.only_membership
        self._rooms = rooms
        self._placements = placements
        self._overflow = overflow
        self._window = window
        self._preemption = preemption
        self._preemption_requests = preemption_requests
        self._clock = clock
        self._targets = TtftTargets(fleet, clock)
        self.first_worker = FirstWorkerWait(fleet, clock)

    async def acquire(self, request: PendingRequest) -> Placement:
        """Return a placement in the request's turn, at a provider if the tenant consents and no worker has room.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, DeadlinePassed.
        """
        while True:
            try:
                return await self._take_turn(request)
            except AskAnew:
                continue
            except OverflowDue:
                placement = await self.at_provider(request, "no worker here had room in time")
                if placement is not None:
                    return placement
            except REFUSALS as err:
                no_worker = isinstance(err, NoWorker)
                if no_worker or not request.service_class.background:
                    placement = await self.at_provider(request, f"{err.code} here")
                    if placement is not None:
                        return placement
                waiting_max = self._rooms.of(request.queue).rules.bounds.requests_max
                if no_worker and await self.first_worker.wait(request, waiting_max):
                    continue
                seconds = self._overflow.back_in_seconds(request, request.failed) if no_worker else None
                if seconds is not None:
                    raise Overloaded(seconds, reported_by_workers=True) from err
                raise
            except Demoted:
                placement = await self.at_provider(request, "no worker here in time")
                if placement is not None:
                    return placement
                request.demote()
            finally:
                if request.progress.queued_at is not None:
                    request.progress.queued_until = self._clock()
                if request.waits:
                    request.waits = False
                    self._index.leave(request.ctx.id)

    async def _take_turn(self, request: PendingRequest) -> Placement:
        room, tenant = self._rooms.of(request.queue), request.ctx.tenant.id
        self._window.of_all.see(
            request.ctx.model.name,
            request.service_class.ttft_seconds,
            tenant,
            crowds=tenant in room.tenants,
        )
        decision = self._rank(request)
        preempts = (
            self.limits.preempts and not request.background and self._preempt_in_time(request, decision)
        )
        if not preempts and (
            request.service_class.late in ("reject", "demote") or request.ctx.expires_at is not None
        ):
            self._targets.check(request, decision.routes, room)
        ticket = request.ticket = room.ticket(self._queued(request, decision.routes), request.ticket)
        placement: Placement | None
        if (self._only or self._queue.membership_of(request.queue)).shared:
            placement = await room.wait_with_all(
                ticket,
                partial(self._turn_of_all, request, ticket, decision),
                self._patience(request, room, ticket),
            )
        else:
            placement = room.at_once(ticket, partial(self.place_now, request, decision=decision))
            if placement is None:
                self._begin_to_wait(request, decision)
                try:
                    placement = await room.wait(
                        ticket, partial(self.place_now, request), self._patience(request, room, ticket)
                    )
                finally:
                    if placement is None:
                        self._rooms.room_made()  # Requests that stood behind this room may go now.
        request.charged_units = ticket.cost
        return placement

    def place_now(
        self,
        request: PendingRequest,
        closed: set[WorkerId] | None = None,
        *,
        decision: Decision | None = None,
    ) -> Placement | None:
        """Rank the request as of now and take the best worker that has room; return None if none has.

        `closed`: workers that requests before this one wait for; the workers that this request waits for are added.
        After a failure no room is needed: the request has had its turn.
        """
        over = bool(request.failed) and request.had_its_turn
        if decision is None:
            decision = self._rank(request)
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
        if request.service_class.background or (
            window.contended and closed is not None and self._has_others_waiting(request)
        ):
            tokens = window.narrow
        else:
            tokens = window.wide
            if window.contended:
                hold = hold_while_contended(hold)
        taken, waited_for = closed if closed is not None else set(), []
        for route in decision.routes:
            if not (over or close_enough_to_best(route.cost_ms, least_ms, hold)):
                break
            worker = self._fleet[route.prefill_worker or route.worker]
            uncached = max(1, request.prompt.prompt_tokens - route.matched_tokens)
            if over or (
                worker.id not in taken
                and fits_window(worker.load.all_tokens_queued, uncached, tokens)
                and (
                    uncached <= tokens
                    or window.open is None
                    or self._leaves_one_open(request, decision.routes, window.open)
                )
            ):
                if not over and self._router.shadow is not None:
                    self._router.shadowed(decision)
                ticket = self._shared_ticket(request)
                self._queue.hold(ticket, worker.id, uncached)
                return self._place(request, route, uncached, ticket, decision.match)
            waited_for.append(worker.id)
        taken.update(waited_for)
        return None

    async def second_placement(self, request: PendingRequest, first: Placement) -> Placement | None:
        """Return one more placement for the same request, at no cost; None unless there is room without a queue."""
        decision = self._rank(request, without=(first.worker.id, first.prefill_worker.id))
        if self._rooms.requests_wait_beside(request.ctx.model.name):
            return None
        ticket = self._shared_ticket(request, cost=0.0)
        if self._queue.membership_of(request.queue).shared:
            known = dict[WorkerId, Route]()
            turn = await self._queue.spare(ticket, self._shared_routes(request, decision, known))
            if turn is None:
                return None
            if not in_fleet(self._fleet, known[turn.worker]):
                self._queue.leave(ticket, 0.0)
                return None
            return self._place(request, known[turn.worker], turn.uncached_tokens, ticket, decision.match)
        window = self._window.of(request.ctx.model.name)
        for route in decision.routes:
            worker = self._fleet[prefill_worker_of(route)]
            uncached = uncached_tokens(request.prompt.prompt_tokens, route)
            if fits_window(worker.load.all_tokens_queued, uncached, window.wide) and (
                uncached <= window.wide
                or window.open is None
                or self._leaves_one_open(request, decision.routes, window.open)
            ):
                return self._place_here(request, route, uncached, ticket, decision.match)
        return None

    async def at_provider_after_failure(self, request: PendingRequest, why: str) -> Placement | None:
        """Return a placement at a provider after workers here failed; batch work stays with its model's workers."""
        if request.service_class.background and self._fleet.serving(request.ctx.model.name):
            return None
        return await self.at_provider(request, why)

    async def at_provider(self, request: PendingRequest, why: str) -> Placement | None:
        """Return a placement at a provider, which takes no turn here; None without room or the tenant's consent."""
        if not request.ctx.tenant.may_overflow:
            return None
        taken = await self._overflow.take(request, why, request.failed)
        if taken is None:
            return None
        route, lease = taken
        request.providers_tried.add(route.worker)
        uncached = uncached_tokens(request.prompt.prompt_tokens, route)
        if request.ticket is None:
            request.ticket = self._rooms.of(request.queue).ticket(self._queued(request, ()))
        ticket = self._shared_ticket(request, cost=0.0)
        return self._place_here(request, route, uncached, ticket, None, lease)

    def end_turn(
        self, request: PendingRequest, used: ChargedTokens | None, end: Callable[[float], bool]
    ) -> None:
        """Charge the request's tenant in the queue with what was used in place of the estimate.

        `end` frees the placement, given the change in cost units, and returns whether other gateways keep the
        queue's counters; if not, the waiting room here does.
        """
        units = 0.0
        if used is not None:
            cached = used.cached_tokens or 0
            units = request.limits.cost_weights.units(
                uncached_tokens=used.prompt_tokens - cached,
                cached_tokens=cached,
                output_tokens=used.output_tokens,
            )
        change, request.charged_units = units - request.charged_units, units
        kept_elsewhere = end(change)
        if request.ticket is not None:
            self._rooms.of(request.queue).correct(request.ticket, change, counted_elsewhere=kept_elsewhere)

    async def _turn_of_all(self, request: PendingRequest, ticket: Ticket, decision: Decision) -> Placement:
        """Return a placement in the turn that all gateways together give. `decision`: as of this moment."""
        known = dict[WorkerId, Route]()
        shared = self._shared_ticket(request)
        asked = False

        def begin_to_wait() -> None:
            self._rooms.of(request.queue).waits(ticket)
            self._begin_to_wait(request, decision)

        def routes() -> list[SharedRoute]:
            nonlocal asked, decision
            if asked:
                decision = self._rank(request)
            asked = True
            return self._shared_routes(request, decision, known)

        try:
            turn = await self._queue.turn(shared, ticket, routes, begin_to_wait)
        except NoRoute:
            raise NoWorker(request.ctx.model.name) from None
        route = known[turn.worker]
        try:
            # The turn was asked for when all of these workers were in the fleet.
            if not in_fleet(self._fleet, route):
                raise AskAnew
            left = tuple(each for each in decision.routes if in_fleet(self._fleet, each))
            self._targets.check(request, left, self._rooms.of(request.queue))
        except (GatewayError, Demoted, AskAnew):
            self._queue.leave(shared, -shared.cost)
            raise
        self._router.shadowed(decision)
        return self._place(request, route, turn.uncached_tokens, shared, decision.match)

    def _rank(self, request: PendingRequest, without: Collection[WorkerId] = ()) -> Decision:
        """Rank the workers as of now.

        A service class that prefers another worker to being late gets the workers in time, if there are any.
        """
        failed = request.failed
        decision = self._router.ranked(
            request.ctx,
            request.prompt,
            sequence=request.sequence,
            output_tokens=request.output_tokens,
            session=request.session,
            without={*failed, *without} if without else failed,
            waits=request.waits,
            by_shadow=request.by_shadow,
        )
        if request.service_class.late == "wait" or (failed and request.had_its_turn):
            request.progress.ranking = decision.routes[:ROUTES_KEPT_MAX]
            return decision
        routes = self._targets.routes_in_time(request, decision.routes) or decision.routes
        request.progress.ranking = routes[:ROUTES_KEPT_MAX]
        return msgspec.structs.replace(decision, routes=routes)

    def _shared_routes(
        self, request: PendingRequest, decision: Decision, known: dict[WorkerId, Route]
    ) -> list[SharedRoute]:
        """Return the routes as Redis knows them: one for each worker that prefills, the better one of two."""
        ranking = {prefill_worker_of(route): route for route in reversed(decision.routes)}
        known.update(ranking)
        return [
            self._shared_route(request, ranking[worker]) for worker in list(ranking)[: -ROUTES_MAX - 1 : -1]
        ]

    def _shared_route(self, request: PendingRequest, route: Route) -> SharedRoute:
        """Return a route with a cost that Redis can compute for any number of tokens queued at the turn."""
        worker = prefill_worker_of(route)
        queued = self._fleet[worker].load.all_tokens_queued
        return SharedRoute(
            worker,
            uncached_tokens(request.prompt.prompt_tokens, route),
            route.cost_ms - route.ms_per_queued_token * queued,
            route.ms_per_queued_token,
        )

    def _queued(self, request: PendingRequest, routes: Sequence[Route]) -> QueuedRequest:
        """Return what the queue policy may know of the request."""
        prompt_tokens, best, tenant = request.prompt.prompt_tokens, None, request.ctx.tenant
        cached = 0
        if routes:
            best = routes[0]
            cached = min(best.matched_tokens, prompt_tokens)
        uncached = prompt_tokens - cached
        service_class = request.service_class
        return QueuedRequest(
            tenant=tenant.id,
            weight=tenant.plan.weight,
            cost=request.limits.cost_weights.units(
                uncached_tokens=uncached, cached_tokens=cached, output_tokens=request.output_tokens
            ),
            uncached_tokens=uncached,
            cached_tokens=cached,
            worker=prefill_worker_of(best) if best is not None and cached else "",
            deadline=target_at(request),
            service_class=service_class.name,
            level=service_class.level,
        )

    def _shared_ticket(self, request: PendingRequest, *, cost: float | None = None) -> SharedTicket:
        assert request.ticket is not None
        return self._queue.ticket(request.ticket, request.queue, request.kv_tokens, cost=cost)

    def _place_here(
        self,
        request: PendingRequest,
        route: Route,
        uncached: int,
        ticket: SharedTicket,
        match: PrefixMatch | None,
        provider_lease: Lease | None = None,
    ) -> Placement:
        """Make a placement that this gateway gives by itself."""
        self._queue.hold(ticket, prefill_worker_of(route), uncached)
        return self._place(request, route, uncached, ticket, match, provider_lease)

    def _place(
        self,
        request: PendingRequest,
        route: Route,
        uncached: int,
        ticket: SharedTicket,
        match: PrefixMatch | None,
        provider_lease: Lease | None = None,
    ) -> Placement:
        return self._placements.place(
            request.ctx,
            request.prompt,
            route,
            uncached_tokens=uncached,
            ticket=ticket,
            session=request.session,
            now=self._clock(),
            match=match,
            provider_lease=provider_lease,
        )

    def _patience(
        self, request: PendingRequest, room: WaitingRoom[Placement], ticket: Ticket
    ) -> Patience | None:
        """Return what ends the request's wait besides the room's own bound."""
        ends = self._targets.patience(request, room, ticket)
        if request.service_class.background:
            return ends
        at = self._overflow.overflows_at(request, ticket.arrived_at, request.failed)
        if at is None or (ends is not None and ends.until <= at):
            return ends
        return Patience(at, lambda _: OverflowDue())

    def _begin_to_wait(self, request: PendingRequest, decision: Decision) -> None:
        if request.progress.queued_at is None:
            request.progress.queued_at = self._clock()
            shared = self._queue.membership_of(request.queue).shared
            request.progress.wait = queue_wait(
                request, self._fleet, self._rooms.of(request.queue), self._window, shared
            )
        request.waits = True
        self._index.wait(request.prompt.namespace, request.prompt.hashes, request.ctx.id)
        if self.limits.preempts and not request.background:
            window = self._window.of(request.ctx.model.name).wide
            self._preempt(request, decision.routes, lambda _: window)

    def _preempt_in_time(self, request: PendingRequest, decision: Decision) -> bool:
        """Make batch requests give up room if no route meets the target; return whether that is enough."""
        routes = decision.routes
        if not routes or self._targets.routes_in_time(request, routes):
            return False
        return self._preempt(request, routes, partial(self._targets.tokens_in_time, request))

    def _preempt(self, request: PendingRequest, routes: Ranking, window_of: Callable[[Route], int]) -> bool:
        """Make batch requests give up room for this one, if that is enough: here, or else at another gateway.

        `window_of` returns the tokens that the route's worker may have ahead. Returns whether they do so here.
        """
        needs = [
            Need(
                prefill_worker_of(route),
                uncached_tokens(request.prompt.prompt_tokens, route),
                self._fleet[prefill_worker_of(route)].load.all_tokens_queued,
                window_of(route),
            )
            for route in routes[:ROUTES_MAX]
            if in_fleet(self._fleet, route)  # A worker may have left while Redis was asked.
        ]
        if self._preemption.make_room(needs):
            return True
        if self._queue.membership_of(request.queue).shared:
            self._preemption_requests.send(needs)
        return False

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
