"""Makes the parts of telemetry from their settings: metrics, traces, access log, finished requests."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from gateway.discovery.discovery import Discovery
from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.queue_report import gateway_name
from gateway.explorer.request_explorer import RequestExplorer
from gateway.explorer.request_store import RequestStore
from gateway.queueing.shared.keys import QueueKeys
from gateway.settings.tree import Settings
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.build_info import build_info
from gateway.telemetry.gen_ai_metrics import GenAiMetrics, gen_ai_families
from gateway.telemetry.metric_families import StateCollector, without_labels
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.request_families import request_families
from gateway.telemetry.request_record import RequestRecord
from gateway.telemetry.span_export import batch_processor
from gateway.telemetry.tracing import Tracing
from radix_cache.match import WorkerId
from radix_cache.redis.scripts import ScriptCaller

EXPORT_SECONDS_MAX = 2.0


def access_log_of(settings: Settings, stack: AsyncExitStack) -> AccessLog | None:
    """Start the access log, which the stack closes; None where the settings name none."""
    if settings.telemetry.access_log is None:
        return None
    access_log = AccessLog(settings.telemetry.access_log)
    access_log.start()
    stack.push_async_callback(asyncio.to_thread, access_log.close)
    return access_log


def request_store(settings: Settings) -> RequestStore | None:
    """Return the store of finished requests; None where the settings keep none."""
    rules = settings.telemetry.requests
    if not rules.kept_max:
        return None
    return RequestStore(gateway_name(), kept_max=rules.kept_max, slow_seconds=rules.slow_seconds)


def explorer_of(
    kept: RequestStore | None, dispatch: Dispatch, scripts: ScriptCaller, settings: Settings
) -> RequestExplorer | None:
    """Return the explorer of finished requests at all gateways; None where none are kept."""
    if kept is None:
        return None
    queue = dispatch.queue
    return RequestExplorer(
        kept, scripts, QueueKeys(settings.redis.prefix), queue.gateway, lambda: queue.gateways
    )


def metrics_of(
    settings: Settings,
) -> tuple[RequestMetrics, list[Callable[[RequestRecord], None]], CollectorRegistry]:
    """Return the counters, all observers that count, and a registry with their metrics and those of the process."""
    rules = settings.telemetry.metrics
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more per metric
    registry = CollectorRegistry(auto_describe=True)
    metrics = RequestMetrics(pairs_max=rules.pairs_max, tenant_histograms=rules.tenant_histograms)
    families = request_families(metrics, tenant_histograms=rules.tenant_histograms)
    registry.register(StateCollector(without_labels(family, rules.dropped_labels) for family in families))
    registry.register(StateCollector([build_info(version("radixgate"))]))
    ProcessCollector(registry=registry)
    observers: list[Callable[[RequestRecord], None]] = [metrics.observe]
    if rules.gen_ai:
        gen_ai = GenAiMetrics()
        registry.register(StateCollector(gen_ai_families(gen_ai)))
        observers.append(gen_ai.observe)
    return metrics, observers, registry


def tracing_of(settings: Settings, discovery: Discovery) -> Tracing:
    """Return the tracing of requests; `discovery` has the addresses of workers."""
    telemetry = settings.telemetry
    exporter = None
    if telemetry.otlp_endpoint is not None:
        # Only here: its import takes a part of every gateway's start.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        url = f"{telemetry.otlp_endpoint.rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(url, timeout=EXPORT_SECONDS_MAX)

    def address_of(worker: str) -> tuple[str, int | None] | None:
        known = discovery.settings_of(WorkerId(worker))
        url = urlsplit(known.url) if known is not None else None
        return (url.hostname, url.port) if url is not None and url.hostname else None

    return Tracing(
        processor=batch_processor(exporter) if exporter is not None else None,
        sample_ratio=telemetry.sample_ratio,
        random=random.Random(),
        version=version("radixgate"),
        slow_seconds=telemetry.requests.slow_seconds if telemetry.trace_slow_and_failed else None,
        address_of=address_of,
    )
