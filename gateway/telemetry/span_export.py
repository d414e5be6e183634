"""The export of spans, in the background: a thread makes the spans of ended requests, encodes and sends them.

event loop --on_end(EndedRequest)--> queue of the BatchSpanProcessor --its thread--> spans --> the exporter
                                        |
                                        +-- full: the oldest are dropped
"""

from collections.abc import Callable, Iterable, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

REQUESTS_QUEUED_MAX = 2048
REQUESTS_TOGETHER_MAX = 64

_SAMPLED = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
_EMPTY = Resource.get_empty()


class EndedRequest(ReadableSpan):
    """A request or a batch that has ended, in the queue of a span processor; `spans` makes its spans."""

    def __init__(self, spans: Callable[[], Iterable[ReadableSpan]]) -> None:
        super().__init__(name="", context=_SAMPLED, resource=_EMPTY)
        self.spans = spans


class EndedRequestExporter(SpanExporter):
    """Makes the spans of ended requests and hands them to `exporter`."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans of ended requests."""
        return self._exporter.export(
            [span for one in spans if isinstance(one, EndedRequest) for span in one.spans()]
        )

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()


def batch_processor(exporter: SpanExporter) -> BatchSpanProcessor:
    """Return a processor that exports in the background, and drops the oldest requests when its queue is full."""
    return BatchSpanProcessor(
        EndedRequestExporter(exporter),
        max_queue_size=REQUESTS_QUEUED_MAX,
        max_export_batch_size=REQUESTS_TOGETHER_MAX,
    )
