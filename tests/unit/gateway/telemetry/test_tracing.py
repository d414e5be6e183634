"""Traces: spans of one request, sampling, and trace headers of callers."""

import sys
import threading
from random import Random

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.telemetry.batch_trace import BatchReport
from gateway.telemetry.request_events import QueueWait
from gateway.telemetry.span_export import EndedRequestExporter, batch_processor
from gateway.telemetry.tracing import Tracing
from tests.fakes.running_account import answered, progress

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def tracing(exporter, ratio=1.0, **options):
    processor = SimpleSpanProcessor(EndedRequestExporter(exporter))
    return Tracing(processor=processor, sample_ratio=ratio, random=Random(7), version="1", **options)


def spans_of(made, traceparent):
    exporter = InMemorySpanExporter()
    at = tracing(exporter)
    made.trace = at.start_trace(traceparent)
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


def test_a_step_below_a_millisecond_is_an_event_of_the_requests_span(clock):
    made = progress(clock)
    for step, seconds in [("authenticate", 0.0005), ("receive", 0.002), ("tokenise", 0.0)]:
        clock.advance(seconds)
        made.mark(step)
    _, spans = spans_of(made, None)
    assert [span.name for span in spans] == ["chat m", "receive"]
    root = spans[0]
    assert [event.name for event in root.events] == ["authenticate", "tokenise"]
    assert (root.events[0].timestamp - root.start_time) / 1e9 == pytest.approx(0.0005, rel=1e-3)
    assert (spans[1].end_time - spans[1].start_time) / 1e9 == pytest.approx(0.002, rel=1e-3)


def test_the_event_loop_makes_no_spans(clock):
    threads = set()

    class Exporter(InMemorySpanExporter):
        def export(self, spans):
            threads.add(threading.current_thread())
            return super().export(spans)

    exporter, made = Exporter(), answered(clock)
    at = Tracing(processor=batch_processor(exporter), sample_ratio=1.0, random=Random(7), version="1")
    made.trace = at.start_trace(None)
    record, calls = made.record(), []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    at.observe(record)
    sys.setprofile(None)
    at.close()
    assert len(exporter.get_finished_spans()) == 6
    assert threading.current_thread() not in threads
    assert len(calls) < 15, calls


def test_a_worker_that_leaves_before_the_export_keeps_its_address(clock):
    exporter, made, known = InMemorySpanExporter(), answered(clock), {"w0": ("w0.example", 8000)}
    at = Tracing(
        processor=batch_processor(exporter),
        sample_ratio=1.0,
        random=Random(7),
        version="1",
        address_of=known.get,
    )
    made.trace = at.start_trace(None)
    at.observe(made.record())
    known.clear()
    at.close()
    worker = next(span for span in exporter.get_finished_spans() if span.name == "worker")
    assert worker.attributes["server.address"] == "w0.example"


def test_a_trace_is_joined_and_handed_on(clock):
    trace, spans = spans_of(answered(clock), PARENT)
    root = next(span for span in spans if span.name == "chat m")
    worker = next(span for span in spans if span.name == "worker")
    assert f"{root.context.trace_id:032x}" == "a" * 32
    assert f"{root.parent.span_id:016x}" == "b" * 16
    assert trace.to_worker() == f"00-{'a' * 32}-{worker.context.span_id:016x}-01"


def test_the_caller_decides_what_is_sampled():
    at = tracing(InMemorySpanExporter(), ratio=0.0)
    assert at.start_trace(PARENT).sampled
    assert not at.start_trace(PARENT[:-1] + "0").sampled
    assert at.start_trace(None) is None
    assert tracing(InMemorySpanExporter(), ratio=1.0).start_trace(None).sampled


@pytest.mark.parametrize(
    "header", ["", "garbage", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", PARENT.upper(), PARENT + "x"]
)
def test_a_malformed_trace_header_starts_a_new_trace(header):
    trace = tracing(InMemorySpanExporter()).start_trace(header)
    assert trace.parent_id == 0
    assert trace.trace_id not in (0, int("a" * 32, 16))


def test_without_an_exporter_traces_still_pass_through():
    at = Tracing(processor=None, sample_ratio=1.0, random=Random(1), version="1")
    trace = at.start_trace(PARENT)
    assert not trace.sampled
    assert trace.to_worker().startswith(f"00-{'a' * 32}-")


def test_a_failed_request_is_an_error_span_with_its_code(clock):
    made = progress(clock)
    made.fail("no_worker", 503)
    _, spans = spans_of(made, None)
    assert (spans[0].status.status_code, spans[0].attributes["error.type"]) == (StatusCode.ERROR, "no_worker")


def test_a_request_refused_as_the_clients_mistake_is_no_error_of_the_server(clock):
    made = progress(clock)
    made.fail("rate_limit_exceeded", 429)
    _, (root, *_) = spans_of(made, None)
    assert root.status.status_code is StatusCode.UNSET
    assert "error.type" not in root.attributes
    assert root.attributes["http.response.status_code"] == 429
    assert root.attributes["radixgate.code"] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda made: None, False),
        (lambda made: made.fail("worker_error", 502), True),
        (lambda made: made.fail("rate_limit_exceeded", 429), False),
        (lambda made: made.clock.advance(60.0), True),
    ],
    ids=["fast", "failed", "refused", "slow"],
)
def test_the_tail_rule_keeps_slow_and_failed_requests(clock, change, kept):
    exporter = InMemorySpanExporter()
    at = tracing(exporter, ratio=0.0, slow_seconds=30.0)
    made = answered(clock)
    made.trace = at.start_trace(None)
    assert not made.trace.sampled
    assert made.trace.to_worker().endswith("-00")
    change(made)
    at.observe(made.record())
    assert bool(exporter.get_finished_spans()) == kept


