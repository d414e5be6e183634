"""The traces of requests: which are traced, and their ids; their spans go out in the background.

Requests are traced if the caller's trace is sampled, as a share of the others (head sampling), and if they are slow
or failed (tail rule). Ids are drawn when the request begins, so that the worker can join the trace. Spans are made
from the record after the request has ended, by request_spans.py, in the thread of span_export.py.
"""

import re
from functools import partial
from random import Random

from opentelemetry.sdk.trace import SpanProcessor

from gateway.telemetry.batch_trace import BatchReport
from gateway.telemetry.outcome import is_slow, outcome_of
from gateway.telemetry.request_record import RequestRecord
from gateway.telemetry.request_spans import SpanMaker
from gateway.telemetry.span_attributes import AddressOf
from gateway.telemetry.span_export import EndedRequest
from gateway.telemetry.trace import Trace

_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")
_TRACESTATE = re.compile(r"^[\x20-\x7e]{1,512}\Z")


class Tracing:
    """Traces requests, and hands those that have ended to `processor` as EndedRequest.

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
        self._spans = SpanMaker(random=random, version=version)

    @property
    def exports(self) -> bool:
        """Whether finished requests become spans at all."""
        return self._processor is not None

    def start_trace(
        self, traceparent: str | None, tracestate: str | None = None, batch: str = ""
    ) -> Trace | None:
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
        """Hand a finished request on to be exported, if it is traced."""
        trace = record.trace
        if trace is None or self._processor is None or not (trace.sampled or self._is_kept(record)):
            return
        # Looked up now: a worker may have left the fleet when the spans are made.
        workers = {record.worker, record.prefill_worker, *(attempt.worker for attempt in record.failures)}
        addresses = {worker: self._address_of(worker) for worker in workers if worker}
        self._processor.on_end(EndedRequest(partial(self._spans.of_request, record, trace, addresses.get)))

    def observe_batch(self, batch: BatchReport) -> None:
        """Hand a batch that has ended on to be exported; its rows link to its span."""
        if self._processor is not None:
            self._processor.on_end(EndedRequest(lambda: (self._spans.of_batch(batch),)))

    def close(self) -> None:
        """Export the remaining spans; block for as long as the exporter takes, at most its own timeout."""
        if self._processor is not None:
            self._processor.shutdown()

    def _is_kept(self, record: RequestRecord) -> bool:
        """Return whether the tail rule keeps a request that was not sampled at its beginning."""
        slow = self._slow_seconds
        return slow is not None and (outcome_of(record) == "failed" or is_slow(record, slow))
