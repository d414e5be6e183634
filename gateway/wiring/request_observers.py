"""The observers of requests: metrics, traces, the access log, finished requests in detail."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from gateway.discovery.discovery import Discovery
from gateway.explorer.request_store import RequestStore
from gateway.fleet.fleet import Fleet
from gateway.settings.tree import Settings
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.overview import Overview
from gateway.telemetry.request_record import RequestRecord
from gateway.telemetry.tracing import Tracing
from gateway.wiring.counters_follow_fleet import CountersFollowFleet
from gateway.wiring.stores import Stores
from gateway.wiring.telemetry import access_log_of, metrics_of, request_store, tracing_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestObservers:
    """The parts that observe requests."""

    access_log: AccessLog | None
    kept: RequestStore | None
    """Finished requests in detail; None where the settings keep none."""
    overview: Overview
    metrics: CollectorRegistry
    tracing: Tracing
    observers: tuple[Callable[[RequestRecord], None], ...]
    """Called with the record of each request at its end."""

    @classmethod
    def create(
        cls, settings: Settings, stores: Stores, fleet: Fleet, discovery: Discovery, stack: AsyncExitStack
    ) -> "RequestObservers":
        """Return the parts, which the stack closes."""
        access_log = access_log_of(settings, stack)
        tracing = tracing_of(settings, discovery)
        stack.push_async_callback(asyncio.to_thread, tracing.close)
        kept, overview = request_store(settings), Overview(time.monotonic)
        counters, count_request, metrics = metrics_of(settings)
        fleet.subscribe(CountersFollowFleet(fleet, counters.keep_workers, overview.keep_workers))
        ledger = stores.records.ledger
        observers = (
            # The ledger comes first: an error of another observer cannot keep a request out of it.
            *((ledger.observe,) if ledger is not None else ()),
            *count_request,
            overview.observe,
            *((kept.observe,) if kept is not None else ()),
            *((access_log.observe,) if access_log is not None else ()),
            *((tracing.observe,) if tracing.exports else ()),
        )
        return cls(
            access_log=access_log,
            kept=kept,
            overview=overview,
            metrics=metrics,
            tracing=tracing,
            observers=observers,
        )
