"""The metrics page of finished requests: the text that prometheus_client's own metric objects would give."""

import hypothesis.strategies as some
import pytest
from hypothesis import given
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from gateway.telemetry import metrics as telemetry_metrics
from gateway.telemetry.gauge_collector import StateCollector
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.request_families import request_families

BUCKETS = {
    "request_duration_seconds": telemetry_metrics.DURATION_BUCKETS,
    "queue_duration_seconds": telemetry_metrics.DURATION_BUCKETS,
    "time_to_first_token_seconds": telemetry_metrics.TTFT_BUCKETS,
    "class_time_to_first_token_seconds": telemetry_metrics.TTFT_BUCKETS,
    "time_per_output_token_seconds": telemetry_metrics.TPOT_BUCKETS,
    "dispatch_duration_seconds": telemetry_metrics.DISPATCH_BUCKETS,
}
BY_PAIR = (
    "prompt_tokens",
    "cached_tokens",
    "predicted_cached_tokens",
    "cached_tokens_error",
    "output_tokens",
    "request_duration_seconds",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "queue_duration_seconds",
)


class Reference:
    """Counts requests in prometheus_client's own metric objects."""

    def __init__(self, pairs_max):
        self.registry = CollectorRegistry()
        self.metrics = {}
        self.pairs_max = pairs_max
        self.pairs = set()
        for family in request_families(None):
            kind, more = (Counter, {}) if family.kind == "counter" else (Histogram, {})
            if family.name in BUCKETS:
                more = {"buckets": BUCKETS[family.name]}
            self.metrics[family.name] = kind(
                family.name, family.text, family.labels, namespace="radixgate", registry=self.registry, **more
            )

    def add(self, name, value, *labels):
        metric = self.metrics[name].labels(*labels)
        if isinstance(metric, Counter):
            metric.inc(value)
        elif value is not None:
            metric.observe(value)

    def observe(self, record):
        tenant, model = record.tenant or "-", record.model or "-"
        if (tenant, model) not in self.pairs and len(self.pairs) >= self.pairs_max:
            tenant = "*"
        else:
            self.pairs.add((tenant, model))
        self.add("requests", 1, tenant, model, record.code)
        if record.service_class:
            self.add("class_requests", 1, record.service_class, telemetry_metrics.class_outcome(record))
            self.add("class_time_to_first_token_seconds", record.first_token_seconds, record.service_class)
        if record.worker is None:
            return
        for name in BY_PAIR:
            self.metrics[name].labels(tenant, model)
        self.add("output_tokens", record.output_tokens, tenant, model)
        self.add("request_duration_seconds", record.seconds, tenant, model)
        self.add("queue_duration_seconds", record.queue_seconds, tenant, model)
        self.add("dispatch_duration_seconds", record.dispatch_seconds, model)
        self.add("time_to_first_token_seconds", record.ttft_seconds, tenant, model)
        self.add("time_per_output_token_seconds", record.tpot_seconds, tenant, model)
        if record.answered:
            self.answered(record, tenant, model)

    def answered(self, record, tenant, model):
        worker = record.prefill_worker or record.worker
        for each in (record.worker, worker):
            for name, metric in self.metrics.items():
                if name.startswith("worker_"):
                    metric.labels(each)
        self.add("worker_requests", 1, record.worker)
        self.add("worker_prefills", record.prefill_worker is not None, worker)
        self.add("prompt_tokens", record.prompt_tokens, tenant, model)
        self.add("worker_prompt_tokens", record.prompt_tokens, worker)
        cached, predicted = record.cached_tokens, record.predicted_tokens
        measured, expected = record.worker_ttft_seconds, record.predicted_ttft_seconds
        if measured is not None and expected is not None:
            policy = "shadow" if record.by_shadow else "policy"
            self.add("worker_ttft_seconds", measured, worker)
            self.add("worker_predicted_ttft_seconds", expected, worker)
            self.add("worker_ttft_error_seconds", abs(expected - measured), worker)
            self.add("routing_requests", 1, policy)
            self.add("routing_ttft_seconds", measured, policy)
            self.add(
                "routing_uncached_tokens",
                (record.prompt_tokens - (cached or 0)) * (cached is not None),
                policy,
            )
        if cached is not None:
            for prefix, labels in (("", (tenant, model)), ("worker_", (worker,))):
                self.add(f"{prefix}cached_tokens", cached, *labels)
                self.add(f"{prefix}predicted_cached_tokens", predicted, *labels)
                self.add(f"{prefix}cached_tokens_error", abs(predicted - cached), *labels)


