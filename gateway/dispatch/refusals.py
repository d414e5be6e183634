"""The errors that a client gets where its quota, or every worker, refuses the request.

The Retry-After of a refused limit comes with the Refusal of gateway/quotas, that of workers from their answers.
"""

from collections.abc import Collection

from gateway.domain.errors import (
    BudgetExhausted,
    ContextExceeded,
    GatewayError,
    Overloaded,
    QuotaExceeded,
    RequestExceedsLimit,
    WorkerError,
    WorkerRateLimited,
)
from gateway.quotas.quota_store import Refusal
from gateway.relay.worker_errors import read_error
from workers.adapter import FailureKind, WorkerFailed

BUSY_SECONDS = 1.0
"""The Retry-After in seconds if all workers are busy and none names a time."""


def no_worker_left(
    failures: Collection[WorkerFailed], *, at_provider: bool
) -> WorkerError | ContextExceeded | Overloaded:
    """Return the error for a request after all its workers failed: Overloaded if all of them were busy.

    ContextExceeded if a worker reports that the prompt is too long, though with the status of a failure.

    A 429 of the only worker is a 429 for the client, unless the worker is a provider: then it is about the account
    of the deployment.

    Args:
        failures: The failure of each worker.
        at_provider: Whether the last of the workers is a provider.
    """
    if any(cause.failure is not FailureKind.BUSY for cause in failures):
        bodies = [
            cause.body for cause in failures if cause.failure is FailureKind.SERVER_ERROR and cause.body
        ]
        reported = read_error(bodies[-1] if bodies else b"")
        return reported.context_refusal or WorkerError(reported.message)
    seconds = [s for cause in failures if (s := cause.retry_after_seconds) is not None]
    after_seconds = min(seconds, default=BUSY_SECONDS)
    if len(failures) == 1 and not at_provider and all(cause.rate_limited for cause in failures):
        return WorkerRateLimited(after_seconds)
    return Overloaded(after_seconds, reported_by_workers=True)


def refused(refusal: Refusal) -> GatewayError:
    """Return the error for a request that one of its tenant's limits refuses."""
    if refusal.retry_after_seconds is None:
        return RequestExceedsLimit(refusal)
    return BudgetExhausted(refusal) if refusal.limit.is_budget else QuotaExceeded(refusal)
