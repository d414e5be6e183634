"""How a request gets its placement on a worker: ranked, in its turn, at this gateway or at all of them together.

    own turn     rank --- room, and no request waits ---> placement    waiting room: ranked again in its turn
    shared turn  rank --- Redis says when and where ----> placement    ranked again when its turn has come

Where turns are given may change while a request waits (gateway/queueing/shared/membership.py): it then asks anew,
and keeps its ticket's number. Its service class and its client's own timeout say when it is too late: the request
is then let go before it costs a prefill.
"""

from collections.abc import Callable
from functools import partial

from gateway.dispatch.acquisition.first_worker import FirstWorkerWait
from gateway.dispatch.acquisition.own_turn_placements import OwnTurnPlacements
from gateway.dispatch.acquisition.provider_overflow import REFUSALS, OverflowDue, ProviderOverflow
from gateway.dispatch.acquisition.queue_wait import queue_wait
from gateway.dispatch.acquisition.request_ranking import RequestRanking, queued_request
from gateway.dispatch.acquisition.shared_turn_placements import SharedTurnPlacements
from gateway.dispatch.acquisition.ttft_target import Demoted, TtftTargets, uncached_tokens
from gateway.dispatch.acquisition.urgent_preemption import UrgentPreemption
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements
from gateway.dispatch.preemption import Preemption
from gateway.domain.errors import NoWorker, Overloaded
from gateway.domain.token_usage import ChargedTokens
from gateway.fleet.fleet import Fleet
from gateway.queueing.dispatch_windows import OwnDispatchWindows
from gateway.queueing.shared.preemption_requests import PreemptionRequests
from gateway.queueing.shared.shared_queue import AskAnew
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_room import Patience, WaitingRoom, with_estimate
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.routing.router import Decision, Router
from policies.admission.waiting_bounds import NONE_WAITING
from policies.queueing.protocol import Ticket
from radix_cache.index import PrefixIndex


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
        window: OwnDispatchWindows,
        preemption: Preemption,
        preemption_requests: PreemptionRequests,
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self._fleet = fleet
        self._index = index
        self._queue = queue
        self._only = queue.only_membership
        self._rooms = rooms
        self._placements = placements
        self._overflow = overflow
        self._window = window
        self._clock = clock
        targets = self._targets = TtftTargets(fleet, clock)
        ranking = self._ranking = RequestRanking(router, targets)
        self.own_turns = OwnTurnPlacements(
            limits=limits,
            fleet=fleet,
            ranking=ranking,
            targets=targets,
            queue=queue,
            rooms=rooms,
            placements=placements,
            window=window,
            clock=clock,
        )
        self._shared_turns = SharedTurnPlacements(
            fleet=fleet,
            ranking=ranking,
            targets=targets,
            queue=queue,
            rooms=rooms,
            placements=placements,
            clock=clock,
        )
        self._urgent = UrgentPreemption(fleet, queue, targets, preemption, preemption_requests)
        self.first_worker = FirstWorkerWait(fleet, clock)

    def reconfigure(self, limits: DispatchLimits) -> None:
        """Keep to these limits from now on."""
        self.limits = self.own_turns.limits = limits

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
        self._window.of_all_gateways.note_request(
            request.ctx.model.name,
            request.service_class.ttft_seconds,
            tenant,
            crowds=tenant in room.tenants,
            flood=room.flood_of(tenant) if room.tenants else NONE_WAITING,
        )
        decision = self._ranking.rank(request)
        preempts = (
            self.limits.preempts
            and not request.background
            and self._urgent.make_room_in_time(request, decision.routes)
        )
        if not preempts and (
            request.service_class.late in ("reject", "demote") or request.ctx.expires_at is not None
        ):
            self._targets.check(request, decision.routes, room)
        ticket = request.ticket = room.ticket(queued_request(request, decision.routes), request.ticket)
        placement: Placement | None
        if (self._only or self._queue.membership_of(request.queue)).shared:
            placement = await room.wait_with_all(
                ticket,
                partial(self._shared_turns.place_in_turn, request, ticket, decision, self._begin_to_wait),
                self._patience(request, room, ticket),
            )
        else:
            placement = room.at_once(ticket, partial(self.own_turns.place_now, request, decision=decision))
            if placement is None:
                self._begin_to_wait(request, decision)
                try:
                    placement = await room.wait(
                        ticket,
                        partial(self.own_turns.place_now, request),
                        self._patience(request, room, ticket),
                        partial(self._estimated_anew, request),
                    )
                finally:
                    if placement is None:
                        self._rooms.give_turns()  # Requests that stood behind this room may go now.
        request.charged_units = request.ticket.cost
        return placement

    async def second_placement(self, request: PendingRequest, first: Placement) -> Placement | None:
        """Return one more placement for the same request, at no cost; None unless there is room without a queue."""
        decision = self._ranking.rank(request, without=(first.worker.id, first.prefill_worker.id))
        if self._rooms.requests_wait_beside(request.ctx.model.name):
            return None
        assert request.ticket is not None
        ticket = self._queue.ticket(request.ticket, request.queue, request.kv_tokens, cost=0.0)
        if self._queue.membership_of(request.queue).shared:
            return await self._shared_turns.place_second(request, ticket, decision)
        return self.own_turns.place_second(request, ticket, decision)

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
            request.ticket = self._rooms.of(request.queue).ticket(queued_request(request, ()))
        ticket = self._queue.ticket(request.ticket, request.queue, request.kv_tokens, cost=0.0)
        self._queue.note_placed(ticket, route.worker, uncached)
        return self._placements.place(
            request,
            route,
            uncached_tokens=uncached,
            ticket=ticket,
            now=self._clock(),
            match=None,
            provider_lease=lease,
        )

    def end_and_correct(
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

    def _estimated_anew(self, request: PendingRequest) -> Ticket:
        """Return the ticket with the tokens and the cost as of now: others may have computed the prefix."""
        ticket, routes = request.ticket, self._ranking.rank(request).routes
        assert ticket is not None
        if routes:
            asked = queued_request(request, routes)
            if asked.uncached_tokens != ticket.uncached_tokens:
                ticket = request.ticket = with_estimate(ticket, asked)
        return ticket

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
            self._urgent.make_room(request, decision.routes, lambda _: window)