def by_family(text):
    """Return the lines of a metrics page by metric family."""
    families, family = {}, None
    for line in text.decode().splitlines():
        if line.startswith("# HELP "):
            family = families.setdefault(line.split()[2], [])
        if line != "# EOF":
            family.append(line)
    return families


TOKENS = some.integers(0, 100_000)
SECONDS = some.floats(0, 500) | some.sampled_from(
    sorted({bound for bounds in BUCKETS.values() for bound in bounds})
)
RECORDS = some.builds(
    RequestRecord,
    id=some.just("req-1"),
    surface=some.just("chat/completions"),
    code=some.sampled_from(("ok", "client_closed", "overloaded", "invalid_api_key")),
    status=some.just(200),
    tenant=some.sampled_from(("", "-", "*", "acme", "globex", 'a "quoted"\\\nname')),
    key_id=some.just("k1"),
    model=some.sampled_from(("", "m", "n")),
    worker=some.sampled_from((None, "w0", "w1")),
    policy_reason=some.just(""),
    by_shadow=some.booleans(),
    attempts=some.just(1),
    stream=some.booleans(),
    prompt_tokens=some.integers(1000, 100_000),
    predicted_tokens=TOKENS,
    cached_tokens=some.none() | some.integers(0, 1000),
    output_tokens=TOKENS,
    spend=some.just(0),
    frames=some.just(0),
    started_at=some.just(0.0),
    seconds=SECONDS,
    answered=some.booleans(),
    dispatch_seconds=some.none() | SECONDS,
    queue_seconds=some.none() | SECONDS,
    ttft_seconds=some.none() | SECONDS,
    worker_ttft_seconds=some.none() | SECONDS,
    predicted_ttft_seconds=some.none() | SECONDS,
    tpot_seconds=some.none() | SECONDS,
    trace=some.none(),
    steps=some.just(()),
    service_class=some.sampled_from(("", "interactive", "batch")),
    ttft_target_seconds=some.none() | SECONDS,
    first_token_seconds=some.none() | SECONDS,
    prefill_worker=some.sampled_from((None, "w1", "w2")),
)


@given(
    records=some.lists(RECORDS, max_size=30),
    pairs_max=some.sampled_from((1, 3, 100)),
    accept=some.sampled_from(("text/plain", "application/openmetrics-text;version=1.0.0")),
)
def test_the_page_is_that_of_the_metric_objects_of_prometheus_client(records, pairs_max, accept):
    disable_created_metrics()  # as the gateway does
    metrics, registry = RequestMetrics(), CollectorRegistry(auto_describe=True)
    registry.register(StateCollector(request_families(metrics)))
    reference = Reference(pairs_max)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry_metrics, "PAIRS_MAX", pairs_max)
        for record in records:
            metrics.observe(record)
            reference.observe(record)
    encode, _ = choose_encoder(accept)
    assert by_family(encode(registry)) == by_family(encode(reference.registry))


def test_names_of_metrics_are_registered_once():
    registry = CollectorRegistry(auto_describe=True)
    registry.register(StateCollector(request_families(RequestMetrics())))
    with pytest.raises(ValueError, match="radixgate_requests"):
        registry.register(StateCollector(request_families(RequestMetrics())))
