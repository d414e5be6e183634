"""The parts that depend on the workers: fleet and discovery, models and prompts, the prefix index, dispatch."""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache, partial

from gateway.cells.own_groups import OwnGroups
from gateway.discovery.configured_sources import build_sources
from gateway.discovery.discovery import Discovery
from gateway.discovery.worker_kinds import WorkerKinds
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.dispatch.dispatch import Dispatch
from gateway.fleet.announced_dispatches import AnnouncedDispatches
from gateway.fleet.fleet import Fleet
from gateway.fleet.load_feeds import LoadFeeds
from gateway.fleet.ranks import Ranks
from gateway.kv_index.index_follows_fleet import IndexFollowsFleet
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.namespace_resolver import GroupsBySalt, NamespaceResolver
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.models.catalogue import Catalogue
from gateway.settings.tree import Settings
from gateway.tokenization.encoder_processes import EncoderProcesses
from gateway.tokenization.prompt_hasher import PromptHasher
from gateway.tokenization.worker_tokens import FleetTokenizer
from gateway.wiring.dispatch import dispatch_of, dispatch_windows
from gateway.wiring.fleet import fleet_of, target_of, worker_of
from gateway.wiring.shared_queue import shared_queue
from gateway.wiring.stores import Stores
from radix_cache.machine.segment import IndexMemory
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace, cache_salt
from radix_cache.redis.scripts import ScriptCaller

SpaceOf = Callable[[WorkerId, str, str, int], HashedNamespace | None]

ENCODING_THREADS = 2
SALTS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """The workers, the index of their caches, and the parts that send requests to them."""

    fleet: Fleet
    discovery: Discovery
    catalogue: Catalogue
    prompt_hasher: PromptHasher
    index: SharedIndexParts
    event_feeds: KvEventFeeds
    dispatch: Dispatch

    @classmethod
    def create(
        cls,
        settings: Settings,
        secret: bytes,
        stores: Stores,
        index_memory: IndexMemory | None,
        stack: AsyncExitStack,
    ) -> "FleetParts":
        """Return the parts, which the stack closes; nothing is sent to workers yet. Raises SettingsProblem."""
        fleet = fleet_of(settings)
        stack.callback(fleet.close)
        discovery = _discovery(settings, fleet, stores.scripts)
        catalogue = _catalogue(settings, fleet, stack)
        windows = dispatch_windows(settings, fleet)
        queue = shared_queue(settings, stores.scripts, windows, fleet)
        if (
            settings.cells is None
        ):  # Other cells have a part of the demand, which is not reported to this one.
            windows.count_gateways(queue)
        index = SharedIndexParts.create(
            stores.redis_url,
            settings.redis.prefix,
            settings.index,
            index_memory,
            is_alone=lambda: queue.is_alone,
        )
        stack.push_async_callback(index.close)
        prompt_hasher = PromptHasher(secret)
        salt_of = lru_cache(maxsize=SALTS_MAX)(partial(cache_salt, secret=secret))
        namespaces = _namespaces(fleet, catalogue, prompt_hasher, salt_of, stores)
        ranks = Ranks()
        event_feeds = _event_feeds(index, namespaces.resolve, ranks, stack)
        load_feeds = LoadFeeds(ranks, fleet.reported_speed)
        stack.push_async_callback(load_feeds.close)
        announced = AnnouncedDispatches(fleet, index.index.replica.workers.get)
        index.index.replica.report_predictions(announced, index.index.sent_predictions.prefix)
        fleet.subscribe(IndexFollowsFleet(catalogue, index, event_feeds, load_feeds, announced))
        dispatch = dispatch_of(
            settings,
            fleet,
            stores.quotas.leases,
            windows,
            queue,
            index,
            event_feeds,
            load_feeds,
            stores.scripts,
            salt_of,
        )
        return cls(
            fleet=fleet,
            discovery=discovery,
            catalogue=catalogue,
            prompt_hasher=prompt_hasher,
            index=index,
            event_feeds=event_feeds,
            dispatch=dispatch,
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


def _catalogue(settings: Settings, fleet: Fleet, stack: AsyncExitStack) -> Catalogue:
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
    for worker in fleet:
        catalogue.add_reported(worker.models, worker.report.parents)
    return catalogue


def _namespaces(
    fleet: Fleet,
    catalogue: Catalogue,
    prompt_hasher: PromptHasher,
    salt_of: Callable[[str], str],
    stores: Stores,
) -> NamespaceResolver:
    """Return what finds the namespace of a KV event; in a cell only those of groups that the cell follows."""
    cells, tenants = stores.cells, stores.records.tenants
    followed = OwnGroups(cells.living, tenants).includes if cells is not None else None
    return NamespaceResolver(
        fleet.models_of,
        fleet.adapters_of,
        catalogue,
        prompt_hasher,
        GroupsBySalt(tenants.groups, salt_of, followed),
    )


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
