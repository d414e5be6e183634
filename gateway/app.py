"""The composition root: makes every part of a gateway from its settings, once, and hands it on by constructor."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.cells.own_groups import OwnGroups
from gateway.discovery.configured_sources import build_sources
from gateway.discovery.discovery import Discovery
from gateway.discovery.worker_kinds import WorkerKinds
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.queue_report import QueueReporter, gateway_name
from gateway.domain.errors import ShuttingDown
from gateway.domain.memory_budget import MemoryBudget
from gateway.explorer.activity import ActivityReporter
from gateway.explorer.activity_history import ActivityHistory
from gateway.explorer.request_explorer import RequestExplorer
from gateway.fleet.announced_dispatches import AnnouncedDispatches
from gateway.fleet.fleet import Fleet
from gateway.fleet.load_feeds import LoadFeeds
from gateway.fleet.ranks import Ranks
from gateway.kv_index.index_follows_fleet import IndexFollowsFleet
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.namespace_resolver import GroupsBySalt, NamespaceResolver
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.media.media_fetch import MediaFetcher
from gateway.media.media_policy import MediaPolicy
from gateway.models.catalogue import Catalogue
from gateway.models.model_selection import ModelSelection
from gateway.models.service_classes import ServiceClasses
from gateway.pipeline import Services
from gateway.process.drain_state import DrainState
from gateway.process.embedded_valkey import EmbeddedValkey
from gateway.process.loop_supervisor import LoopSupervisor
from gateway.process.secrets import deployment_secret
from gateway.process.settings_in_force import SettingsInForce
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.turn_stream import TurnReader
from gateway.settings.sources import LoadedSettings
from gateway.settings.tree import Settings
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.gauge_collector import StateCollector
from gateway.telemetry.overview import Overview
from gateway.tenants.auth_throttle import AuthThrottle
from gateway.tenants.authentication import Authentication
from gateway.tokenization.encoder_processes import EncoderProcesses
from gateway.tokenization.prompt_hasher import PromptHasher
from gateway.tokenization.worker_tokens import FleetTokenizer
from gateway.wiring.cells import CellParts
from gateway.wiring.dispatch import dispatch_of
from gateway.wiring.fleet import fleet_of, target_of, worker_of
from gateway.wiring.gauges import gauges
from gateway.wiring.identity import operator_issuers, token_verifier
from gateway.wiring.quotas import QuotaParts
from gateway.wiring.records import Records
from gateway.wiring.shared_queue import shard_loops
from gateway.wiring.telemetry import access_log_of, explorer_of, metrics_of, request_store, tracing_of
from radix_cache.machine.segment import IndexMemory
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace, cache_salt
from radix_cache.redis.scripts import ScriptCaller

if TYPE_CHECKING:
    from gateway.settings.token_issuers import OperatorIssuerSettings, TenantIssuerSettings
    from gateway.tenants.token_issuer import Issuer

SpaceOf = Callable[[WorkerId, str, str, int], HashedNamespace | None]

ENCODING_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A gateway that runs, with the parts that its listeners need."""

    settings: Settings
    in_force: SettingsInForce
    services: Services
    supervisor: LoopSupervisor
    overview: Overview
    metrics: CollectorRegistry
    scripts: ScriptCaller
    quotas: QuotaParts
    index: SharedIndexParts
    event_feeds: KvEventFeeds
    valkey: EmbeddedValkey | None
    records: Records
    discovery: Discovery
    queues: QueueReporter
    activity: ActivityReporter
    """The activity of all gateways."""
    history: ActivityHistory
    """The activity of the last hour."""
    explorer: RequestExplorer | None
    """Finished requests in detail; None where the settings remember none."""
    access_log: AccessLog | None
    issuers: "Sequence[Issuer[OperatorIssuerSettings]]"
    memory: MemoryBudget
    """The memory that all requests share."""
    cells: CellParts | None
    """What all cells share; None where there are none."""
    drain_state: DrainState
    version: str = field(default_factory=lambda: version("radixgate"))

    @property
    def fleet(self) -> Fleet:
        """The workers that requests may be sent to."""
        return self.services.dispatch.fleet

    @property
    def every_issuer(self) -> "Sequence[Issuer[TenantIssuerSettings] | Issuer[OperatorIssuerSettings]]":
        """The issuers of tenants' tokens and of operators' tokens."""
        verifier = self.services.authentication.tokens
        return (*(verifier.issuers if verifier is not None else ()), *self.issuers)

    def stop_accepting(self) -> None:
        """Refuse new requests and dismiss the waiting ones with ShuttingDown; running requests go on."""
        self.drain_state.ready = self.drain_state.accepting = False
        dispatch = self.services.dispatch
        for room in dispatch.rooms.all().values():
            room.close(ShuttingDown())
        dispatch.acquisition.first_worker.close(ShuttingDown())
        dispatch.queue.dismiss(ShuttingDown())


