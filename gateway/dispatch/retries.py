"""The retries of a request: whether it is tried again after a worker's failure, and on which worker.

    raise_if_final  an attempt failed: the request ends in an error after a timeout, after attempts_max failures and
                    after SERVER_ERRORS_MAX server errors; else it is tried again
    placement       another worker or a provider, ranked again, without a wait for room

`attempts_max` is requests.attempts_max of the settings. All requests together share a retry budget
(policies/admission/retry_budget.py): once it is spent, the client gets the last failure. The loop that tries again
is `answer` of gateway/pipeline.py; its `Attempts.begin` gets the placement.
"""

from collections.abc import Callable

from gateway.dispatch.acquisition.worker_acquisition import WorkerAcquisition
from gateway.dispatch.attempt_reports import AttemptReports
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement
from gateway.dispatch.refusals import no_worker_left
from gateway.domain.errors import WorkerTimeout
from policies.admission.retry_budget import RetryBudget
from workers.adapter import FailureKind, WorkerFailed

SERVER_ERRORS_MAX = 2
"""Workers that may have a server error with one request: then the request is at fault, and none is blamed."""


class Retries:
    """Decides whether another worker is tried after a failure, and places the request there.

    `clock`: seconds on the monotonic clock.
    """

    def __init__(
        self,
        *,
        acquisition: WorkerAcquisition,
        reports: AttemptReports,
        budget: RetryBudget,
        clock: Callable[[], float],
    ) -> None:
        self._acquisition = acquisition
        self._reports = reports
        self.budget = budget
        self._clock = clock

    def raise_if_final(self, pending: PendingRequest, cause: WorkerFailed) -> None:
        """Record that an attempt brought no answer; raise the client's error unless another worker may be tried.

        Only this request is considered; whether the retry budget of all requests allows it, and whether a worker is
        left, is decided next, in `placement`. Raises WorkerTimeout, WorkerError, ContextExceeded or Overloaded.
        """
        attempt = pending.attempt
        assert attempt is not None
        if pending.progress.trace is not None:
            pending.progress.mark("failed_attempt")
        pending.progress.discard_attempt()
        self._reports.record_failure(pending, attempt.placement, cause)
        if cause.timed_out:
            # A client that has waited that long will not wait that long again.
            raise WorkerTimeout(attempt.first_byte_seconds_max) from cause
        server_errors = sum(
            each.failure is FailureKind.SERVER_ERROR for each in pending.failed_workers.values()
        )
        if server_errors >= SERVER_ERRORS_MAX or len(pending.failed_workers) >= pending.limits.attempts_max:
            raise no_worker_left(
                pending.failed_workers.values(), at_provider=attempt.placement.at_provider
            ) from cause

    def may_spend(self) -> bool:
        """Take a retry from the budget of all requests, and return whether there was one."""
        return self.budget.try_spend(self._clock())

    async def placement(self, pending: PendingRequest) -> Placement | None:
        """Return a placement on another worker; None if none is left, or too many requests are retried."""
        if not self.may_spend():
            return None
        placement = None
        try:
            placement = await self._other_placement(pending)
        finally:
            if placement is None:
                self.budget.give_back(self._clock())
        return placement

    async def _other_placement(self, pending: PendingRequest) -> Placement | None:
        """Return a placement on a worker or at a provider that has not failed at the request; None without one."""
        acquisition, why, placement = self._acquisition, "workers here failed", None
        # The last attempt goes to a provider: workers of the same kind may fail for the same reason.
        if len(pending.failed_workers) + 1 >= pending.limits.attempts_max:
            placement = await acquisition.providers.place_after_failure(pending, why)
        placement = placement or acquisition.own_turns.place_after_failure(pending)
        return placement or await acquisition.providers.place_after_failure(pending, why)
