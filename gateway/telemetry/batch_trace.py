"""The place of a batch in traces: ids that every gateway derives from the batch's own id.

The rows of a batch are traces of their own, which link to the span of the batch: a batch lasts up to days, and one
trace with all its rows would be larger than what trace viewers show.
"""

from hashlib import sha256

import msgspec
from opentelemetry.trace import Link, SpanContext, TraceFlags


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that has ended. Times are Unix times in seconds."""

    id: str
    tenant: str
    endpoint: str
    status: str
    created: float
    ended: float
    rows: int
    failed_rows: int


def batch_context(batch: str) -> SpanContext:
    """Return the ids of the span of a batch."""
    digest = sha256(batch.encode()).digest()
    trace_id, span_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    return SpanContext(
        trace_id or 1, span_id or 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )


def batch_links(batch: str) -> list[Link]:
    """Return the links of the span of a row; none for a request that is no row of a batch."""
    return [Link(batch_context(batch), {"radixgate.batch.id": batch})] if batch else []


def batch_attributes(batch: BatchReport) -> dict[str, str | int]:
    """Return the attributes of the span of a batch."""
    return {
        "http.route": batch.endpoint,
        "radixgate.tenant": batch.tenant,
        "radixgate.batch.id": batch.id,
        "radixgate.batch.status": batch.status,
        "radixgate.batch.rows": batch.rows,
        "radixgate.batch.failed_rows": batch.failed_rows,
    }
