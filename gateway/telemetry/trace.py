"""The ids of one request in its distributed trace."""

import msgspec


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The place of one request in its distributed trace: ids of its spans, and whether it is sampled."""

    trace_id: int
    span_id: int
    parent_id: int  # the caller's span, 0 if the caller sent none
    worker_span_id: int
    sampled: bool

    def to_worker(self) -> str:
        """Return the `traceparent` header for the worker (W3C Trace Context)."""
        return f"00-{self.trace_id:032x}-{self.worker_span_id:016x}-{'01' if self.sampled else '00'}"
