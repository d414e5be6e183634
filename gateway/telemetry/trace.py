"""Trace: where one request stands in its distributed trace."""

import msgspec


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a request stands in its trace. `parent_id`: the caller's span, 0 if it sent none."""

    trace_id: int
    span_id: int
    parent_id: int
    worker_span_id: int
    sampled: bool

    def to_worker(self) -> str:
        """The `traceparent` header that the worker gets (W3C Trace Context)."""
        return f"00-{self.trace_id:032x}-{self.worker_span_id:016x}-{'01' if self.sampled else '00'}"
