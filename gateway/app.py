"""The composition root: settings in, a gateway out. Everything is made here, once, and handed on by constructor."""

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from prometheus_client import CollectorRegistry, disable_created_metrics

from gateway.database.database import Database, DatabaseDown
from gateway.database.response_store import ResponseStore
from gateway.database.tenant_store import TenantStore
from gateway.database_address import NONE
from gateway.discovery.discovery import Discovery
from gateway.discovery.registry import WorkerRegistry
from gateway.discovery.sources import sources_of
from gateway.dispatch.cache_shares import CacheShares
from gateway.dispatch.catalogue import Catalogue
from gateway.dispatch.estimates import OutputEstimates
from gateway.dispatch.event_sources import event_sources
from gateway.dispatch.feedback import Feedback
from gateway.dispatch.feeds import Feeds
from gateway.dispatch.fleet import Fleet, FleetEvents, Worker
from gateway.dispatch.household import QueueHousehold
from gateway.dispatch.media_fetch import MediaFetcher
from gateway.dispatch.media_rules import MediaRules
from gateway.dispatch.prefixes import Prefixes
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.router import Router
from gateway.dispatch.shadow import Shadow
from gateway.dispatch.spaces import Salts, Spaces
from gateway.dispatch.turn import Bounds, Placed
from gateway.dispatch.waiting_room import WaitingRoom
from gateway.doors import Doors
from gateway.embedded_valkey import EmbeddedValkey
from gateway.entrance import Entrance
from gateway.errors import ShuttingDown
from gateway.gauges import gauges
from gateway.ledger.ledger import Ledger
from gateway.lifecycle import Supervisor
from gateway.pipeline import Services
from gateway.queue.keys import QueueKeys
from gateway.queue.shared import SharedQueue
from gateway.queue.store import QueueStore
from gateway.queue.turns import TurnReader
from gateway.quotas.events import Events
from gateway.quotas.gateways import Gateways
from gateway.quotas.guarded_store import GuardedQuotaStore
from gateway.quotas.leases import Leases
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.redis_store import RedisQuotaStore
from gateway.secret_store import deployment_secret
from gateway.settings.listeners import is_loopback
from gateway.settings.routing import ShadowPolicy
from gateway.settings.tokens import OperatorIssuer
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.settings.workers import Worker as WorkerSettings
from gateway.shared_index import SharedIndexParts
from gateway.telemetry.metrics import RequestMetrics, StateCollector
from gateway.telemetry.overview import Overview
from gateway.telemetry.tracing import Tracing, batching
from gateway.tenants.directory import TenantDirectory
from gateway.tenants.keys import pepper
from gateway.tenants.penalties import Penalties
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.yaml_directory import OpenUntilTenants, yaml_directory
from policies.queueing.cost import CostWeights
from policies.queueing.sfq import Sfq
from policies.registry import queue_policy, routing_policy, tenant_order
from radix_cache.match import WorkerId
from radix_cache.namespace import Space, cache_salt
from radix_cache.redis.scripts import ScriptCaller
from workers.adapter import WorkerTarget
from workers.adapters.registry import adapters

if TYPE_CHECKING:
    from gateway.tenants.issuer import Issuer
    from gateway.tenants.tokens import Tokens

log = logging.getLogger(__name__)

