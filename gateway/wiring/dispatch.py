"""What finds a worker for a request: fleet, router, queue, waiting rooms, and what holds them together."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from gateway.dispatch.hedging import Hedging
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.placement import Bounds
from gateway.dispatch.reservations import QueueRules, Reservations
from gateway.fleet.fleet import Fleet, FleetEvents
from gateway.fleet.load_feeds import LoadFeeds
from gateway.fleet.provider import Provider
from gateway.fleet.speeds import LearntSpeed
from gateway.fleet.worker import Worker
from gateway.kv_index.event_sources import event_sources, load_sources
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.feeds import KvEventFeeds
from gateway.kv_index.index_quota import IndexQuota
from gateway.kv_index.shared_index import SharedIndexParts
from gateway.models.catalogue import Catalogue, prices_from
from gateway.models.service_classes import ServiceClasses
from gateway.queueing.queue_peer import QueueHousehold
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.preemption_requests import Favours
from gateway.queueing.shared.provider_backoff import Rests
from gateway.queueing.shared.shared_queue import SharedQueue
from gateway.queueing.shared.store import QueueStore
from gateway.queueing.waiting_room import RoomRules
from gateway.quotas.leases import Leases
from gateway.routing.router import Router
from gateway.routing.shadow_policy import Shadow
from gateway.settings.queueing import QueueingSettings
from gateway.settings.requests import HedgingSettings
from gateway.settings.routing import ShadowPolicySettings
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.settings.workers import ProviderSettings, WorkerSettings
from gateway.tenants.limits import limits_at
from policies.admission.dispatch_window import PASSED_MAX, PASSED_OF_FLOW_MAX
from policies.admission.retry_budget import RetryBudget
from policies.admission.waiting_room import WaitingRoomBounds
from policies.queueing.cost_weights import CostWeights
from policies.queueing.priority import Priority
from policies.queueing.sfq import Sfq
from policies.registry import queue_policy, routing_policy, tenant_order
from radix_cache.match import WorkerId
from radix_cache.redis.scripts import ScriptCaller
from workers.adapter import TlsFiles, WorkerTarget
from workers.adapters.provider import ProviderAdapter
from workers.adapters.registry import adapters
from workers.worker import Role


def reservations_of(
    settings: Settings,
    catalogue: Catalogue,
    leases: Leases,
    shared: SharedIndexParts,
    feeds: KvEventFeeds,
    loads: LoadFeeds,
    scripts: ScriptCaller,
) -> Reservations:
    """Nothing is asked yet; `fleet.run` and `queue.membership.run` are its loops."""
    index = shared.index
    events = _fleet_events(
        shared,
        catalogue,
        feeds,
        loads,
        room=lambda: reservations.fleet_changed(),
        rests=lambda worker, seconds: reservations.rests.tell(worker, seconds),
    )
    fleet = _fleet(settings, catalogue, events)
    household = QueueHousehold(
        fleet, room=lambda queue: reservations.room(queue), rooms=lambda: reservations.rooms()
    )
    feedback = Feedback(index, feeds.credits, feeds.raised)
    routing = settings.routing
    queue = _queue(settings, household, scripts)
    favours = Favours(
        scripts,
        QueueKeys(settings.redis.prefix),
        queue.gateway,
        can=lambda needs: reservations.preemptible.can_make_room(needs, reservations.window_tokens),
        make=lambda needs: reservations.preemptible.make_room(needs, reservations.window_tokens),
    )
    reservations = Reservations(
        leases=leases,
        router=Router(
            fleet=fleet,
            index=index,
            feedback=feedback,
            policy=routing_policy(routing.policy, routing.options),
            random=random.Random(),
            shadow=shadow_of(routing.shadow),
            prefill_tokens_min=routing.prefill_tokens_min,
        ),
        fleet=fleet,
        index=index,
        shares=IndexQuota(index.copy.namespaces, time.monotonic),
        feedback=feedback,
        estimates=OutputEstimates(),
        bounds=_bounds(settings),
        queue=queue,
        favours=favours,
        rests=Rests(scripts, QueueKeys(settings.redis.prefix), queue.gateway, fleet.rest),
        rules=_rules(settings.queueing),
        retries=RetryBudget(**msgspec.structs.asdict(settings.requests.retries)),
        hedging=_hedging(settings.requests.hedging),
        ranks=loads.ranks,
    )
    return reservations


def worker_of(settings: WorkerSettings) -> Worker:
    """A worker that nothing is known of yet. Raises what its adapter does, as OSError for certificates, and
    ValueError for a package that cannot be loaded."""
    identity, tls = WorkerId(settings.id), settings.tls
    target = WorkerTarget(
        id=identity,
        url=settings.url.rstrip("/").removesuffix("/v1"),
        api_key=settings.api_key.reveal() if settings.api_key is not None else None,
        headers={name: value.reveal() for name, value in settings.headers.items()},
        tls=TlsFiles(ca=tls.ca, certificate=tls.certificate, key=tls.key) if tls is not None else None,
    )
    rated = settings.prefill_tokens_per_second
    adapter, provider, models = adapters()[settings.kind](target), settings.provider, settings.models
    if provider is not None:
        models = tuple(provider.models)
        adapter = ProviderAdapter(adapter, {m: there.name or m for m, there in provider.models.items()})
    return Worker(
        id=identity,
        kind=settings.kind,
        adapter=adapter,
        models=frozenset(models),
        models_fixed=bool(models),
        role=Role(settings.role),
        told=event_sources(settings) if provider is None else (),
        told_loads=load_sources(settings) if provider is None else (),
        provider=_provider(provider) if provider is not None else None,
        learnt=LearntSpeed(rated_ms_per_token=1000 / rated if rated is not None else None),
        priority=settings.priority == "on" or (settings.priority, settings.kind) == ("auto", "embedded"),
        names_rank=settings.dp_rank == "auto",
    )


def _provider(settings: ProviderSettings) -> Provider:
    prices = {model: prices_from(there.prices) for model, there in settings.models.items()}
    return Provider(
        prices={model: price for model, price in prices.items() if price is not None},
        after_seconds=settings.after_ms / 1000 if settings.after_ms is not None else None,
        rest_seconds_max=settings.rest_seconds_max,
        limits=limits_at(0.0, settings.limits, settings.concurrency),
    )


def _static(at: int, settings: WorkerSettings) -> Worker:
    """One of the settings. Raises SettingsProblem."""
    try:
        return worker_of(settings)
    except OSError as err:
        raise SettingsProblem(
            f"$.workers[{at}].tls: the files cannot be used: {err.strerror or err}"
        ) from err
    except ValueError as err:
        raise SettingsProblem(f"$.workers[{at}]: {err}") from err


def _fleet_events(
    shared: SharedIndexParts,
    catalogue: Catalogue,
    feeds: KvEventFeeds,
    loads: LoadFeeds,
    *,
    room: Callable[[], None],
    rests: Callable[[WorkerId, float], None],
) -> FleetEvents:
    """What the index, the catalogue and the feeds are told of workers."""
    index = shared.index

    def reported(worker: Worker) -> None:
        catalogue.add_reported(worker.models)
        if worker.provider is not None:
            return
        index.enrol(worker.id, worker.report.instance or "")
        feeds.follow(worker.id, worker.report.events if worker.told is None else worker.told)
        loads.follow(worker, worker.report.loads if worker.told_loads is None else worker.told_loads)
        if worker.report.kv_tokens_max is not None:
            sizes = [model.block_size for name, model in catalogue.by_name_or_alias().items() if name in worker.models]
            index.bound(worker.id, worker.report.kv_tokens_max // min(sizes, default=1))

    def emptied(worker: WorkerId) -> None:
        loads.ranks.forget(worker)
        index.forget(worker)

    def gone(worker: WorkerId) -> None:
        feeds.follow(worker, ())
        loads.forget(worker)
        emptied(worker)

    return FleetEvents(room=room, emptied=emptied, reported=reported, gone=gone, rests=rests)


def _fleet(settings: Settings, catalogue: Catalogue, events: FleetEvents) -> Fleet:
    fleet = Fleet([_static(at, worker) for at, worker in enumerate(settings.workers)], events)
    warn_of_shared_caches(fleet, settings)
    for worker in fleet:
        catalogue.add_reported(worker.models)
    return fleet


def warn_of_shared_caches(fleet: Fleet, settings: Settings) -> None:
    """Where tenants are to be kept apart."""
    if any(tenant.isolation.mode != "shared" for tenant in settings.tenants):
        fleet.warn_of_shared_caches()


def _rules(queue: QueueingSettings) -> RoomRules:
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
        passed_max=PASSED_MAX if queue.hold is not None else 0,
        passed_of_flow_max=PASSED_OF_FLOW_MAX,
    )


def queue_rules(now: Settings, before: Settings, reservations: Reservations) -> QueueRules:
    """Whose turn it is, as a new tree says. Where the policy is as `before`, it is the one that there is."""
    rules, new, old = _rules(now.queueing), now.queueing, before.queueing
    if (new.across, new.options) == (old.across, old.options):
        rules = replace(rules, policy=reservations.rules.policy)
    return QueueRules(bounds=_bounds(now), room=rules, together=new.across == Sfq.name)


def _queue(settings: Settings, household: QueueHousehold, scripts: ScriptCaller) -> SharedQueue:
    queue, keys = settings.queueing, QueueKeys(settings.redis.prefix)
    return SharedQueue(
        QueueStore(scripts, keys, os.urandom(8).hex(), queue.release_window_tokens, queue.hold),
        household,
        tenant_order(queue.within),
        enabled=queue.across == Sfq.name,
        timeout_seconds=settings.redis.timeout_ms / 1000,
        clock=time.monotonic,
    )


def _hedging(settings: HedgingSettings | None) -> Hedging:
    if settings is None:
        return Hedging()
    return Hedging(
        enabled=True,
        after_seconds=settings.after_ms / 1000 if settings.after_ms is not None else None,
        prompt_tokens_max=settings.prompt_tokens_max,
    )


def _bounds(settings: Settings) -> Bounds:
    queue, requests = settings.queueing, settings.requests
    return Bounds(
        release_window_tokens=queue.release_window_tokens,
        costs=CostWeights(
            uncached=queue.costs.uncached, cached=queue.costs.cached, output=queue.costs.output
        ),
        attempts_max=requests.attempts_max,
        batch=ServiceClasses(settings.classes).batch,
        background=queue.across != Priority.name,
        preempts=queue.preempts,
        hold=queue.hold,
    )


def shadow_of(settings: ShadowPolicySettings | None) -> Shadow | None:
    if settings is None:
        return None
    return Shadow(routing_policy(settings.policy, settings.options), settings.share)
