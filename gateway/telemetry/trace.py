"""The ids of one request in its distributed trace."""

import msgspec


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The place of one request in its distributed trace: ids of its spans, and whether it is sampled."""

    trace_id: int
    span_id: int
    parent_id: int  # the caller's span, 0 if the caller sent none
    worker_span_id: int
    sampled: bool
    tracestate: str = ""  # the caller's, for the worker
    batch: str = ""  # id of the batch that the request is a row of

    def attempt_span_id(self, attempt: int) -> int:
        """Return the id of the span of one attempt on a worker; the first attempt is 1."""
        return (self.worker_span_id + attempt - 1) % 2**64 or 1

    def to_worker(self, attempt: int = 1) -> str:
        """Return the `traceparent` header for the worker of this attempt (W3C Trace Context)."""
        flags = "01" if self.sampled else "00"
        return f"00-{self.trace_id:032x}-{self.attempt_span_id(attempt):016x}-{flags}"
