"""The rules of dispatch as the settings have them: bounds, waiting rooms, hedging; a reload reads them again."""

from dataclasses import replace

from gateway.dispatch.dispatch import QueueRules
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.placement import Placement
from gateway.models.service_classes import ServiceClasses
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.routing.shadow_policy import ShadowPolicy
from gateway.settings.queueing import QueueingSettings
from gateway.settings.requests import HedgingSettings
from gateway.settings.routing import ShadowPolicySettings
from gateway.settings.tree import Settings
from policies.admission.search_bounds import PASSED_OVER_MAX, PASSED_OVER_OF_FLOW_MAX
from policies.admission.waiting_bounds import WaitingRoomBounds
from policies.queueing.cost_weights import CostWeights
from policies.queueing.priority import Priority
from policies.queueing.sfq import Sfq
from policies.registry import queue_policy, routing_policy, tenant_order


def room_rules(queue: QueueingSettings) -> RoomRules:
    """Return how a waiting room gives turns."""
    return RoomRules(
        policy=queue_policy(queue.across, queue.options),
        order=tenant_order(queue.within),
        bounds=WaitingRoomBounds(
            requests_max=queue.waiting_requests_max,
            tokens_max=queue.waiting_tokens_max,
            tenant_requests_max=queue.tenant_waiting_requests_max,
            tenant_tokens_max=queue.tenant_waiting_tokens_max,
        ),
        waiting_seconds_max=queue.waiting_seconds_max,
        passed_over_max=PASSED_OVER_MAX if queue.hold is not None else 0,
        passed_over_of_flow_max=PASSED_OVER_OF_FLOW_MAX,
    )


def queue_rules(now: Settings, before: Settings, rooms: WaitingRooms[Placement]) -> QueueRules:
    """Return how requests wait by a new tree of settings; a policy that stays the same keeps its counters."""
    rules, new, old = room_rules(now.queueing), now.queueing, before.queueing
    if (new.across, new.options) == (old.across, old.options):
        rules = replace(rules, policy=rooms.rules.policy)
    return QueueRules(limits=limits_of(now), room=rules, shared=new.across == Sfq.name)


def limits_of(settings: Settings) -> DispatchLimits:
    """Return the bounds within which requests are dispatched."""
    queue, requests = settings.queueing, settings.requests
    return DispatchLimits(
        release_window_tokens=queue.release_window_tokens,
        cost_weights=CostWeights(
            uncached=queue.costs.uncached, cached=queue.costs.cached, output=queue.costs.output
        ),
        attempts_max=requests.attempts_max,
        batch=ServiceClasses(settings.classes).batch,
        background=queue.across != Priority.name,
        preempts=queue.preempts,
        hold=queue.hold,
    )


def shadow_of(settings: ShadowPolicySettings | None) -> ShadowPolicy | None:
    """Return the second routing policy, if the settings name one."""
    if settings is None:
        return None
    return ShadowPolicy(routing_policy(settings.policy, settings.options), settings.share)


def hedging_of(settings: HedgingSettings | None) -> Hedging:
    """Return when a request is sent to a second worker."""
    if settings is None:
        return Hedging()
    return Hedging(
        enabled=True,
        after_seconds=settings.after_ms / 1000 if settings.after_ms is not None else None,
        prompt_tokens_max=settings.prompt_tokens_max,
    )
