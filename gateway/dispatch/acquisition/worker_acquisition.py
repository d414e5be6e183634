"""Worker acquisition: how a request gets its placement, in its turn at this gateway or at all of them together.

    own turn     rank --- room, and no request waits ---> placement    waiting room: ranked again in its turn
    shared turn  rank --- Redis decides when and where -> placement    ranked again when its turn has come

Turns may come to be given by this gateway alone, or by Redis, while a request waits
(gateway/queueing/shared/membership.py): it then enters the other queue, and keeps its ticket's number. Its service
class and its client's own timeout decide when it is too late: it is then refused before it costs a prefill.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from gateway.dispatch.acquisition.first_worker import FirstWorkerWait
from gateway.dispatch.acquisition.own_turn_placements import OwnTurnPlacements
from gateway.dispatch.acquisition.provider_overflow import REFUSALS, OverflowDue, ProviderOverflow
from gateway.dispatch.acquisition.provider_placements import ProviderPlacements
from gateway.dispatch.acquisition.queue_wait import queue_wait
from gateway.dispatch.acquisition.request_ranking import RequestRanking, queued_request
from gateway.dispatch.acquisition.shared_turn_placements import SharedTurnPlacements
from gateway.dispatch.acquisition.ttft_target import Demoted, TtftTargets
from gateway.dispatch.acquisition.urgent_preemption import UrgentPreemption
from gateway.dispatch.acquisition.wait_rules import WaitRules
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements
from gateway.dispatch.preemption import Preemption
from gateway.domain.errors import NoWorker, Overloaded
from gateway.domain.token_usage import ChargedTokens
from gateway.fleet.fleet import Fleet
from gateway.queueing.dispatch_windows import OwnDispatchWindows
from gateway.queueing.queued_request import QueuedRequest, with_estimate
from gateway.queueing.shared.preemption_requests import PreemptionRequests
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.shared.turn_requests import TurnLost
from gateway.queueing.waiting_room import WaitingRoom
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
        self.providers = ProviderPlacements(fleet, overflow, queue, rooms, placements, clock)
        self._wait_rules = WaitRules(overflow, clock)
        targets = self.targets = TtftTargets(fleet, clock)
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
            own_turns=self.own_turns,
            clock=clock,
        )
        self._urgent = UrgentPreemption(fleet, queue, targets, preemption, preemption_requests)
        self.first_worker = FirstWorkerWait(fleet, clock)

    def reconfigure(self, limits: DispatchLimits) -> None:
        """Keep to these limits from now on."""
        self.limits = self.own_turns.limits = limits

    async def acquire(self, pending: PendingRequest) -> Placement:
        """Return a placement in the request's turn, at a provider if the tenant consents and no worker has room.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, ClientTimeoutPassed.
        """
        while True:
            try:
                return await self._take_turn(pending)
            except TurnLost:
                continue  # The request enters the queue again.
            except OverflowDue:
                placement = await self.providers.place(pending, "no worker here had room in time")
                if placement is not None:
                    return placement
            except NoWorker as err:
                placement = await self.providers.place(pending, f"{err.code} here")
                if placement is not None:
                    return placement
                if not await self._wait_for_first_worker(pending):
                    raise
            except REFUSALS as err:
                if pending.service_class.background:
                    raise
                placement = await self.providers.place(pending, f"{err.code} here")
                if placement is None:
                    raise
                return placement
            except Demoted:
                placement = await self.providers.place(pending, "no worker here in time")
                if placement is not None:
                    return placement
                pending.demote()
            finally:
                if pending.progress.queued_at is not None:
                    pending.progress.queued_until = self._clock()
                if pending.waits:
                    pending.waits = False
                    self._index.leave(pending.ctx.id)

    async def _wait_for_first_worker(self, pending: PendingRequest) -> bool:
        """Return whether the model, which had no worker, has one now; if its settings allow, wait for it first.

        Raises Overloaded where a provider may be tried again later.
        """
        waiting_max = self._rooms.of(pending.queue_name).rules.bounds.requests_max
        if await self.first_worker.wait(pending, waiting_max):
            return True
        seconds = self._overflow.back_in_seconds(pending, pending.failed_workers)
        if seconds is not None:
            raise Overloaded(seconds, reported_by_workers=True)
        return False

    async def _take_turn(self, pending: PendingRequest) -> Placement:
        """Return a placement on a worker here, at once or in the request's turn. Raises what `acquire` handles."""
        room, tenant = self._rooms.of(pending.queue_name), pending.ctx.tenant.id
        shared = (self._only or self._queue.membership_of(pending.queue_name, tenant)).shared
        decision, asked = self._rank_and_count(pending, room, shared=shared)
        self._preempt_or_refuse(pending, decision, room)

        # Take a turn among the requests of all gateways, or of this one.
        ticket = pending.ticket = room.ticket(asked, pending.ticket)
        placement: Placement | None
        if shared:
            placement = None
            if not room.some_wait:
                placement = self.own_turns.place_without_call(pending, decision)
            if placement is not None:
                room.received.record(ticket, self._clock())
            else:
                placement = await room.wait_with_all(
                    ticket,
                    partial(self._shared_turns.place_in_turn, pending, ticket, decision, self._begin_to_wait),
                    self._wait_rules.soonest_end(pending, room, ticket),
                )
        else:
            placement = room.at_once(ticket, partial(self.own_turns.place_now, pending, decision=decision))
            if placement is None:
                self._begin_to_wait(pending, decision)
                ticket = self.own_turns.await_worker(pending, decision.routes)
                placement = await self._wait_for_own_turn(pending, room, ticket)

        if pending.waits:
            self._window.of_all_gateways.note_turn(
                pending.ctx.model.name,
                pending.service_class.ttft_seconds,
                tenant,
                tokens=ticket.uncached_tokens,
                crowds=tenant in room.tenants,
                flood=room.flood_of(tenant),
            )
        pending.charged_units = pending.ticket.cost
        return placement

    def _rank_and_count(
        self, pending: PendingRequest, room: WaitingRoom[Placement], *, shared: bool
    ) -> tuple[Decision, QueuedRequest]:
        """Rank the workers, and count the request in the demand that the dispatch windows follow.

        Returns the ranking, and the request's ticket of the queue.
        """
        windows, model, tenant = self._window.of_all_gateways, pending.ctx.model.name, pending.ctx.tenant.id
        waits = bool(room.waiters.by_number) and not shared and self._waits_whatever_the_ranking(pending)
        decision = self._ranking.rank(pending, known_only=waits)
        asked = queued_request(pending, decision.routes, decision.query.shared)
        windows.note_request(
            model,
            pending.service_class.ttft_seconds,
            tenant,
            tokens=asked.uncached_tokens,
            crowds=tenant in room.tenants,
            flood=room.flood_of(tenant) if room.tenants else NONE_WAITING,
        )
        work_share = windows.work_share(model, tenant, pending.service_class.ttft_seconds)
        return decision, msgspec.structs.replace(asked, work_share=work_share) if work_share else asked

    def _preempt_or_refuse(
        self, pending: PendingRequest, decision: Decision, room: WaitingRoom[Placement]
    ) -> None:
        """Preempt batch work for an urgent request; without that refuse one that would miss its target.

        Raises what TtftTargets.check raises.
        """
        preempts = (
            self.limits.preempts
            and not pending.background
            and self._urgent.make_room_in_time(pending, decision.routes)
        )
        if not preempts and (
            pending.service_class.late in ("reject", "demote") or pending.ctx.expires_at is not None
        ):
            self.targets.check(pending, decision.routes, room)

    def _waits_whatever_the_ranking(self, pending: PendingRequest) -> bool:
        """Return whether a request waits behind others until its turn, in which it is ranked in any case.

        Then its ranking on arrival is only used for the number of its prompt tokens that are cached.
        """
        may_preempt = self.limits.preempts and not pending.background
        return not may_preempt and pending.service_class.late == "wait" and pending.ctx.expires_at is None

    async def _wait_for_own_turn(
        self, pending: PendingRequest, room: WaitingRoom[Placement], ticket: Ticket
    ) -> Placement:
        """Return a placement in the request's turn among those of this gateway."""
        placement = None
        try:
            placement = await room.wait(
                ticket,
                partial(self.own_turns.place_now, pending),
                self._wait_rules.soonest_end(pending, room, ticket),
                partial(self._estimated_again, pending),
            )
        finally:
            self.own_turns.stop_awaiting(pending)
            if placement is None:
                self._rooms.give_turns()  # Requests that stood behind this room may go now.
        return placement

    async def second_placement(self, pending: PendingRequest, first: Placement) -> Placement | None:
        """Return one more placement for the same request, at no cost; None unless there is room without a queue."""
        decision = self._ranking.rank(pending, without=(first.worker.id, first.prefill_worker.id))
        if self._rooms.requests_wait_beside(pending.ctx.model.name):
            return None
        assert pending.ticket is not None
        ticket = self._queue.ticket(pending.ticket, pending.queue_name, pending.kv_tokens, cost=0.0)
        if self._queue.membership_of(pending.queue_name, ticket.tenant).shared:
            return await self._shared_turns.place_second(pending, ticket, decision)
        return self.own_turns.place_second(pending, ticket, decision)

    def end_and_correct(
        self, pending: PendingRequest, used: ChargedTokens | None, end: Callable[[float], bool]
    ) -> None:
        """Charge the request's tenant in the queue with what was used in place of the estimate.

        `end` frees the placement, given the change in cost units, and returns whether other gateways keep the
        queue's counters; if not, the waiting room here does.
        """
        units = 0.0
        if used is not None:
            cached = used.cached_tokens or 0
            units = pending.limits.cost_weights.units(
                uncached_tokens=used.prompt_tokens - cached,
                cached_tokens=cached,
                output_tokens=used.output_tokens,
            )
        change, pending.charged_units = units - pending.charged_units, units
        kept_elsewhere = end(change)
        if pending.ticket is not None:
            self._rooms.of(pending.queue_name).correct(
                pending.ticket, change, counted_elsewhere=kept_elsewhere
            )

    def _estimated_again(self, pending: PendingRequest) -> Ticket:
        """Return the ticket with the tokens and the cost as of now: others may have computed the prefix."""
        ticket, prompt = pending.ticket, pending.prompt
        assert ticket is not None
        if not ticket.cached_tokens and not self._index.match(prompt.namespace, prompt.hashes).holders(1):
            return ticket  # No worker has any of it, as on arrival.
        self.own_turns.stop_awaiting(pending)
        decision = self._ranking.rank(pending)
        routes = decision.routes
        if routes:
            asked = queued_request(pending, routes, decision.query.shared)
            if asked.uncached_tokens != ticket.uncached_tokens:
                pending.ticket = with_estimate(ticket, asked)
        return self.own_turns.await_worker(pending, routes)

    def _begin_to_wait(self, pending: PendingRequest, decision: Decision) -> None:
        """Note that the request waits, and preempt batch work for an urgent one."""
        if pending.progress.queued_at is None:
            pending.progress.queued_at = self._clock()
            shared = self._queue.membership_of(pending.queue_name, pending.ctx.tenant.id).shared
            pending.progress.wait = queue_wait(
                pending, self._fleet, self._rooms.of(pending.queue_name), self._window, shared
            )
        pending.waits = True
        self._index.wait(pending.prompt.namespace, pending.prompt.hashes, pending.ctx.id)
        if self.limits.preempts and not pending.background:
            self._urgent.make_room_in_window(
                pending, decision.routes, self._window.of(pending.ctx.model.name)
            )
