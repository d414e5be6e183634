"""The parts that find a worker for a request, from the settings: router, queue, waiting rooms, attempts."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from gateway.dispatch.acquisition.provider_overflow import ProviderOverflow
from gateway.dispatch.acquisition.worker_acquisition import WorkerAcquisition
from gateway.dispatch.attempt_reports import AttemptReports
from gateway.dispatch.attempts import Attempts
from gateway.dispatch.dispatch import Dispatch, QueueRules
from gateway.dispatch.dispatch_follows_fleet import DispatchFollowsFleet
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.hedged_opening import HedgedOpenings
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.placement import Placement, Placements
from gateway.dispatch.preemption import Preemption
from gateway.dispatch.prefix_prediction import PrefixPrediction
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.retries import Retries
from gateway.dispatch.worker_calls import WorkerCalls
from gateway.fleet.fleet import Fleet
from gateway.fleet.load_feeds import LoadFeeds
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.index_quota import IndexQuota
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.models.service_classes import ServiceClasses
from gateway.queueing.dispatch_windows import DispatchWindows, OwnDispatchWindows
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.preemption_requests import PreemptionRequests
from gateway.queueing.shared.provider_backoff import ProviderBackoff
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.quotas.leases import Leases
from gateway.routing.router import Router
from gateway.routing.shadow_policy import ShadowPolicy
from gateway.settings.queueing import QueueingSettings
from gateway.settings.requests import HedgingSettings
from gateway.settings.routing import RoutingSettings, ShadowPolicySettings
from gateway.settings.tree import Settings
from gateway.wiring.shared_queue import attach_peers
from policies.admission.retry_budget import RetryBudget
from policies.admission.search_bounds import PASSED_OVER_MAX, PASSED_OVER_OF_FLOW_MAX
from policies.admission.waiting_bounds import WaitingRoomBounds
from policies.queueing.cost_weights import CostWeights
from policies.queueing.priority import Priority
from policies.queueing.sfq import Sfq
from policies.registry import queue_policy, routing_policy, tenant_order
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.shared_index import SharedIndex


def dispatch_of(
    settings: Settings,
    fleet: Fleet,
    leases: Leases,
    windows: DispatchWindows,
    queue: SharedTurns,
    index_parts: SharedIndexParts,
    event_feeds: KvEventFeeds,
    load_feeds: LoadFeeds,
    scripts: ScriptCaller,
    cache_salt: Callable[[str], str],
) -> Dispatch:
    """Return the parts that find a worker; nothing is asked of Redis or of workers yet."""
    index, requests, clock = index_parts.index, settings.requests, time.monotonic
    keys, limits = QueueKeys(settings.redis.prefix), limits_of(settings)

    # Where requests wait: the windows of workers, the waiting rooms of this gateway, joined with all others' queue.
    window = OwnDispatchWindows(queue, windows)
    placements = Placements(fleet, queue, load_feeds.ranks)
    rooms = WaitingRooms[Placement](fleet, room_rules(settings.queueing), placements.give_back, window, clock)
    attach_peers(queue, fleet, rooms)

    # The choice of a worker: ranking, preemption, providers.
    feedback = Feedback(index, event_feeds.match_confidence, event_feeds.hold_reported)
    router = _router(settings.routing, fleet, index, feedback, queue)
    estimates, preemption = OutputEstimates(), Preemption()
    preemption_requests = PreemptionRequests(scripts, keys, queue.gateway, preemption)
    provider_quota = ProviderQuota(leases, estimates)
    provider_overflow = ProviderOverflow(fleet, provider_quota)
    acquisition = WorkerAcquisition(
        limits=limits,
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
        clock=clock,
    )

    # The attempts: retries, hedging, and the reports of their outcomes.
    retry_budget, hedging = (
        RetryBudget(**msgspec.structs.asdict(requests.retries)),
        _hedging(requests.hedging),
    )
    index_quota = IndexQuota(index.replica.namespaces, clock)
    reports = AttemptReports(
        placements=placements,
        fleet=fleet,
        index=index,
        feedback=feedback,
        capacity_freed=rooms.give_turns,
        clock=clock,
    )
    attempts = Attempts(
        acquisition=acquisition,
        reports=reports,
        hedged=HedgedOpenings(
            rules=hedging, acquisition=acquisition, reports=reports, retry_budget=retry_budget, clock=clock
        ),
        retries=Retries(acquisition=acquisition, reports=reports, budget=retry_budget, clock=clock),
        prediction=PrefixPrediction(index=index, index_quota=index_quota, reports=reports),
        router=router,
        estimates=estimates,
        provider_quota=provider_quota,
        preemption=preemption,
        clock=clock,
    )

    dispatch = Dispatch(
        reservations=Reservations(leases, estimates, retry_budget, clock),
        acquisition=acquisition,
        placements=placements,
        attempts=attempts,
        worker_calls=_worker_calls(settings, cache_salt, rooms),
        fleet=fleet,
        router=router,
        queue=queue,
        rooms=rooms,
        window=window,
        index=index,
        index_quota=index_quota,
        estimates=estimates,
        provider_overflow=provider_overflow,
        provider_quota=provider_quota,
        retry_budget=retry_budget,
        hedging=hedging,
        preemption=preemption,
        preemption_requests=preemption_requests,
        provider_backoff=ProviderBackoff(scripts, keys, queue.gateway, fleet.rest),
    )
    fleet.subscribe(DispatchFollowsFleet(dispatch))
    return dispatch


def dispatch_windows(settings: Settings, fleet: Fleet) -> DispatchWindows:
    """Return the dispatch windows of the workers, which the queue of all gateways needs, too."""
    limits = limits_of(settings)
    return DispatchWindows(fleet, limits.release_window_tokens, limits.batch.ttft_seconds, time.monotonic)


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


def _worker_calls(
    settings: Settings, cache_salt: Callable[[str], str], rooms: WaitingRooms[Placement]
) -> WorkerCalls:
    requests = settings.requests
    return WorkerCalls(
        cache_salt=cache_salt,
        first_byte_seconds_max=requests.first_token_seconds_max,
        whole_seconds_max=requests.whole_answer_seconds_max,
        idle_seconds_max=requests.idle_seconds_max,
        aggregates_streams=settings.queueing.whole_from_streams,
        requests_wait=rooms.requests_wait,
        pass_fields=requests.pass_fields,
    )


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


def _hedging(settings: HedgingSettings | None) -> Hedging:
    if settings is None:
        return Hedging()
    return Hedging(
        enabled=True,
        after_seconds=settings.after_ms / 1000 if settings.after_ms is not None else None,
        prompt_tokens_max=settings.prompt_tokens_max,
    )
