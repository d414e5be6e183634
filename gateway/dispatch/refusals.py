"""The errors that a client gets where its quota, or every worker, refuses the request."""

from collections.abc import Collection

from gateway.domain.errors import (
    BudgetExhausted,
    GatewayError,
    Overloaded,
    QuotaExceeded,
    RequestExceedsLimit,
    WorkerError,
)
from gateway.quotas.quota import Refusal
from workers.adapter import FailureKind, WorkerUnreachable

BUSY_SECONDS = 1.0
"""When to come back if all workers are busy and none names a time."""


def no_worker_left(failures: Collection[WorkerUnreachable]) -> WorkerError | Overloaded:
    """Return the error for a request after all its workers failed: Overloaded if all of them were busy."""
    if any(cause.failure is not FailureKind.BUSY for cause in failures):
        return WorkerError()
    seconds = [s for cause in failures if (s := cause.retry_after_seconds) is not None]
    return Overloaded(min(seconds, default=BUSY_SECONDS), reported_by_workers=True)


def refused(refusal: Refusal) -> GatewayError:
    """Return the error for a request that one of its tenant's limits refuses."""
    if refusal.retry_after_seconds is None:
        return RequestExceedsLimit(refusal)
    return BudgetExhausted(refusal) if refusal.limit.is_budget else QuotaExceeded(refusal)