ENCODING_THREADS = 2
EXPORT_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A gateway that runs; what its listeners need of it."""

    settings: Settings
    services: Services
    supervisor: Supervisor
    overview: Overview
    registry: CollectorRegistry
    quotas: GuardedQuotaStore
    index: SharedIndexParts
    feeds: Feeds
    valkey: EmbeddedValkey | None
    database: SqlDirectory | None
    responses: ResponseStore | None
    discovery: Discovery
    ledger: Ledger | None
    issuers: "Sequence[Issuer[OperatorIssuer]]"
    doors: Doors = field(default_factory=Doors)
    version: str = field(default_factory=lambda: version("radixgate"))

    @property
    def fleet(self) -> Fleet:
        return self.services.reservations.fleet

    def close_doors(self) -> None:
        """New requests are refused, those that wait are sent away, running ones go on."""
        self.doors.ready = self.doors.open = False
        reservations = self.services.reservations
        for room in reservations.rooms().values():
            room.close(ShuttingDown())
        reservations.queue.dismiss(ShuttingDown())


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway with all its parts open; they are closed in reverse order. Raises SettingsProblem, ValkeyFailed."""
    async with AsyncExitStack() as stack:
        secret = deployment_secret(settings)
        supervisor = Supervisor()
        tracing = _tracing(settings)
        stack.push_async_callback(asyncio.to_thread, tracing.close)

        valkey = await _valkey(settings, stack)
        redis_url = valkey.url if valkey is not None else settings.redis.url
        scripts = ScriptCaller(redis_url)
        stack.push_async_callback(scripts.close)
        events, gateways = Events(), Gateways(scripts, settings.redis.prefix)
        shared = RedisQuotaStore(
            scripts, settings.redis.timeout_ms / 1000, prefix=settings.redis.prefix, events=events
        )
        quotas = GuardedQuotaStore(
            shared,
            LocalQuotaStore(time.monotonic, time.time, events),
            shared.check,
            time.monotonic,
            gateways=lambda: gateways.count,
            events=events,
        )
        leases = Leases(quotas, events)
        stack.push_async_callback(leases.close)

        executor = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="encode")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        catalogue = Catalogue(settings.models, executor, random.getrandbits(64), int(time.time()))
        shared_index = SharedIndexParts.at(redis_url, settings.redis.prefix, settings.index)
        stack.push_async_callback(shared_index.close)
        database = _sql_directory(settings, secret, stack)
        ledger = _ledger(settings, stack)
        if ledger is not None:
            events.on_alert.append(ledger.alert)
        tenants, prefixes = _tenants(settings, secret, database), Prefixes(secret)
        salted = lru_cache(maxsize=4096)(lambda group: cache_salt(group, secret))

        def space(worker: WorkerId, salt: str, adapter: str, page_size: int) -> Space | None:
            return spaces.of(worker, salt, adapter, page_size)

        feeds = Feeds(
            index=shared_index.index,
            store=shared_index.feed_leases,
            space=space,
            room=shared_index.room,
            up=lambda: shared_index.reader.up,
        )
        stack.push_async_callback(feeds.close)
        reservations = _dispatch(settings, catalogue, leases, shared_index, feeds, scripts)
        stack.callback(reservations.fleet.close)
        queue = reservations.queue
        turns = TurnReader(
            scripts,
            QueueKeys(settings.redis.prefix).turns,
            turn=queue.turn_told,
            gateways=queue.gateways_changed,
            missed=queue.ask_again,
        )
        salts = Salts(tenants.groups, lambda group: cache_salt(group, secret))
        spaces = Spaces(reservations.fleet, catalogue, prefixes, salts)

        overview = Overview(time.monotonic)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, of use to nobody
        registry = CollectorRegistry(auto_describe=True)
        services = Services(
            entrance=Entrance(
                tenants,
                Penalties(settings.authentication.failures_per_minute_max, time.monotonic),
                _tokens(settings, stack, supervisor),
            ),
            catalogue=catalogue,
            media=_media(settings, stack),
            prefixes=prefixes,
            reservations=reservations,
            tracing=tracing,
            usage=ledger.reader if ledger is not None else None,
            cache_salt=salted,
            observers=(
                # First of all: nothing that goes wrong elsewhere keeps a request out of the accounts.
                *((ledger.observe,) if ledger is not None else ()),
                *(RequestMetrics(registry).observe, overview.observe, tracing.observe),
            ),
            first_byte_seconds_max=settings.requests.first_token_seconds_max,
            idle_seconds_max=settings.requests.idle_seconds_max,
            repeats_max=settings.requests.repeats_max,
            assembles=settings.queueing.whole_from_streams,
        )
        registered = WorkerRegistry(scripts, settings.redis.prefix)
        discovery = Discovery(
            reservations.fleet,
            settings.workers,
            sources_of(settings.discovery, registered),
            registered,
            _worker,
            drain_seconds=settings.drain.seconds,
        )
        gateway = Gateway(
            settings=settings,
            services=services,
            supervisor=supervisor,
            overview=overview,
            registry=registry,
            quotas=quotas,
            index=shared_index,
            feeds=feeds,
            valkey=valkey,
            database=database,
            discovery=discovery,
            ledger=ledger,
            issuers=_operator_issuers(settings, stack),
            responses=_responses(settings, stack),
        )
        registry.register(
            StateCollector(gauges(gateway.fleet, reservations, shared_index, feeds, quotas, database, ledger))
        )

        stack.push_async_callback(queue.close)
        stack.push_async_callback(supervisor.close)
        if database is not None:
            supervisor.start("database", database.run)
            await database.whole()
        await discovery.look()
        supervisor.start("index", shared_index.reader.follow)
        await shared_index.whole()
        for name, loop in (
            ("index keeper", shared_index.keeper.run),
            ("probes", reservations.fleet.run),
            ("discovery", discovery.run),
            ("feeds", feeds.run),
            ("quotas", quotas.run),
            ("leases", leases.run),
            ("queue", queue.run),
            ("turns", turns.run),
            ("gateways", gateways.run),
        ):
            supervisor.start(name, loop)
        if valkey is not None:
            supervisor.start("valkey", valkey.run)
        if gateway.responses is not None:
            supervisor.start("responses", gateway.responses.run)
        if ledger is not None:
            for loop_name, run in ledger.loops():
                supervisor.start(loop_name, run)
        yield gateway


