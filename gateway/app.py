"""The composition root: makes the parts of a gateway from its settings, once, and hands them on by constructor.

`running` makes, starts and closes them. runtime/server.py adds what serves: listeners, batches, reload and drain.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.concurrency.loop_supervisor import LoopSupervisor
from gateway.discovery.discovery import Discovery
from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.queue_report import gateway_name
from gateway.dispatch.queue_reporter import QueueReporter
from gateway.domain.errors import ShuttingDown
from gateway.domain.memory_budget import MemoryBudget
from gateway.explorer.activity import ActivityReporter
from gateway.explorer.activity_history import ActivityHistory
from gateway.explorer.request_explorer import RequestExplorer
from gateway.fleet.fleet import Fleet
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.media.media_fetch import MediaFetcher
from gateway.media.media_policy import MediaPolicy
from gateway.models.model_selection import ModelSelection
from gateway.models.service_classes import ServiceClasses
from gateway.pipeline import Services
from gateway.process.drain_state import DrainState
from gateway.process.embedded_valkey import EmbeddedValkey
from gateway.process.secrets import deployment_secret
from gateway.process.settings_in_force import SettingsInForce
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.turn_stream import TurnReader
from gateway.settings.sources import LoadedSettings
from gateway.settings.tree import Settings
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metric_families import StateCollector
from gateway.telemetry.overview import Overview
from gateway.tenants.auth_throttle import AuthThrottle
from gateway.tenants.authentication import Authentication
from gateway.wiring.cells import CellParts
from gateway.wiring.fleet_parts import FleetParts
from gateway.wiring.gauges import gauges
from gateway.wiring.identity import operator_issuers, token_verifier
from gateway.wiring.quotas import QuotaParts
from gateway.wiring.records import Records
from gateway.wiring.request_observers import RequestObservers
from gateway.wiring.shared_queue import shard_loops, shard_visits
from gateway.wiring.stores import Stores
from gateway.wiring.telemetry import explorer_of
from radix_cache.machine.segment import IndexMemory
from radix_cache.redis.scripts import ScriptCaller

if TYPE_CHECKING:
    from gateway.settings.token_issuers import OperatorIssuerSettings, TenantIssuerSettings
    from gateway.tenants.token_issuer import Issuer


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
    """Finished requests in detail; None where the settings keep none."""
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
        """Refuse new requests and dismiss the waiting ones with ShuttingDown; running requests continue."""
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
        secret, supervisor, drain_state = deployment_secret(settings), LoopSupervisor(), DrainState()
        stores = await Stores.open(settings, secret, drain_state, stack)
        parts = FleetParts.create(settings, secret, stores, index_memory, stack)
        telemetry = RequestObservers.create(settings, stores, parts.fleet, parts.discovery, stack)
        services = _services(settings, stores, parts, telemetry, supervisor, stack)
        issuers = operator_issuers(settings, stack, supervisor)
        gateway = _gateway(loaded, stores, parts, telemetry, services, issuers, supervisor, drain_state)
        dispatch = parts.dispatch
        for close in (
            gateway.queues.close,
            gateway.activity.close,
            gateway.history.close,
            *((gateway.explorer.close,) if gateway.explorer is not None else ()),
            dispatch.preemption_requests.close,
            dispatch.provider_backoff.close,
            dispatch.queue.close,
            supervisor.close,
        ):
            stack.push_async_callback(close)
        gateway.metrics.register(_gauges(gateway))
        await _start(gateway, _turns(gateway, stores.scripts), stores.scripts)
        yield gateway


def _services(
    settings: Settings,
    stores: Stores,
    parts: FleetParts,
    telemetry: RequestObservers,
    supervisor: LoopSupervisor,
    stack: AsyncExitStack,
) -> Services:
    """Return what the pipeline needs of the parts."""
    records, cells = stores.records, stores.cells
    return Services(
        authentication=Authentication(
            records.tenants,
            AuthThrottle(settings.authentication.failures_per_minute_max, time.monotonic),
            token_verifier(settings, stack, supervisor),
        ),
        catalogue=parts.catalogue,
        model_selection=ModelSelection(parts.catalogue, parts.fleet),
        media=_media(settings, stack),
        prompt_hasher=parts.prompt_hasher,
        dispatch=parts.dispatch,
        tracing=telemetry.tracing,
        usage=records.ledger.reader if records.ledger is not None else None,
        observers=telemetry.observers,
        unread_seconds_max=settings.requests.idle_seconds_max,
        repeats_max=settings.requests.repeats_max,
        classes=ServiceClasses(settings.classes),
        cells=cells.living if cells is not None else None,
    )


def _gateway(
    loaded: LoadedSettings,
    stores: Stores,
    parts: FleetParts,
    telemetry: RequestObservers,
    services: Services,
    issuers: "Sequence[Issuer[OperatorIssuerSettings]]",
    supervisor: LoopSupervisor,
    drain_state: DrainState,
) -> Gateway:
    """Return the parts that the listeners need, with those that collect the state of all gateways."""
    settings, dispatch, scripts = loaded.settings, parts.dispatch, stores.scripts
    keys, queue = QueueKeys(settings.redis.prefix), dispatch.queue
    return Gateway(
        settings=settings,
        in_force=SettingsInForce(loaded),
        services=services,
        supervisor=supervisor,
        overview=telemetry.overview,
        metrics=telemetry.metrics,
        scripts=scripts,
        quotas=stores.quotas,
        index=parts.index,
        event_feeds=parts.event_feeds,
        valkey=stores.valkey,
        records=stores.records,
        discovery=parts.discovery,
        queues=QueueReporter(dispatch, scripts, keys),
        activity=ActivityReporter(
            telemetry.overview,
            gateway_name(),
            scripts,
            keys,
            queue.gateway,
            lambda: queue.gateways,
            lambda: dispatch.router.shadow,
        ),
        history=ActivityHistory(
            telemetry.overview,
            partial(_load, dispatch),
            scripts,
            keys,
            queue.gateway,
            lambda: queue.gateways,
        ),
        explorer=explorer_of(telemetry.kept, dispatch, scripts, settings),
        access_log=telemetry.access_log,
        issuers=issuers,
        memory=MemoryBudget(settings.listen.memory_bytes_max),
        cells=stores.cells,
        drain_state=drain_state,
    )


def _gauges(gateway: Gateway) -> StateCollector:
    """Return the metrics of the gateway's present state."""
    services, records = gateway.services, gateway.records
    return StateCollector(
        gauges(
            gateway.fleet,
            services.dispatch,
            gateway.index,
            gateway.event_feeds,
            gateway.quotas.store,
            gateway.quotas.escrow,
            records.directory,
            records.ledger,
            records.batch_counts,
            gateway.every_issuer,
            gateway.access_log,
            services.catalogue,
        )
    )