@asynccontextmanager
async def running(loaded: LoadedSettings, index_memory: IndexMemory | None = None) -> AsyncIterator[Gateway]:
    """Run a gateway with all its parts open; they are closed in reverse order.

    `index_memory` is what it shares with other processes of its machine.

    Raises SettingsProblem, ValkeyFailed.
    """
    settings = loaded.settings
    async with AsyncExitStack() as stack:
        secret = deployment_secret(settings)
        supervisor = LoopSupervisor()
        valkey = await _valkey(settings, stack)
        redis_url = valkey.url if valkey is not None else settings.redis.url
        scripts = ScriptCaller(redis_url)
        stack.push_async_callback(scripts.close)

        access_log = access_log_of(settings, stack)
        records = Records.create(settings, secret, stack)
        spent = records.ledger.account_usage if records.ledger is not None else None
        drain_state = DrainState()
        cells = CellParts.create(settings, drain_state, stack)
        quotas = (
            QuotaParts.create(settings.redis, scripts, stack, spent)
            if cells is None
            else QuotaParts.create(cells.redis, cells.scripts, stack, spent)
        )
        fleet = fleet_of(settings)
        stack.callback(fleet.close)
        discovery = _discovery(settings, fleet, scripts)
        tracing = tracing_of(settings, discovery)
        stack.push_async_callback(asyncio.to_thread, tracing.close)
        executor = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="encode")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        processes = EncoderProcesses()
        stack.callback(processes.close)
        catalogue = Catalogue(
            settings.models,
            executor,
            secrets.randbits(64),
            int(time.time()),
            FleetTokenizer(fleet.serving),
            processes,
        )
        index = SharedIndexParts.create(redis_url, settings.redis.prefix, settings.index, index_memory)
        stack.push_async_callback(index.close)
        if records.ledger is not None:
            quotas.events.on_alert.append(records.ledger.alert)

        for worker in fleet:
            catalogue.add_reported(worker.models, worker.report.parents)
        prompt_hasher = PromptHasher(secret)
        salt_of = lru_cache(maxsize=4096)(partial(cache_salt, secret=secret))
        namespaces = NamespaceResolver(
            fleet.models_of,
            fleet.adapters_of,
            catalogue,
            prompt_hasher,
            GroupsBySalt(
                records.tenants.groups,
                salt_of,
                OwnGroups(cells.living, records.tenants).includes if cells is not None else None,
            ),
        )
        ranks = Ranks()
        event_feeds = _event_feeds(index, namespaces.resolve, ranks, stack)
        load_feeds = LoadFeeds(ranks, fleet.reported_speed)
        stack.push_async_callback(load_feeds.close)
        announced = AnnouncedDispatches(fleet, index.index.replica.workers.get)
        index.index.replica.tell_predictions(announced, index.index.sent_predictions.prefix)
        fleet.subscribe(IndexFollowsFleet(catalogue, index, event_feeds, load_feeds, announced))
        dispatch = dispatch_of(
            settings, fleet, quotas.leases, index, event_feeds, load_feeds, scripts, salt_of
        )

        overview = Overview(time.monotonic)
        kept = request_store(settings)
        count_request, metrics = metrics_of(settings)
        services = Services(
            authentication=Authentication(
                records.tenants,
                AuthThrottle(settings.authentication.failures_per_minute_max, time.monotonic),
                token_verifier(settings, stack, supervisor),
            ),
            catalogue=catalogue,
            model_selection=ModelSelection(catalogue, fleet),
            media=_media(settings, stack),
            prompt_hasher=prompt_hasher,
            dispatch=dispatch,
            tracing=tracing,
            usage=records.ledger.reader if records.ledger is not None else None,
            observers=(
                # The ledger comes first: an error of another observer cannot keep a request out of it.
                *((records.ledger.observe,) if records.ledger is not None else ()),
                *count_request,
                overview.observe,
                *((kept.observe,) if kept is not None else ()),
                *((access_log.observe,) if access_log is not None else ()),
                *((tracing.observe,) if tracing.exports else ()),
            ),
            idle_seconds_max=settings.requests.idle_seconds_max,
            repeats_max=settings.requests.repeats_max,
            classes=ServiceClasses(settings.classes),
            cells=cells.living if cells is not None else None,
        )
        gateway = Gateway(
            settings=settings,
            in_force=SettingsInForce(loaded),
            services=services,
            supervisor=supervisor,
            overview=overview,
            metrics=metrics,
            scripts=scripts,
            quotas=quotas,
            index=index,
            event_feeds=event_feeds,
            valkey=valkey,
            records=records,
            discovery=discovery,
            queues=QueueReporter(dispatch, scripts, QueueKeys(settings.redis.prefix)),
            activity=ActivityReporter(
                overview,
                gateway_name(),
                scripts,
                QueueKeys(settings.redis.prefix),
                dispatch.queue.gateway,
                lambda: dispatch.queue.gateways,
                lambda: dispatch.router.shadow,
            ),
            history=ActivityHistory(
                overview,
                partial(_load, dispatch),
                scripts,
                QueueKeys(settings.redis.prefix),
                dispatch.queue.gateway,
                lambda: dispatch.queue.gateways,
            ),
            explorer=explorer_of(kept, dispatch, scripts, settings),
            access_log=access_log,
            issuers=operator_issuers(settings, stack, supervisor),
            memory=MemoryBudget(settings.listen.memory_bytes_max),
            cells=cells,
            drain_state=drain_state,
        )
        stack.push_async_callback(gateway.queues.close)
        stack.push_async_callback(gateway.activity.close)
        stack.push_async_callback(gateway.history.close)
        if gateway.explorer is not None:
            stack.push_async_callback(gateway.explorer.close)
        stack.push_async_callback(dispatch.preemption_requests.close)
        stack.push_async_callback(dispatch.provider_backoff.close)
        metrics.register(
            StateCollector(
                gauges(
                    gateway.fleet,
                    dispatch,
                    index,
                    event_feeds,
                    quotas.store,
                    quotas.escrow,
                    records.directory,
                    records.ledger,
                    records.batch_counts,
                    gateway.every_issuer,
                    access_log,
                    catalogue,
                )
            )
        )
        stack.push_async_callback(dispatch.queue.close)
        stack.push_async_callback(supervisor.close)
        await _start(gateway, _turns(gateway, scripts), scripts)
        yield gateway


