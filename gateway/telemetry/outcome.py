"""The outcome of a finished request, and whether it was slow."""

from typing import Literal

from gateway.domain.errors import StreamInterrupted
from gateway.telemetry.request_record import CLIENT_CLOSED, OK, RequestRecord
from policies.service_class import BATCH

Outcome = Literal["ok", "failed", "refused", "left"]
"""`failed` by gateway or workers, `refused` as the client's mistake or by a limit, or `left` by the client."""


def outcome_of(record: RequestRecord) -> Outcome:
    """Return the outcome of a request."""
    if record.code == OK:
        return "ok"
    if record.code == CLIENT_CLOSED:
        return "left"
    return "failed" if record.status >= 500 or record.code == StreamInterrupted.code else "refused"


def is_slow(record: RequestRecord, slow_seconds: float) -> bool:
    """Return whether a request missed its target for the first token, or took longer than this.

    The target of the class `batch` is not a promise, since batch work gets only what other requests leave.
    """
    first, target = record.first_token_seconds, record.ttft_target_seconds
    missed = first is not None and target is not None and first > target
    return (missed and record.service_class != BATCH.name) or record.seconds > slow_seconds
