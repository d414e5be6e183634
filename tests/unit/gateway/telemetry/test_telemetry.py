"""Records, spans, metrics and logs: what is told of a request, and what never is."""

import asyncio
import json
import logging
from itertools import pairwise
from random import Random

import msgspec
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.exposition import choose_encoder

from gateway.telemetry import metrics as telemetry_metrics
from gateway.telemetry import overview as telemetry_overview
from gateway.telemetry.exposition import exposition
from gateway.telemetry.logs import Redacting, redacted
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.overview import Overview
from gateway.telemetry.record import CLIENT_CLOSED, Progress, PromptDetails, Usage
from gateway.telemetry.tracing import Tracing
from tests.fakes.clock import FakeClock

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
def clock():
    return FakeClock()


def progress(clock, **state):
    made = Progress("req-1", "chat/completions", clock, lambda: 1_700_000_000.0)
    made.tenant, made.key_id, made.model, made.stream = "acme", "k1", "m", True
    for name, value in state.items():
        setattr(made, name, value)
    return made


def sent(made, reason, predicted_tokens):
    made.sent_to(
        "w0", by_shadow=False, reason=reason, predicted_tokens=predicted_tokens, predicted_ttft_seconds=0.3
    )
    made.goes_out()


def answered(clock):
    """A stream: 0.5 s to its first token, 1.0 s in all, 6 tokens, 40 of 64 prompt tokens cached."""
    made = progress(clock, prompt_tokens=60)
    made.mark("authenticate")
    clock.advance(0.1)
    made.mark("route")
    sent(made, "48 of 60 tokens held", 48)
    clock.advance(0.4)
    made.mark("first_byte")
    made.answered = True
    made.output(1)
    clock.advance(0.5)
    made.output(5)
    made.mark("relay")
    made.usage = Usage(
        prompt_tokens=64, completion_tokens=6, prompt_tokens_details=PromptDetails(cached_tokens=40)
    )
    return made


def test_a_record_has_the_times_and_counts_of_its_request(clock):
    record = answered(clock).record()
    assert (record.ttft_seconds, record.tpot_seconds, record.seconds) == pytest.approx((0.5, 0.1, 1.0))
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (64, 40, 6)
    assert (record.predicted_tokens, record.attempts, record.worker) == (48, 1, "w0")
    assert record.dispatch_seconds == pytest.approx(0.1)


def test_steps_follow_each_other_without_a_gap(clock):
    steps = answered(clock).record().steps
    assert [name for name, _, _ in steps] == ["authenticate", "route", "first_byte", "relay"]
    assert steps[0][1] == 1_700_000_000.0
    assert all(before[2] == after[1] for before, after in pairwise(steps))


def test_time_in_the_queue_is_no_work_of_the_gateway(clock):
    made = progress(clock, queued_at=clock())
    clock.advance(3.0)
    made.queued_until = clock()
    clock.advance(0.2)
    sent(made, "", 0)
    record = made.record()
    assert (record.queue_seconds, record.dispatch_seconds) == pytest.approx((3.0, 0.2))


def test_a_cut_stream_counts_its_frames_and_unknown_is_not_zero(clock):
    made = progress(clock, prompt_tokens=60, answered=True)
    made.output(3)
    made.ended(CLIENT_CLOSED, 499)
    record = made.record()
    assert (record.output_tokens, record.prompt_tokens, record.cached_tokens) == (3, 60, None)
    assert (record.code, record.status) == ("client_closed", 499)


def tracing(exporter, ratio=1.0):
    return Tracing(processor=SimpleSpanProcessor(exporter), sample_ratio=ratio, random=Random(7), version="1")


def spans_of(made, traceparent):
    exporter = InMemorySpanExporter()
    at = tracing(exporter)
    made.trace = at.begin(traceparent)
    at.observe(made.record())
    return made.trace, exporter.get_finished_spans()


def test_a_request_is_one_trace_with_a_span_per_step(clock):
    trace, spans = spans_of(answered(clock), None)
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {"chat m", "authenticate", "route", "worker", "first_byte", "relay"}
    assert {span.context.trace_id for span in spans} == {trace.trace_id}
    root, worker = by_name["chat m"], by_name["worker"]
    assert (root.kind, root.parent, worker.kind) == (SpanKind.SERVER, None, SpanKind.CLIENT)
    assert by_name["route"].parent.span_id == worker.parent.span_id == root.context.span_id
    assert by_name["relay"].parent.span_id == worker.context.span_id
    assert (root.end_time - root.start_time) / 1e9 == pytest.approx(1.0)


def test_a_trace_is_joined_and_handed_on(clock):
    trace, spans = spans_of(answered(clock), PARENT)
    root = next(span for span in spans if span.name == "chat m")
    worker = next(span for span in spans if span.name == "worker")
    assert f"{root.context.trace_id:032x}" == "a" * 32
    assert f"{root.parent.span_id:016x}" == "b" * 16
    assert trace.to_worker() == f"00-{'a' * 32}-{worker.context.span_id:016x}-01"