async def _start(gateway: Gateway, turns: TurnReader, scripts: ScriptCaller) -> None:
    """Start all background loops, and wait until tenants, workers and the prefix index have been read once."""
    start, records, index = gateway.supervisor.start, gateway.records, gateway.index
    queue = gateway.services.dispatch.queue
    if records.directory is not None:
        start("database", records.directory.run)
        await records.directory.wait_until_loaded()
    if gateway.cells is not None:
        await gateway.cells.living.try_to_read()
    await gateway.discovery.query_sources()
    start("index", index.reader.follow)
    await index.wait_until_loaded()
    for name, loop in (
        *index.loops(),
        ("probes", gateway.fleet.run),
        ("discovery", gateway.discovery.run),
        ("KV events", gateway.event_feeds.run),
        ("quotas", gateway.quotas.store.run),
        ("escrow", gateway.quotas.escrow.run),
        ("leases", gateway.quotas.leases.run),
        ("gateways", gateway.quotas.gateway_count.run),
        ("queue", queue.shards[0].membership.run),
        ("turns", turns.run),
        *shard_loops(queue, scripts),
        ("history", gateway.history.run),
        *records.loops(),
    ):
        start(name, loop)
    if gateway.quotas.recovery is not None:
        start("recounts", gateway.quotas.recovery.run)
    if gateway.valkey is not None:
        start("valkey", gateway.valkey.run)
    if gateway.cells is not None:
        start("cell loads", gateway.cells.loads(gateway.services.dispatch).run)


