"""The parts that find a placement for a request: router, waiting rooms, preemption, providers."""

import random
import time
from dataclasses import dataclass

from gateway.dispatch.acquisition.provider_overflow import ProviderOverflow
from gateway.dispatch.acquisition.worker_acquisition import WorkerAcquisition
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.placement import Placement, Placements
from gateway.dispatch.preemption import Preemption
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.fleet.fleet import Fleet
from gateway.fleet.ranks import Ranks
from gateway.kv_index.feedback import Feedback
from gateway.queueing.dispatch_windows import DispatchWindows, OwnDispatchWindows
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.preemption_requests import PreemptionRequests
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.quotas.leases import Leases
from gateway.routing.router import Router
from gateway.settings.routing import RoutingSettings
from gateway.settings.tree import Settings
from gateway.wiring.dispatch_rules import limits_of, room_rules, shadow_of
from gateway.wiring.shared_queue import attach_peers
from policies.registry import routing_policy
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.shared_index import SharedIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquisitionParts:
    """The part that finds placements, and the parts that it consists of."""

    acquisition: WorkerAcquisition
    router: Router
    placements: Placements
    rooms: WaitingRooms[Placement]
    window: OwnDispatchWindows
    estimates: OutputEstimates
    preemption: Preemption
    preemption_requests: PreemptionRequests
    provider_overflow: ProviderOverflow
    provider_quota: ProviderQuota

    @classmethod
    def create(
        cls,
        settings: Settings,
        fleet: Fleet,
        leases: Leases,
        windows: DispatchWindows,
        queue: SharedTurns,
        index: SharedIndex,
        feedback: Feedback,
        ranks: Ranks,
        scripts: ScriptCaller,
    ) -> "AcquisitionParts":
        """Return the parts; nothing is sent to Redis or to workers yet."""
        router = _router(settings.routing, fleet, index, feedback, queue)
        placements = Placements(fleet, queue, ranks)

        # The waiting rooms of this gateway, joined with the queue of all gateways.
        window = OwnDispatchWindows(queue, windows)
        rooms = WaitingRooms[Placement](
            fleet, room_rules(settings.queueing), placements.give_back, window, time.monotonic
        )
        attach_peers(queue, fleet, rooms)

        # Room that is made for a request: by preemption, or at a provider.
        preemption = Preemption()
        keys = QueueKeys(settings.redis.prefix)
        preemption_requests = PreemptionRequests(scripts, keys, queue.gateway, preemption)
        estimates = OutputEstimates()
        provider_quota = ProviderQuota(leases, estimates)
        provider_overflow = ProviderOverflow(fleet, provider_quota)

        acquisition = WorkerAcquisition(
            limits=limits_of(settings),
            fleet=fleet,
            router=router,
            index=index,
            queue=queue,
            rooms=rooms,
            placements=placements,
            overflow=provider_overflow,
            window=window,
            preemption=preemption,
            preemption_requests=preemption_requests,
            clock=time.monotonic,
        )
        return cls(
            acquisition=acquisition,
            router=router,
            placements=placements,
            rooms=rooms,
            window=window,
            estimates=estimates,
            preemption=preemption,
            preemption_requests=preemption_requests,
            provider_overflow=provider_overflow,
            provider_quota=provider_quota,
        )


def _router(
    routing: RoutingSettings, fleet: Fleet, index: SharedIndex, feedback: Feedback, queue: SharedTurns
) -> Router:
    return Router(
        fleet=fleet,
        index=index,
        feedback=feedback,
        policy=routing_policy(routing.policy, routing.options),
        random=random.Random(),
        shadow=shadow_of(routing.shadow),
        prefill_tokens_min=routing.prefill_tokens_min,
        gateways=queue,
    )