def test_the_caller_decides_what_is_sampled():
    at = tracing(InMemorySpanExporter(), ratio=0.0)
    assert at.begin(PARENT).sampled
    assert not at.begin(PARENT[:-1] + "0").sampled
    assert at.begin(None) is None
    assert tracing(InMemorySpanExporter(), ratio=1.0).begin(None).sampled


@pytest.mark.parametrize(
    "header", ["", "garbage", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", PARENT.upper(), PARENT + "x"]
)
def test_a_malformed_trace_header_starts_a_new_trace(header):
    trace = tracing(InMemorySpanExporter()).begin(header)
    assert trace.parent_id == 0
    assert trace.trace_id not in (0, int("a" * 32, 16))


def test_without_an_exporter_traces_still_pass_through():
    at = Tracing(processor=None, sample_ratio=1.0, random=Random(1), version="1")
    trace = at.begin(PARENT)
    assert not trace.sampled
    assert trace.to_worker().startswith(f"00-{'a' * 32}-")


def test_a_failed_request_is_an_error_span_with_its_code(clock):
    made = progress(clock)
    made.ended("no_worker", 503)
    _, spans = spans_of(made, None)
    assert (spans[0].status.status_code, spans[0].attributes["error.type"]) == (StatusCode.ERROR, "no_worker")


def test_metrics_count_what_happened(clock):
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    metrics.observe(answered(clock).record())
    refused = progress(clock)
    refused.tenant = ""
    refused.ended("invalid_api_key", 401)
    metrics.observe(refused.record())

    def value(name, **labels):
        return registry.get_sample_value(f"radixgate_{name}", labels)

    assert value("requests_total", tenant="acme", model="m", code="ok") == 1
    assert value("requests_total", tenant="-", model="m", code="invalid_api_key") == 1
    assert value("prompt_tokens_total", tenant="acme", model="m") == 64
    assert value("cached_tokens_total", tenant="acme", model="m") == 40
    assert value("worker_predicted_cached_tokens_total", worker="w0") == 48
    assert value("predicted_cached_tokens_total", tenant="acme", model="m") == 48
    assert value("cached_tokens_error_total", tenant="acme", model="m") == 8
    assert value("worker_cached_tokens_error_total", worker="w0") == 8
    assert value("time_to_first_token_seconds_sum", tenant="acme", model="m") == pytest.approx(0.5)
    assert b"radixgate_time_per_output_token_seconds_bucket" in generate_latest(registry)
    # An answer that does not report them is no answer without any.
    silent = answered(clock)
    silent.usage = Usage(prompt_tokens=64, completion_tokens=1)
    metrics.observe(silent.record())
    assert value("prompt_tokens_total", tenant="acme", model="m") == 128
    assert value("worker_predicted_cached_tokens_total", worker="w0") == 48
    assert value("worker_cached_tokens_error_total", worker="w0") == 8


@pytest.mark.parametrize("accepts", ["text/plain", "application/openmetrics-text;version=1.0.0"])
async def test_a_scrape_of_many_tenants_lets_others_have_their_turns(clock, accepts):
    disable_created_metrics()
    registry, turns = CollectorRegistry(), 0
    metrics, record = RequestMetrics(registry), answered(clock).record()
    for number in range(300):
        metrics.observe(msgspec.structs.replace(record, tenant=f"tenant-{number}"))

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    await asyncio.sleep(0)
    encode, _ = choose_encoder(accepts)
    slices = [text async for text in exposition(registry, encode)]
    text = b"".join(slices)
    waiting.cancel()
    assert text == encode(registry)
    assert text.count(b"\n") > 15_000
    assert turns > 10
    assert max(map(len, slices)) < 100_000


def test_tenants_beyond_a_bound_count_together(clock, monkeypatch):
    monkeypatch.setattr(telemetry_metrics, "PAIRS_MAX", 2)
    monkeypatch.setattr(telemetry_overview, "TENANTS_MAX", 2)
    registry, overview = CollectorRegistry(), Overview(clock)
    metrics, record = RequestMetrics(registry), answered(clock).record()
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


def test_the_overview_forgets_minutes_but_not_totals(clock):
    overview = Overview(clock)
    overview.observe(answered(clock).record())
    clock.advance(61)
    shown = overview.shown(overview.tenants["acme"])
    assert (shown["total"]["requests"], shown["minute"]["requests"]) == (1, 0)
    assert shown["total"]["hit_ratio"] == pytest.approx(40 / 64)
    assert json.dumps(overview.shown(overview.all))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key rg-7Kq3-" + "A" * 49 + " used", "key rg-7Kq3-**** used"),
        ("Authorization: Bearer sk-very-secret", "Authorization: Bearer ****"),
        ("redis://user:pass@host:1/0", "redis://****@host:1/0"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_secrets_are_blotted_out_of_logs(text, expected):
    assert redacted(text) == expected


def test_secrets_in_tracebacks_are_blotted_out_too():
    try:
        raise RuntimeError("rg-7Kq3-" + "A" * 49)
    except RuntimeError as err:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 1, "failed", (), (type(err), err, err.__traceback__)
        )
    assert "A" * 20 not in Redacting("%(message)s").format(record)
