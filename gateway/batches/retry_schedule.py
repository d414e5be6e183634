"""What a row is tried again after, and how long until then.

A client would be told to come back; a row comes back by itself, for as long as its batch has time. What will be the
same next time is the row's result.
"""

from gateway.domain import errors

WAIT_SECONDS = (0.2, 30.0)
"""After a refusal: the least, and the most until somebody looks again whether quota has come back meanwhile."""

FAILURES_MAX = 4
"""Failures of workers, of one row, before that is its result."""

_REFUSED = (errors.QuotaExceeded, errors.BudgetExhausted)
_FULL = (
    errors.TenantQueueFull,
    errors.Overloaded,
    errors.AdmissionTimeout,
    errors.TargetMissed,
    errors.NoWorker,
    errors.KeysUnavailable,
    errors.QuotasUnavailable,
    errors.ResponsesUnavailable,
    errors.ShuttingDown,
)
_FAILED = (errors.WorkerError, errors.WorkerTimeout, errors.StreamInterrupted)


def refused_for_all(error: errors.GatewayError) -> bool:
    """Would the batch's other rows be refused as well?"""
    return isinstance(error, (*_REFUSED, *_FULL))


def wait_seconds(error: errors.GatewayError, failures: int) -> float | None:
    """How long until it is tried again; None: this is its result. `failures`: how often that was so, now too."""
    least, most = WAIT_SECONDS
    if isinstance(error, _REFUSED):
        return min(most, max(least, error.retry_after_seconds or 0.0))
    if isinstance(error, _FULL):
        return min(most, max(least * 2.0 ** min(failures, 10), error.retry_after_seconds or 0.0))
    if isinstance(error, _FAILED) and failures < FAILURES_MAX:
        return min(most, least * 4.0**failures)
    return None