async def _start(gateway: Gateway, turns: TurnReader, scripts: ScriptCaller) -> None:
    """Start the background loops of these parts; wait until tenants, workers and the prefix index are read once.

    Workers are read when each has been probed once: only then is it known which models they serve.
    """
    start, records, index = gateway.supervisor.start, gateway.records, gateway.index
    dispatch = gateway.services.dispatch
    queue = dispatch.queue
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
        start("cell loads", gateway.cells.loads(dispatch).run)
    else:
        for name, loop in shard_visits(scripts, gateway.settings.redis.prefix, dispatch):
            start(name, loop)
    await gateway.fleet.wait_until_probed()


def _load(dispatch: Dispatch) -> tuple[int, int]:
    """Return how many requests wait at this gateway, and how many workers answer."""
    waiting = (
        sum(map(len, dispatch.rooms.all().values())) + dispatch.acquisition.first_worker.counts().total()
    )
    return waiting, sum(worker.load.streams for worker in dispatch.fleet)


def _turns(gateway: Gateway, scripts: ScriptCaller) -> TurnReader:
    dispatch, changes = gateway.services.dispatch, gateway.discovery.registry.changes
    queue = dispatch.queue.shards[0]

    def missed() -> None:
        queue.requests.ask_again()
        changes.notify()

    return TurnReader(
        scripts,
        queue.stream,
        handlers={
            **gateway.queues.handlers,
            **gateway.activity.handlers,
            **gateway.history.handlers,
            **(gateway.explorer.handlers if gateway.explorer is not None else {}),
            b"preempt": dispatch.preemption_requests.receive,
            b"rest": dispatch.provider_backoff.receive,
            b"workers": changes.notify,
        },
        on_turn=queue.requests.turn_granted,
        on_gateways=queue.membership.gateways_changed,
        on_missed=missed,
    )


def _media(settings: Settings, stack: AsyncExitStack) -> MediaPolicy:
    if not settings.requests.media_hosts:
        return MediaPolicy(pass_fields=settings.requests.pass_fields)
    fetcher = MediaFetcher(settings.requests.media_hosts, settings.requests.media_bytes_max)
    stack.push_async_callback(fetcher.close)
    return MediaPolicy(fetcher, settings.requests.pass_fields)
