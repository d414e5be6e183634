"""Placements at outside providers: one is chosen, its quota reserved, and the request placed without a turn."""

from collections.abc import Callable

from gateway.dispatch.acquisition.provider_overflow import ProviderOverflow
from gateway.dispatch.acquisition.request_ranking import queued_request
from gateway.dispatch.acquisition.ttft_target import tokens_to_compute
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements
from gateway.fleet.fleet import Fleet
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_rooms import WaitingRooms


class ProviderPlacements:
    """Places requests at the providers that ProviderOverflow chooses. `clock`: seconds on the monotonic clock."""

    def __init__(
        self,
        fleet: Fleet,
        overflow: ProviderOverflow,
        queue: SharedTurns,
        rooms: WaitingRooms[Placement],
        placements: Placements,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._overflow = overflow
        self._queue = queue
        self._rooms = rooms
        self._placements = placements
        self._clock = clock

    async def place(self, pending: PendingRequest, why: str) -> Placement | None:
        """Return a placement at a provider, which takes no turn here; None without room or the tenant's consent."""
        if not pending.ctx.tenant.may_overflow:
            return None
        taken = await self._overflow.take(pending, why, pending.failed_workers)
        if taken is None:
            return None
        route, lease = taken
        pending.providers_tried.add(route.worker)
        uncached = tokens_to_compute(pending.prompt.prompt_tokens, route)
        if pending.ticket is None:
            pending.ticket = self._rooms.of(pending.queue_name).ticket(queued_request(pending, ()))
        ticket = self._queue.ticket(pending.ticket, pending.queue_name, pending.kv_tokens, cost=0.0)
        self._queue.note_placed(ticket, route.worker, uncached)
        return self._placements.place(
            pending,
            route,
            uncached_tokens=uncached,
            ticket=ticket,
            now=self._clock(),
            match=None,
            provider_lease=lease,
        )

    async def place_after_failure(self, pending: PendingRequest, why: str) -> Placement | None:
        """Return a placement at a provider after workers here failed; batch work stays with its model's workers."""
        if pending.service_class.background and self._fleet.serving(pending.ctx.model.name):
            return None
        return await self.place(pending, why)