def test_each_attempt_is_a_span_of_its_own_with_its_worker(clock):
    exporter = InMemorySpanExporter()
    at = tracing(exporter, address_of=lambda worker: (f"{worker}.example", 8000))
    made = progress(clock)
    made.trace = at.start_trace(None)
    made.assign_worker("w0", by_shadow=False, predicted_tokens=0, predicted_ttft_seconds=0.1)
    first = made.trace.to_worker(made.attempts)
    clock.advance(0.5)
    made.attempt_failed("w0", "timed_out")
    made.mark("failed_attempt")
    made.assign_worker("w1", by_shadow=False, predicted_tokens=0, predicted_ttft_seconds=0.1)
    second = made.trace.to_worker(made.attempts)
    clock.advance(0.5)
    made.mark("first_byte")
    at.observe(made.record())
    failed, ok = [span for span in exporter.get_finished_spans() if span.name == "worker"]
    assert f"{failed.context.span_id:016x}" in first
    assert f"{ok.context.span_id:016x}" in second
    assert (failed.attributes["server.address"], failed.attributes["error.type"]) == (
        "w0.example",
        "timed_out",
    )
    assert failed.status.status_code is StatusCode.ERROR
    assert (ok.attributes["radixgate.worker"], ok.attributes["server.port"]) == ("w1", 8000)
    assert ok.status.status_code is StatusCode.UNSET
    assert (failed.end_time - failed.start_time) / 1e9 == pytest.approx(0.5)


def test_finish_reasons_are_read_from_frames_and_not_from_text(clock):
    made = answered(clock)
    made.note_finish_reasons(b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\"no\\""}}]}')
    made.note_finish_reasons(b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}')
    _, (root, *_) = spans_of(made, None)
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert root.attributes["http.route"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("traceparent", "tracestate", "passed"),
    [
        (PARENT, "vendor=1,other=2", "vendor=1,other=2"),
        (PARENT, None, ""),
        (PARENT, "a" * 513, ""),
        (PARENT, "with\r\nx-evil: 1", ""),
        ("garbage", "vendor=1", ""),
    ],
)
def test_the_callers_tracestate_goes_on_with_its_trace(traceparent, tracestate, passed):
    assert tracing(InMemorySpanExporter()).start_trace(traceparent, tracestate).tracestate == passed


def test_the_callers_tracestate_is_exported_with_every_span(clock):
    exporter = InMemorySpanExporter()
    at, made = tracing(exporter), answered(clock)
    made.trace = at.start_trace(PARENT, "vendor=1,other=2")
    at.observe(made.record())
    spans = exporter.get_finished_spans()
    assert {span.context.trace_state.to_header() for span in spans} == {"vendor=1,other=2"}


def test_the_attempt_that_was_answered_names_what_the_request_waited_for(clock):
    made = answered(clock)
    made.wait = QueueWait(reason="no worker has room", requests_ahead=3, tokens_ahead=900, tenants_ahead=())
    _, spans = spans_of(made, None)
    worker = next(span for span in spans if span.name == "worker")
    assert worker.attributes["radixgate.queue.reason"] == "no worker has room"
    assert worker.attributes["radixgate.queue.requests_ahead"] == 3


def test_a_row_of_a_batch_links_to_the_span_of_the_batch(clock):
    exporter = InMemorySpanExporter()
    at, made = tracing(exporter), answered(clock)
    made.trace = at.start_trace(None, None, "batch_1")
    at.observe(made.record())
    root, *others = exporter.get_finished_spans()
    exporter.clear()
    at.observe_batch(
        BatchReport(
            id="batch_1",
            tenant="acme",
            endpoint="/v1/chat/completions",
            status="completed",
            created=1.0,
            ended=61.0,
            rows=5,
            failed_rows=2,
        )
    )
    (batch,) = exporter.get_finished_spans()
    (link,) = root.links
    assert (link.context.trace_id, link.context.span_id) == (batch.context.trace_id, batch.context.span_id)
    assert link.attributes["radixgate.batch.id"] == "batch_1"
    assert root.context.trace_id != batch.context.trace_id
    assert all(not span.links for span in others)
    assert (batch.name, batch.end_time - batch.start_time) == ("batch", 60_000_000_000)
    assert (batch.attributes["radixgate.batch.rows"], batch.attributes["radixgate.batch.failed_rows"]) == (
        5,
        2,
    )


def test_a_request_of_a_client_links_to_no_batch(clock):
    _, (root, *_) = spans_of(answered(clock), None)
    assert not root.links
