"""The metrics page of finished requests: the text that prometheus_client's own metric objects would give."""

from itertools import compress, product

import hypothesis.strategies as some
import msgspec
import pytest
from hypothesis import given
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import choose_encoder

from gateway.telemetry import metrics as telemetry_metrics
from gateway.telemetry.metric_families import StateCollector, without_labels
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.request_families import request_families
from gateway.telemetry.request_record import RequestRecord
from gateway.telemetry.trace import Trace

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
)
BY_CLASS = (
    "request_duration_seconds",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "queue_duration_seconds",
)


class Reference:
    """Counts requests in prometheus_client's own metric objects."""

    def __init__(self, pairs_max, tenant_histograms):
        self.registry = CollectorRegistry()
        self.metrics = {}
        self.pairs_max = pairs_max
        self.tenant_histograms = tenant_histograms
        self.pairs = set()
        for family in request_families(None, tenant_histograms=tenant_histograms):
            kind, more = (Counter, {}) if family.kind == "counter" else (Histogram, {})
            name = family.name.removeprefix("radixgate_").removesuffix("_total")
            if name in BUCKETS:
                more = {"buckets": BUCKETS[name]}
            self.metrics[name] = kind(
                name, family.text, family.labels, namespace="radixgate", registry=self.registry, **more
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
        self.add("dispatch_duration_seconds", record.dispatch_seconds, model)
        labels = (*((tenant,) if self.tenant_histograms else ()), record.service_class or "-", model)
        for name in BY_CLASS:
            self.metrics[name].labels(*labels)
        self.add("request_duration_seconds", record.seconds, *labels)
        self.add("queue_duration_seconds", record.queue_seconds, *labels)
        self.add("time_to_first_token_seconds", record.ttft_seconds, *labels)
        self.add("time_per_output_token_seconds", record.tpot_seconds, *labels)
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
    by_shadow=some.booleans(),
    attempts=some.just(1),
    stream=some.booleans(),
    prompt_tokens=some.integers(1000, 100_000),
    predicted_tokens=TOKENS,
    cached_tokens=some.none() | some.integers(0, 1000),
    output_tokens=TOKENS,
    spend=some.just(0),
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


ANSWERED = RequestRecord(
    id="req-1",
    surface="chat/completions",
    code="ok",
    status=200,
    tenant="acme",
    key_id="k1",
    model="m",
    worker="w0",
    by_shadow=False,
    attempts=1,
    stream=True,
    prompt_tokens=1000,
    predicted_tokens=10,
    cached_tokens=10,
    output_tokens=10,
    spend=0,
    started_at=1_700_000_000.0,
    seconds=2.0,
    answered=True,
    dispatch_seconds=0.001,
    queue_seconds=0.1,
    ttft_seconds=0.2,
    worker_ttft_seconds=0.2,
    predicted_ttft_seconds=0.1,
    tpot_seconds=0.01,
    trace=None,
    steps=(),
    service_class="chat",
)


@given(
    records=some.lists(RECORDS, max_size=30),
    pairs_max=some.sampled_from((1, 3, 100)),
    tenant_histograms=some.booleans(),
    accept=some.sampled_from(("text/plain", "application/openmetrics-text;version=1.0.0")),
)
def test_the_page_is_that_of_the_metric_objects_of_prometheus_client(
    records, pairs_max, tenant_histograms, accept
):
    disable_created_metrics()  # as the gateway does
    metrics = RequestMetrics(pairs_max=pairs_max, tenant_histograms=tenant_histograms)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(StateCollector(request_families(metrics, tenant_histograms=tenant_histograms)))
    reference = Reference(pairs_max, tenant_histograms)
    for record in records:
        metrics.observe(record)
        reference.observe(record)
    encode, _ = choose_encoder(accept)
    assert by_family(encode(registry)) == by_family(encode(reference.registry))


@given(
    records=some.lists(RECORDS, max_size=30),
    dropped=some.sets(some.sampled_from(("tenant", "model", "class"))),
)
def test_series_that_differ_in_dropped_labels_only_are_added_up(records, dropped):
    disable_created_metrics()
    metrics = RequestMetrics()
    for record in records:
        metrics.observe(record)
    for family in request_families(metrics):
        left = without_labels(family, dropped)
        assert left.labels == tuple(label for label in family.labels if label not in dropped)
        kept = [label not in dropped for label in family.labels]
        read = [(labels, value) for labels, value in left.read()]
        assert len({labels for labels, _ in read}) == len(read)
        assert {labels for labels, _ in read} == {
            tuple(compress(labels, kept)) for labels, _ in family.read()
        }
        assert counted(left) == pytest.approx(counted(family))


def counted(family):
    """Return the sum of a counter's series, or how many values a histogram's series have."""
    values = [value for _, value in family.read()]
    return sum(values) if family.kind == "counter" else sum(sum(value.counts) for value in values)


def test_hundreds_of_tenants_with_several_models_cost_a_scrape_few_lines():
    metrics, registry = RequestMetrics(), CollectorRegistry(auto_describe=True)
    registry.register(StateCollector(request_families(metrics)))
    record = ANSWERED
    for tenant, model, code in product(range(300), range(5), ("ok", "overloaded")):
        metrics.observe(
            msgspec.structs.replace(record, tenant=f"tenant-{tenant}", model=f"model-{model}", code=code)
        )
    assert len(generate_latest(registry).splitlines()) < 12_000


def test_a_sampled_request_is_an_example_of_its_buckets():
    metrics, registry = RequestMetrics(), CollectorRegistry(auto_describe=True)
    registry.register(StateCollector(request_families(metrics)))
    trace = Trace(trace_id=0xABC, span_id=1, parent_id=0, worker_span_id=2, sampled=True)
    metrics.observe(msgspec.structs.replace(ANSWERED, trace=trace))
    metrics.observe(msgspec.structs.replace(ANSWERED, trace=msgspec.structs.replace(trace, sampled=False)))
    encode, _ = choose_encoder("application/openmetrics-text;version=1.0.0")
    lines = [line for line in encode(registry).decode().splitlines() if "trace_id" in line]
    assert {line.partition("{")[0] for line in lines} == {
        "radixgate_request_duration_seconds_bucket",
        "radixgate_time_to_first_token_seconds_bucket",
        "radixgate_queue_duration_seconds_bucket",
    }
    assert all(f'# {{trace_id="{0xABC:032x}"}}' in line for line in lines)


def test_names_of_metrics_are_registered_once():
    registry = CollectorRegistry(auto_describe=True)
    registry.register(StateCollector(request_families(RequestMetrics())))
    with pytest.raises(ValueError, match="radixgate_requests"):
        registry.register(StateCollector(request_families(RequestMetrics())))
