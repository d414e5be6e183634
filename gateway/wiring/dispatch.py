"""The parts that find a worker for a request and send it there, from the settings, joined in one value."""

import time
from collections.abc import Callable

import msgspec

from gateway.dispatch.attempt_reports import AttemptReports
from gateway.dispatch.attempts import Attempts
from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.dispatch_follows_fleet import DispatchFollowsFleet
from gateway.dispatch.hedged_opening import HedgedOpenings
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.placement import Placement
from gateway.dispatch.prefix_prediction import PrefixPrediction
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.retries import Retries
from gateway.dispatch.worker_calls import WorkerCalls
from gateway.fleet.fleet import Fleet
from gateway.fleet.load_feeds import LoadFeeds
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.index_quota import IndexQuota
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.queueing.dispatch_windows import DispatchWindows
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.provider_backoff import ProviderBackoff
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.quotas.leases import Leases
from gateway.settings.tree import Settings
from gateway.wiring.acquisition_parts import AcquisitionParts
from gateway.wiring.dispatch_rules import hedging_of, limits_of
from policies.admission.retry_budget import RetryBudget
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
    """Return the parts that find a worker; nothing is sent to Redis or to workers yet."""
    index, clock = index_parts.index, time.monotonic
    feedback = Feedback(index, event_feeds.match_confidence, event_feeds.hold_reported)
    found = AcquisitionParts.create(
        settings, fleet, leases, windows, queue, index, feedback, load_feeds.ranks, scripts
    )
    retry_budget = RetryBudget(**msgspec.structs.asdict(settings.requests.retries))
    hedging = hedging_of(settings.requests.hedging)
    worker_calls = _worker_calls(settings, cache_salt, found.rooms)
    index_quota = IndexQuota(index.replica.namespaces, clock)
    dispatch = Dispatch(
        reservations=Reservations(leases, found.estimates, retry_budget, clock),
        acquisition=found.acquisition,
        placements=found.placements,
        attempts=_attempts(found, worker_calls, fleet, index, feedback, index_quota, retry_budget, hedging),
        worker_calls=worker_calls,
        fleet=fleet,
        router=found.router,
        queue=queue,
        rooms=found.rooms,
        window=found.window,
        index=index,
        index_quota=index_quota,
        estimates=found.estimates,
        provider_overflow=found.provider_overflow,
        provider_quota=found.provider_quota,
        retry_budget=retry_budget,
        hedging=hedging,
        preemption=found.preemption,
        preemption_requests=found.preemption_requests,
        provider_backoff=ProviderBackoff(
            scripts, QueueKeys(settings.redis.prefix), queue.gateway, fleet.rest
        ),
    )
    fleet.subscribe(DispatchFollowsFleet(dispatch))
    return dispatch


def _attempts(
    found: AcquisitionParts,
    worker_calls: WorkerCalls,
    fleet: Fleet,
    index: SharedIndex,
    feedback: Feedback,
    index_quota: IndexQuota,
    retry_budget: RetryBudget,
    hedging: Hedging,
) -> Attempts:
    """Return the part that sends requests to their placements: retries, hedging, reports of outcomes."""
    clock = time.monotonic
    reports = AttemptReports(
        placements=found.placements,
        fleet=fleet,
        index=index,
        feedback=feedback,
        capacity_freed=found.rooms.give_turns,
        clock=clock,
    )
    return Attempts(
        acquisition=found.acquisition,
        worker_calls=worker_calls,
        reports=reports,
        hedged=HedgedOpenings(
            rules=hedging,
            acquisition=found.acquisition,
            worker_calls=worker_calls,
            reports=reports,
            retry_budget=retry_budget,
            clock=clock,
        ),
        retries=Retries(acquisition=found.acquisition, reports=reports, budget=retry_budget, clock=clock),
        prediction=PrefixPrediction(index=index, index_quota=index_quota, reports=reports),
        router=found.router,
        estimates=found.estimates,
        provider_quota=found.provider_quota,
        preemption=found.preemption,
        clock=clock,
    )


def dispatch_windows(settings: Settings, fleet: Fleet) -> DispatchWindows:
    """Return the dispatch windows of the workers, which the queue of all gateways needs too."""
    limits = limits_of(settings)
    return DispatchWindows(fleet, limits.release_window_tokens, limits.batch.ttft_seconds, time.monotonic)


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