def _dispatch(
    settings: Settings,
    catalogue: Catalogue,
    leases: Leases,
    shared: SharedIndexParts,
    feeds: Feeds,
    scripts: ScriptCaller,
) -> Reservations:
    """Fleet, router, waiting rooms, and what holds them together."""

    index = shared.index

    def reported(worker: Worker) -> None:
        catalogue.found(worker.models)
        index.enrol(worker.id, worker.report.instance or "")
        feeds.follow(worker.id, worker.report.events if worker.told is None else worker.told)
        if worker.report.kv_tokens_max is not None:
            sizes = [model.block_size for name, model in catalogue.names().items() if name in worker.models]
            index.bound(worker.id, worker.report.kv_tokens_max // min(sizes, default=1))

    def gone(worker: WorkerId) -> None:
        feeds.follow(worker, ())
        index.forget(worker)

    events = FleetEvents(
        room=lambda: reservations.fleet_changed(), emptied=index.forget, reported=reported, gone=gone
    )
    fleet = Fleet(map(_worker, settings.workers), events)
    if any(tenant.isolation.mode != "shared" for tenant in settings.tenants):
        fleet.warn_of_shared_caches()
    for worker in fleet:
        catalogue.found(worker.models)
    queue = settings.queueing
    policy, order = queue_policy(queue.across, queue.options), tenant_order(queue.within)

    def new_room(model: str, unseat: Callable[[Placed], None]) -> WaitingRoom[Placed]:
        return WaitingRoom(
            model,
            policy=policy,
            order=order,
            unseat=unseat,
            waiting_max=queue.waiting_requests_max,
            waiting_seconds_max=queue.waiting_seconds_max,
            clock=time.monotonic,
        )

    household = QueueHousehold(
        fleet, room=lambda model: reservations.room(model), rooms=lambda: reservations.rooms()
    )
    shared_queue = SharedQueue(
        QueueStore(
            scripts, QueueKeys(settings.redis.prefix), os.urandom(8).hex(), queue.release_window_tokens
        ),
        household,
        order,
        enabled=queue.across == Sfq.name,
        timeout_seconds=settings.redis.timeout_ms / 1000,
        clock=time.monotonic,
    )
    feedback = Feedback(index, feeds.credits, feeds.raised)
    reservations = Reservations(
        leases=leases,
        router=Router(
            fleet=fleet,
            index=index,
            feedback=feedback,
            policy=routing_policy(settings.routing.policy, settings.routing.options),
            random=random.Random(),
            shadow=_shadow(settings.routing.shadow),
        ),
        fleet=fleet,
        index=index,
        shares=CacheShares(index.copy.namespaces, time.monotonic),
        feedback=feedback,
        estimates=OutputEstimates(),
        bounds=Bounds(
            release_window_tokens=queue.release_window_tokens,
            costs=CostWeights(
                uncached=queue.costs.uncached, cached=queue.costs.cached, output=queue.costs.output
            ),
            attempts_max=settings.requests.attempts_max,
            first_token_seconds_max=settings.requests.first_token_seconds_max,
        ),
        queue=shared_queue,
        new_room=new_room,
    )
    return reservations


def _shadow(settings: ShadowPolicy | None) -> Shadow | None:
    if settings is None:
        return None
    return Shadow(routing_policy(settings.policy, settings.options), settings.share)


def _worker(settings: WorkerSettings) -> Worker:
    identity = WorkerId(settings.id)
    target = WorkerTarget(
        id=identity,
        url=settings.url.rstrip("/").removesuffix("/v1"),
        api_key=settings.api_key.reveal() if settings.api_key is not None else None,
    )
    return Worker(
        id=identity,
        kind=settings.kind,
        adapter=adapters()[settings.kind](target),
        models=frozenset(settings.models),
        models_fixed=bool(settings.models),
        told=event_sources(settings),
    )


async def _valkey(settings: Settings, stack: AsyncExitStack) -> EmbeddedValkey | None:
    """The private server, started, unless the settings name another."""
    if settings.redis.url != "embedded":
        return None
    valkey = EmbeddedValkey(Path(settings.state_directory))
    stack.push_async_callback(valkey.close)
    await valkey.start()
    return valkey


def _tenants(settings: Settings, secret: bytes, database: SqlDirectory | None) -> TenantDirectory:
    directory = database if database is not None else yaml_directory(settings, pepper(secret))
    alone = settings.listen.unix_socket is not None or is_loopback(settings.listen.host)
    return OpenUntilTenants(directory) if alone else directory


def _sql_directory(settings: Settings, secret: bytes, stack: AsyncExitStack) -> SqlDirectory | None:
    """What the settings' tenants and the database's are in together; None without a database."""
    database = _database(settings, stack)
    if database is None:
        return None
    return SqlDirectory(
        yaml_directory(settings, pepper(secret)),
        TenantStore(database),
        known_seconds_max=settings.database.known_keys_seconds_max,
        upgrades=_upgrades(settings, database),
    )


def _ledger(settings: Settings, stack: AsyncExitStack) -> Ledger | None:
    """With connections of its own: what it writes keeps nobody's keys waiting. None without a database."""
    database = _database(settings, stack)
    if database is None:
        return None
    try:
        ledger = Ledger(settings, database, upgrades=_upgrades(settings, database))
    except OSError as err:
        raise SettingsProblem(f"$.state_directory: the usage journal cannot be made: {err.strerror}") from err
    stack.push_async_callback(ledger.close)
    return ledger


def _database(settings: Settings, stack: AsyncExitStack) -> Database | None:
    url = settings.database.url
    if url == NONE:
        return None
    try:
        database = Database(settings.database.url, Path(settings.state_directory))
    except DatabaseDown as err:
        raise SettingsProblem(f"$.database.url: {err}") from err
    stack.push_async_callback(database.close)
    return database


def _upgrades(settings: Settings, database: Database) -> bool:
    """May a gateway bring its tables up to date?"""
    upgrade = settings.database.upgrade
    return upgrade == "always" or (upgrade == "auto" and database.file is not None)


def _media(settings: Settings, stack: AsyncExitStack) -> MediaRules:
    if not settings.requests.media_hosts:
        return MediaRules()
    fetcher = MediaFetcher(settings.requests.media_hosts, settings.requests.media_bytes_max)
    stack.push_async_callback(fetcher.close)
    return MediaRules(fetcher)


def _tokens(settings: Settings, stack: AsyncExitStack, supervisor: Supervisor) -> "Tokens | None":
    """Who verifies tokens; None where the settings name no issuer. Raises SettingsProblem."""
    if not settings.authentication.tokens:
        return None
    try:
        from gateway.tenants.tokens import Tokens
    except ModuleNotFoundError as err:
        raise SettingsProblem(
            f"$.authentication.tokens: {err.name} is not installed; pip install 'radixgate[oidc]'"
        ) from err
    http = aiohttp.ClientSession()
    stack.push_async_callback(http.close)
    tokens = Tokens.of(settings.authentication.tokens, http)
    stack.callback(tokens.close)
    for name, loop in tokens.loops():
        supervisor.start(name, loop)
    return tokens


def _operator_issuers(settings: Settings, stack: AsyncExitStack) -> "Sequence[Issuer[OperatorIssuer]]":
    """Who says what operators may do. Raises SettingsProblem."""
    if not settings.admin.issuers:
        return ()
    try:
        from gateway.tenants.issuer import Issuer
    except ModuleNotFoundError as err:
        raise SettingsProblem(
            f"$.admin.issuers: {err.name} is not installed; pip install 'radixgate[oidc]'"
        ) from err
    http = aiohttp.ClientSession()
    stack.push_async_callback(http.close)
    issuers = [Issuer(rules, http) for rules in settings.admin.issuers]
    for issuer in issuers:
        stack.callback(issuer.close)
    return issuers


def _responses(settings: Settings, stack: AsyncExitStack) -> ResponseStore | None:
    """With connections of its own, as the ledger. None without a database."""
    database = _database(settings, stack)
    if database is None:
        return None
    return ResponseStore(
        database,
        kept_seconds=settings.responses.kept_seconds,
        tenant_responses_max=settings.responses.tenant_responses_max,
    )


def _tracing(settings: Settings) -> Tracing:
    endpoint = settings.telemetry.otlp_endpoint
    exporter = None
    if endpoint is not None:
        url = f"{endpoint.rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(url, timeout=EXPORT_SECONDS_MAX)
    return Tracing(
        processor=batching(exporter) if exporter is not None else None,
        sample_ratio=settings.telemetry.sample_ratio,
        random=random.Random(),
        version=version("radixgate"),
    )
