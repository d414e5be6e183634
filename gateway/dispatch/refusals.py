"""What a client is told where quota, or every worker, says no."""

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
from workers.adapter import Failure, WorkerUnreachable

BUSY_SECONDS = 1.0
"""When to come back if all workers are busy and none says when."""


def nobody_left(tried: Collection[WorkerUnreachable]) -> WorkerError | Overloaded:
    """Nobody is left to be asked: were all of them busy?"""
    if any(cause.failure is not Failure.BUSY for cause in tried):
        return WorkerError()
    seconds = [s for cause in tried if (s := cause.retry_after_seconds) is not None]
    return Overloaded(min(seconds, default=BUSY_SECONDS), by_workers=True)


def refused(refusal: Refusal) -> GatewayError:
    if refusal.retry_after_seconds is None:
        return RequestExceedsLimit(refusal)
    return BudgetExhausted(refusal) if refusal.limit.is_budget else QuotaExceeded(refusal)
