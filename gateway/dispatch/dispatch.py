"""Dispatch: the parts of one gateway that find a worker for a request, in one value."""

from dataclasses import dataclass

from gateway.dispatch.acquisition.provider_overflow import ProviderOverflow
from gateway.dispatch.acquisition.worker_acquisition import WorkerAcquisition
from gateway.dispatch.attempts import Attempts
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.placement import Placement, Placements
from gateway.dispatch.preemption import Preemption
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.worker_calls import WorkerCalls
from gateway.fleet.fleet import Fleet
from gateway.kv_index.index_quota import IndexQuota
from gateway.queueing.dispatch_windows import OwnDispatchWindows
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.shared.preemption_requests import PreemptionRequests
from gateway.queueing.shared.provider_backoff import ProviderBackoff
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.routing.router import Router
from policies.admission.retry_budget import RetryBudget
from radix_cache.index import PrefixIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """How requests wait and get their turn, as the settings have it."""

    limits: DispatchLimits
    room: RoomRules
    shared: bool
    """Whether all gateways may give turns together; see SharedQueue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The parts of one gateway that find a worker for a request."""

    reservations: Reservations
    acquisition: WorkerAcquisition
    placements: Placements
    attempts: Attempts
    worker_calls: WorkerCalls
    fleet: Fleet
    router: Router
    queue: SharedTurns
    rooms: WaitingRooms[Placement]
    window: OwnDispatchWindows
    index: PrefixIndex
    index_quota: IndexQuota
    estimates: OutputEstimates
    provider_overflow: ProviderOverflow
    provider_quota: ProviderQuota
    retry_budget: RetryBudget
    hedging: Hedging
    preemption: Preemption
    preemption_requests: PreemptionRequests
    provider_backoff: ProviderBackoff

    def reconfigure(self, rules: QueueRules) -> None:
        """Use these rules for requests that arrive or wait; placements that were given are kept."""
        limits = rules.limits
        self.acquisition.reconfigure(limits)
        self.window.of_all_gateways.reconfigure(limits.release_window_tokens, limits.batch.ttft_seconds)
        self.queue.reconfigure(rules.room.order, limits.hold, enabled=rules.shared)
        self.rooms.reconfigure(rules.room)
        self.rooms.give_turns()

    def fleet_changed(self) -> None:
        """Give turns to waiting requests where a worker has room now: a worker joined, left or changed."""
        self.queue.fleet_changed()
        self.rooms.give_turns()
