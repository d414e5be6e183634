"""Decides whether and when a refused or failed row of a batch is tried again.

Where a client would be asked to try again later, a row is retried for as long as its batch has time. An error that
a retry would repeat becomes the row's result.
"""

from gateway.domain import errors

WAIT_SECONDS = (0.2, 30.0)
"""The shortest and the longest wait before a row is tried again."""

FAILURES_MAX = 4
"""After this many worker failures the last one becomes the row's result."""

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


def affects_whole_batch(error: errors.GatewayError) -> bool:
    """Return whether the batch's other rows would be refused as well."""
    return isinstance(error, (*_REFUSED, *_FULL))


def wait_seconds(error: errors.GatewayError, failures: int) -> float | None:
    """Return the seconds until the row is tried again; None if the error is its result.

    `failures` counts the row's refusals so far, where this is one, and else its failures; this one is included.
    """
    least, most = WAIT_SECONDS
    if isinstance(error, _REFUSED):
        return min(most, max(least, error.retry_after_seconds or 0.0))
    if isinstance(error, _FULL):
        return min(most, max(least * 2.0 ** min(failures, 10), error.retry_after_seconds or 0.0))
    if isinstance(error, _FAILED) and failures < FAILURES_MAX:
        return min(most, least * 4.0**failures)
    return None