def _load(dispatch: Dispatch) -> tuple[int, int]:
    """Return how many requests wait at this gateway, and how many workers answer."""
    waiting = (
        sum(map(len, dispatch.rooms.all().values())) + dispatch.acquisition.first_worker.counts().total()
    )
    return waiting, sum(worker.load.streams for worker in dispatch.fleet)


def _event_feeds(
    index: SharedIndexParts, space: SpaceOf, ranks: Ranks, stack: AsyncExitStack
) -> KvEventFeeds:
    event_feeds = KvEventFeeds(
        index=index.index,
        store=index.feed_leases,
        resolve_namespace=space,
        page_budget=index.page_budget,
        ranks=ranks,
        replica_is_current=lambda: index.reader.up,
        candidate=index.keeps_copy,
    )
    stack.push_async_callback(event_feeds.close)
    return event_feeds


def _turns(gateway: Gateway, scripts: ScriptCaller) -> TurnReader:
    dispatch, news = gateway.services.dispatch, gateway.discovery.registry.news
    queue = dispatch.queue.shards[0]

    def missed() -> None:
        queue.ask_again()
        news.heard()

    return TurnReader(
        scripts,
        queue.stream,
        handlers={
            **gateway.queues.heard,
            **gateway.activity.heard,
            **gateway.history.heard,
            **(gateway.explorer.heard if gateway.explorer is not None else {}),
            b"preempt": dispatch.preemption_requests.heard,
            b"rest": dispatch.provider_backoff.heard,
            b"workers": news.heard,
        },
        on_turn=queue.turn_granted,
        on_gateways=queue.membership.gateways_changed,
        on_missed=missed,
    )


def _discovery(settings: Settings, fleet: Fleet, scripts: ScriptCaller) -> Discovery:
    registered = WorkerRegistry(scripts, settings.redis.prefix)
    return Discovery(
        fleet,
        settings.workers,
        build_sources(settings.discovery, registered),
        registered,
        worker_of,
        WorkerKinds(target_of),
        drain_seconds=settings.drain.seconds,
    )


async def _valkey(settings: Settings, stack: AsyncExitStack) -> EmbeddedValkey | None:
    """Start the embedded Valkey; None if the settings name another server."""
    if settings.redis.url != "embedded":
        return None
    valkey = EmbeddedValkey(Path(settings.state_directory))
    stack.push_async_callback(valkey.close)
    await valkey.start()
    return valkey


def _media(settings: Settings, stack: AsyncExitStack) -> MediaPolicy:
    if not settings.requests.media_hosts:
        return MediaPolicy(pass_fields=settings.requests.pass_fields)
    fetcher = MediaFetcher(settings.requests.media_hosts, settings.requests.media_bytes_max)
    stack.push_async_callback(fetcher.close)
    return MediaPolicy(fetcher, settings.requests.pass_fields)
