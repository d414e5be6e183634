"""Request metrics: counters by tenant, model and worker, within a bound of label pairs."""

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.domain.token_usage import TokenUsage
from gateway.telemetry import overview as telemetry_overview
from gateway.telemetry.metric_families import StateCollector
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.overview import Overview
from gateway.telemetry.request_families import request_families
from tests.fakes.running_account import answered, progress


def registered(registry, **options):
    metrics = RequestMetrics(**options)
    registry.register(StateCollector(request_families(metrics)))
    return metrics


def test_metrics_count_what_happened(clock):
    registry = CollectorRegistry()
    metrics = registered(registry)
    metrics.observe(answered(clock).record())
    refused = progress(clock)
    refused.tenant = ""
    refused.fail("invalid_api_key", 401)
    metrics.observe(refused.record())

    def value(name, **labels):
        return registry.get_sample_value(f"radixgate_{name}", labels)

    assert value("requests_total", tenant="acme", model="m", code="ok") == 1
    assert value("requests_total", tenant="-", model="m", code="invalid_api_key") == 1
    assert value("prompt_tokens_total", tenant="acme", model="m") == 64
    assert value("cached_tokens_total", tenant="acme", model="m") == 40
    # 48 of the 60 tokens that the gateway estimated are 51 of the 64 tokens that the worker counted.
    assert value("worker_predicted_cached_tokens_total", worker="w0") == 51
    assert value("predicted_cached_tokens_total", tenant="acme", model="m") == 51
    assert value("cached_tokens_error_total", tenant="acme", model="m") == 11
    assert value("worker_cached_tokens_error_total", worker="w0") == 11
    labels = {"class": "-", "model": "m"}
    assert value("time_to_first_token_seconds_sum", **labels) == pytest.approx(0.5)
    assert b"radixgate_time_per_output_token_seconds_bucket" in generate_latest(registry)
    # An answer that does not report them is no answer without any.
    silent = answered(clock)
    silent.usage = TokenUsage(prompt_tokens=64, completion_tokens=1)
    metrics.observe(silent.record())
    assert value("prompt_tokens_total", tenant="acme", model="m") == 128
    assert value("worker_predicted_cached_tokens_total", worker="w0") == 51
    assert value("worker_cached_tokens_error_total", worker="w0") == 11


def test_tenants_beyond_a_bound_count_together(clock, monkeypatch):
    monkeypatch.setattr(telemetry_overview, "TENANTS_MAX", 2)
    registry, overview = CollectorRegistry(), Overview(clock)
    metrics, record = registered(registry, pairs_max=2), answered(clock).record()
    for tenant in ("a", "b", "c", "a", "d"):
        one = msgspec.structs.replace(record, tenant=tenant)
        metrics.observe(one)
        overview.observe(one)

    def requests(tenant):
        labels = {"tenant": tenant, "model": "m", "code": "ok"}
        return registry.get_sample_value("radixgate_requests_total", labels)

    assert [requests(tenant) for tenant in ("a", "b", "c", "d", "*")] == [2, 1, None, None, 2]
    assert {name: tally.total.requests for name, tally in overview.tenants.items()} == {
        "a": 2,
        "b": 1,
        "*": 2,
    }
