"""One OpenTelemetry trace per sampled request: a server span, a span per step, and a client span for the worker.

    chat llama-3.1-8b                                    SERVER, child of the caller's span if it sent one
      +- authenticate   +- receive   +- tokenise   +- reserve   +- route | queue
      +- worker                                          CLIENT; its id went out in `traceparent`
           +- first_byte   +- relay

Ids are drawn when the request begins, so that the worker can join the trace; spans are made from the record when
the request has ended. A request without a trace costs nothing. Names follow OpenTelemetry's GenAI conventions
(repository open-telemetry/semantic-conventions-genai, all "Development"); all of them stand in this file.
"""

import re
from collections.abc import Callable, Mapping
from random import Random

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.telemetry.record import RequestRecord
from gateway.telemetry.trace import Trace

OPERATIONS = {
    "chat/completions": "chat",
    "completions": "text_completion",
    "messages": "chat",
    "responses": "chat",
}
WORKER_STEPS = frozenset({"first_byte", "relay", "failed_attempt"})
SPANS_QUEUED_MAX = 8192

_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")


class Tracing:
    """Makes spans of finished requests and hands them to `processor`.

    With None nothing is sampled here, but traces of callers pass through to workers.
    """

    def __init__(
        self, *, processor: SpanProcessor | None, sample_ratio: float, random: Random, version: str
    ) -> None:
        self._processor = processor
        self._sample_ratio = sample_ratio if processor is not None else 0.0
        self._random = random
        self._resource = Resource.create({"service.name": "radixgate", "service.version": version})
        self._scope = InstrumentationScope("radixgate", version)

    @property
    def exports(self) -> bool:
        """Whether finished requests become spans at all."""
        return self._processor is not None

    def begin(self, traceparent: str | None) -> Trace | None:
        """Join the caller's trace and follow its sampling decision, or start a trace; None if there is neither."""
        if traceparent is None and not self._sample_ratio:
            return None
        found = _TRACEPARENT.match(traceparent) if traceparent is not None else None
        trace_id, parent_id, sampled = 0, 0, False
        if found is not None:
            trace_id, parent_id = int(found[1], 16), int(found[2], 16)
            sampled = bool(int(found[3], 16) & 1)
        if not trace_id or not parent_id:
            trace_id, parent_id = self._random.getrandbits(128) or 1, 0
            sampled = self._random.random() < self._sample_ratio
        return Trace(
            trace_id=trace_id,
            span_id=self._random.getrandbits(64) or 1,
            parent_id=parent_id,
            worker_span_id=self._random.getrandbits(64) or 1,
            sampled=sampled and self._processor is not None,
        )

    def observe(self, record: RequestRecord) -> None:
        """Turn a finished request into spans."""
        trace = record.trace
        if trace is None or not trace.sampled or self._processor is None:
            return
        end = record.started_at + record.seconds
        parent = _context(trace, trace.parent_id, remote=True) if trace.parent_id else None
        request = _context(trace, trace.span_id)
        worker = _context(trace, trace.worker_span_id)
        operation = OPERATIONS.get(record.surface, record.surface)
        title = f"{operation} {record.model}".strip()
        spans = [
            self._span(title, SpanKind.SERVER, request, parent, record.started_at, end, record, _attributes)
        ]
        at_worker = [step for step in record.steps if step[0] in WORKER_STEPS]
        if at_worker:
            start = at_worker[0][1]
            spans.append(
                self._span("worker", SpanKind.CLIENT, worker, request, start, end, record, _worker_attributes)
            )
        for name, start, stop in record.steps:
            over = worker if name in WORKER_STEPS else request
            context = _context(trace, self._random.getrandbits(64) or 1)
            spans.append(self._span(name, SpanKind.INTERNAL, context, over, start, stop, record, None))
        for span in spans:
            self._processor.on_end(span)

    def close(self) -> None:
        """Export the remaining spans; block for as long as the exporter takes, at most its own timeout."""
        if self._processor is not None:
            self._processor.shutdown()

    def _span(
        self,
        name: str,
        kind: SpanKind,
        context: SpanContext,
        parent: SpanContext | None,
        start: float,
        end: float,
        record: RequestRecord,
        attributes: Callable[[RequestRecord], Mapping[str, str | int | float]] | None,
    ) -> ReadableSpan:
        failed = attributes is not None and record.code != "ok"
        return ReadableSpan(
            name=name,
            kind=kind,
            context=context,
            parent=parent,
            resource=self._resource,
            instrumentation_scope=self._scope,
            attributes=attributes(record) if attributes is not None else {},
            status=Status(StatusCode.ERROR, record.code) if failed else Status(StatusCode.UNSET),
            start_time=int(start * 1e9),
            end_time=int(end * 1e9),
        )


def batch_processor(exporter: SpanExporter) -> BatchSpanProcessor:
    """Return a processor that exports spans in the background, and drops spans when its queue is full."""
    return BatchSpanProcessor(exporter, max_queue_size=SPANS_QUEUED_MAX)


def _context(trace: Trace, span_id: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace.trace_id, span_id, is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _attributes(record: RequestRecord) -> dict[str, str | int | float]:
    found: dict[str, str | int | float | None] = {
        "gen_ai.operation.name": OPERATIONS.get(record.surface, record.surface),
        "gen_ai.provider.name": "radixgate",
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.time_to_first_chunk": record.ttft_seconds,
        "http.response.status_code": record.status,
        "error.type": record.code if record.code != "ok" else None,
        "radixgate.request.id": record.id,
        "radixgate.tenant": record.tenant,
        "radixgate.key.id": record.key_id,
    }
    return {name: value for name, value in found.items() if value is not None}


def _worker_attributes(record: RequestRecord) -> dict[str, str | int | float]:
    prefill = {"radixgate.prefill_worker": record.prefill_worker} if record.prefill_worker else {}
    return {
        **prefill,
        "radixgate.worker": record.worker or "",
        "radixgate.route.reason": record.policy_reason,
        "radixgate.route.attempts": record.attempts,
        "radixgate.route.predicted_tokens": record.predicted_tokens,
    }
