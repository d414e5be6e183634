"""One OpenTelemetry trace per traced request: a server span, a span per step, a client span per attempt.

    chat llama-3.1-8b                                    SERVER, child of the caller's span if it sent one
      +- authenticate   +- receive   +- tokenise   +- reserve   +- route | queue
      +- worker (failed)                                 CLIENT; an attempt without an answer
      +- worker                                          CLIENT; its id went out in `traceparent`
           +- first_byte   +- relay

    batch                                                a batch that has ended; the spans of its rows link to it

Requests are traced if the caller's trace is sampled, as a share of the others (head sampling), and if they are slow
or failed (tail rule). Ids are drawn when the request begins, so that the worker can join the trace; spans are made
from the record when the request has ended. The attributes of spans are in span_attributes.py.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.telemetry.batch_trace import BatchReport, batch_attributes, batch_context, batch_links
from gateway.telemetry.outcome import is_slow, outcome_of
from gateway.telemetry.request_record import RequestRecord
from gateway.telemetry.span_attributes import (
    AddressOf,
    Attribute,
    attempt_attributes,
    failed_attempt_attributes,
    operation_of,
    queue_attributes,
    request_attributes,
)
from gateway.telemetry.trace import Trace

WORKER_STEPS = frozenset({"first_byte", "relay"})
FAILED_STEP = "failed_attempt"
SPANS_QUEUED_MAX = 8192

_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")
_TRACESTATE = re.compile(r"^[\x20-\x7e]{1,512}\Z")


class Tracing:
    """Makes spans of finished requests and hands them to `processor`.

    Without a processor nothing is sampled here, but callers' traces are passed on to workers.
    """

    def __init__(
        self,
        *,
        processor: SpanProcessor | None,
        sample_ratio: float,
        random: Random,
        version: str,
        slow_seconds: float | None = None,
        address_of: AddressOf = lambda worker: None,
    ) -> None:
        """`slow_seconds` is the duration from which the tail rule keeps a request as slow; None: no tail rule.

        `address_of` returns host and port of a worker.
        """
        self._processor = processor
        self._sample_ratio = sample_ratio if processor is not None else 0.0
        self._random = random
        self._slow_seconds = slow_seconds if processor is not None else None
        self._address_of = address_of
        self._resource = Resource.create({"service.name": "radixgate", "service.version": version})
        self._scope = InstrumentationScope("radixgate", version)

    @property
    def exports(self) -> bool:
        """Whether finished requests become spans at all."""
        return self._processor is not None

    def begin(self, traceparent: str | None, tracestate: str | None = None, batch: str = "") -> Trace | None:
        """Join the caller's trace and follow its sampling decision, or start a trace; None if there is neither.

        `batch`: id of the batch that the request is a row of.
        """
        if traceparent is None and not self._sample_ratio and self._slow_seconds is None:
            return None
        found = _TRACEPARENT.match(traceparent) if traceparent is not None else None
        trace_id, parent_id, sampled = 0, 0, False
        if found is not None:
            trace_id, parent_id = int(found[1], 16), int(found[2], 16)
            sampled = bool(int(found[3], 16) & 1)
        if not trace_id or not parent_id:
            trace_id, parent_id, tracestate = self._random.getrandbits(128) or 1, 0, None
            sampled = self._random.random() < self._sample_ratio
        return Trace(
            trace_id=trace_id,
            span_id=self._random.getrandbits(64) or 1,
            parent_id=parent_id,
            worker_span_id=self._random.getrandbits(64) or 1,
            sampled=sampled and self._processor is not None,
            tracestate=tracestate if tracestate is not None and _TRACESTATE.match(tracestate) else "",
            batch=batch,
        )

    def observe(self, record: RequestRecord) -> None:
        """Turn a finished request into spans, if it is traced."""
        trace = record.trace
        if trace is None or self._processor is None or not (trace.sampled or self._is_kept(record)):
            return
        for span in self._spans(record, trace):
            self._processor.on_end(span)

    def observe_batch(self, batch: BatchReport) -> None:
        """Turn a batch that has ended into a span; its rows link to the span."""
        if self._processor is not None:
            error = batch.status if batch.status == "failed" else None
            attributes = batch_attributes(batch)
            context = batch_context(batch.id)
            span = self._span("batch", context, None, batch.created, batch.ended, attributes, error=error)
            self._processor.on_end(span)

    def close(self) -> None:
        """Export the remaining spans; block for as long as the exporter takes, at most its own timeout."""
        if self._processor is not None:
            self._processor.shutdown()

    def _is_kept(self, record: RequestRecord) -> bool:
        """Return whether the tail rule keeps a request that was not sampled at its beginning."""
        slow = self._slow_seconds
        return slow is not None and (outcome_of(record) == "failed" or is_slow(record, slow))

    def _spans(self, record: RequestRecord, trace: Trace) -> Iterator[ReadableSpan]:
        """Yield the spans of a finished request: its own, one of each attempt, one of each step."""
        parent = _context(trace, trace.parent_id, remote=True) if trace.parent_id else None
        request = _context(trace, trace.span_id)
        worker = _context(trace, trace.attempt_span_id(len(record.failures) + 1))
        began, end = record.started_at, record.started_at + record.seconds
        error = record.code if outcome_of(record) == "failed" else None
        title = f"{operation_of(record)} {record.model}".strip()
        attributes, links = request_attributes(record), batch_links(trace.batch)
        yield self._span(title, request, parent, began, end, attributes, SpanKind.SERVER, error, links)
        yield from self._spans_of_failed_attempts(record, trace, request)
        starts = [start for name, start, _ in record.steps if name in WORKER_STEPS]
        if starts:
            attributes = attempt_attributes(record, self._address_of)
            yield self._span("worker", worker, request, starts[0], end, attributes, SpanKind.CLIENT, error)
        for name, start, stop in record.steps:
            if name != FAILED_STEP:
                context = _context(trace, self._random.getrandbits(64) or 1)
                over = worker if name in WORKER_STEPS else request
                attributes = queue_attributes(record) if name == "queue" else {}
                yield self._span(name, context, over, start, stop, attributes)

    def _spans_of_failed_attempts(
        self, record: RequestRecord, trace: Trace, request: SpanContext
    ) -> Iterator[ReadableSpan]:
        for number, attempt in enumerate(record.failures, start=1):
            context = _context(trace, trace.attempt_span_id(number))
            start, stop = record.started_at + attempt.began, record.started_at + attempt.at
            attributes = failed_attempt_attributes(record, attempt, self._address_of)
            yield self._span(
                "worker", context, request, start, stop, attributes, SpanKind.CLIENT, attempt.why
            )

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start: float,
        end: float,
        attributes: Mapping[str, Attribute],
        kind: SpanKind = SpanKind.INTERNAL,
        error: str | None = None,
        links: Sequence[Link] = (),
    ) -> ReadableSpan:
        return ReadableSpan(
            name=name,
            kind=kind,
            context=context,
            parent=parent,
            resource=self._resource,
            instrumentation_scope=self._scope,
            attributes=attributes,
            links=links,
            status=Status(StatusCode.ERROR, error) if error is not None else Status(StatusCode.UNSET),
            start_time=int(start * 1e9),
            end_time=int(end * 1e9),
        )


def batch_processor(exporter: SpanExporter) -> BatchSpanProcessor:
    """Return a processor that exports spans in the background, and drops spans when its queue is full."""
    return BatchSpanProcessor(exporter, max_queue_size=SPANS_QUEUED_MAX)


def _context(trace: Trace, span_id: int, *, remote: bool = False) -> SpanContext:
    state = TraceState.from_header([trace.tracestate]) if trace.tracestate else None
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace.trace_id, span_id, is_remote=remote, trace_flags=flags, trace_state=state)
