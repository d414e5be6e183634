"""Spans of finished requests and batches: a server span, a client span per attempt, a span or event per step.

    chat llama-3.1-8b                                    SERVER, child of the caller's span if it sent one
      +- authenticate   +- receive   +- tokenise   +- reserve   +- route | queue
      +- worker (failed)                                 CLIENT; an attempt without an answer
      +- worker                                          CLIENT; its id went out in `traceparent`
           +- first_byte   +- relay

    batch                                                a batch that has ended; the spans of its rows link to it

A step shorter than STEP_SECONDS_MIN is an event of the span above it, at the moment of its end, and no span: that
is most steps of most requests, and each span costs the gateway and the collector nearly as much as that of the
request. The attributes of spans are in span_attributes.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.telemetry.batch_trace import BatchReport, batch_attributes, batch_context, batch_links
from gateway.telemetry.outcome import outcome_of
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
STEP_SECONDS_MIN = 0.001

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NO_ERROR = Status(StatusCode.UNSET)


class SpanMaker:
    """Makes the spans of finished requests and batches; `random` draws the ids of steps."""

    def __init__(self, *, random: Random, version: str) -> None:
        self._random = random
        self._resource = _HashedResource(
            Resource.create({"service.name": "radixgate", "service.version": version})
        )
        self._scope = InstrumentationScope("radixgate", version)

    def of_request(
        self, record: RequestRecord, trace: Trace, address_of: AddressOf
    ) -> Iterator[ReadableSpan]:
        """Yield the spans of a finished request: its own, one of each attempt, one of each longer step."""
        parent = _context(trace, trace.parent_id, remote=True) if trace.parent_id else None
        request = _context(trace, trace.span_id)
        worker = _context(trace, trace.attempt_span_id(len(record.failures) + 1))
        began, end = record.started_at, record.started_at + record.seconds
        error = record.code if outcome_of(record) == "failed" else None
        title = f"{operation_of(record)} {record.model}".strip()
        attributes, links = request_attributes(record), batch_links(trace.batch)
        events = _short_steps(record, of_worker=False)
        yield self._span(
            title, request, parent, began, end, attributes, SpanKind.SERVER, error, links, events
        )
        yield from self._of_failed_attempts(record, trace, request, address_of)
        starts = [start for name, start, _ in record.steps if name in WORKER_STEPS]
        if starts:
            attributes = attempt_attributes(record, address_of)
            events = _short_steps(record, of_worker=True)
            yield self._span(
                "worker", worker, request, starts[0], end, attributes, SpanKind.CLIENT, error, events=events
            )
        for name, start, stop in record.steps:
            if name != FAILED_STEP and not _is_short(start, stop):
                context = _context(trace, self._random.getrandbits(64) or 1)
                over = worker if name in WORKER_STEPS else request
                attributes = queue_attributes(record) if name == "queue" else {}
                yield self._span(name, context, over, start, stop, attributes)

    def of_batch(self, batch: BatchReport) -> ReadableSpan:
        """Return the span of a batch that has ended."""
        error = batch.status if batch.status == "failed" else None
        attributes, context = batch_attributes(batch), batch_context(batch.id)
        return self._span("batch", context, None, batch.created, batch.ended, attributes, error=error)

    def _of_failed_attempts(
        self, record: RequestRecord, trace: Trace, request: SpanContext, address_of: AddressOf
    ) -> Iterator[ReadableSpan]:
        for number, attempt in enumerate(record.failures, start=1):
            context = _context(trace, trace.attempt_span_id(number))
            start, stop = record.started_at + attempt.began, record.started_at + attempt.at
            attributes = failed_attempt_attributes(record, attempt, address_of)
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
        events: Sequence[Event] = (),
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
            events=events,
            status=Status(StatusCode.ERROR, error) if error is not None else _NO_ERROR,
            start_time=int(start * 1e9),
            end_time=int(end * 1e9),
        )


class _HashedResource(Resource):
    """A resource with a hash that is computed once, since the exporter uses it at every span."""

    def __init__(self, like: Resource) -> None:
        super().__init__(like.attributes, like.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def _short_steps(record: RequestRecord, *, of_worker: bool) -> list[Event]:
    """Return an event for each step that is too short for a span: of the worker's steps, or of the gateway's."""
    return [
        Event(name, timestamp=int(stop * 1e9))
        for name, start, stop in record.steps
        if name != FAILED_STEP and (name in WORKER_STEPS) is of_worker and _is_short(start, stop)
    ]


def _is_short(start: float, stop: float) -> bool:
    return stop - start < STEP_SECONDS_MIN


def _context(trace: Trace, span_id: int, *, remote: bool = False) -> SpanContext:
    state = TraceState.from_header([trace.tracestate]) if trace.tracestate else None
    return SpanContext(trace.trace_id, span_id, is_remote=remote, trace_flags=_SAMPLED, trace_state=state)
