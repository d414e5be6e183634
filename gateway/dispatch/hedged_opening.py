"""The opening of a hedged request: one attempt, and after a while a second one beside it, up to the first byte."""

from collections.abc import Callable

from gateway.dispatch.acquisition.worker_acquisition import WorkerAcquisition
from gateway.dispatch.attempt_reports import AttemptReports
from gateway.dispatch.hedging import Hedging, OpeningStream, first_of, fits_twice
from gateway.dispatch.pending_request import Attempt, PendingRequest
from gateway.dispatch.worker_calls import WorkerCalls
from gateway.quotas.quota_store import Lease
from policies.admission.retry_budget import RetryBudget
from policies.admission.ttft_chance import SAMPLES_MIN
from policies.latency_model import predicted_ttft_p95_ms
from workers.adapter import WorkerAnswer, WorkerCall, WorkerFailed


class HedgedOpenings:
    """Opens requests on two workers at once, where the rules of hedging allow it.

    `clock`: seconds on the monotonic clock.
    """

    def __init__(
        self,
        *,
        rules: Hedging,
        acquisition: WorkerAcquisition,
        worker_calls: WorkerCalls,
        reports: AttemptReports,
        retry_budget: RetryBudget,
        clock: Callable[[], float],
    ) -> None:
        self.enabled = rules.enabled
        self._rules = rules
        self._acquisition = acquisition
        self._worker_calls = worker_calls
        self._reports = reports
        self._retry_budget = retry_budget
        self._clock = clock

    def after_seconds(self, pending: PendingRequest, call: WorkerCall, lease: Lease) -> float | None:
        """Return after how long without a first byte a second worker gets the request; None: it is not hedged."""
        rules = self._rules
        assert pending.attempt is not None
        placement = pending.attempt.placement
        if (
            not call.stream
            or call.carrier is not None
            or placement.at_provider
            or pending.hedged
            or pending.background
            or pending.prompt.prompt_tokens > rules.prompt_tokens_max
            or len(pending.failed_workers) + 2 > pending.limits.attempts_max
            or not fits_twice(lease)
        ):
            return None
        if rules.after_seconds is not None:
            return rules.after_seconds
        learnt = placement.prefill_worker.learnt
        if learnt.fit.samples < SAMPLES_MIN:
            return None
        return predicted_ttft_p95_ms(learnt.speed, learnt.fit.error_ms, placement.tokens_ahead) / 1000

    async def open(
        self, pending: PendingRequest, attempt: Attempt, call: WorkerCall, after_seconds: float
    ) -> WorkerAnswer:
        """Return the first answer of this attempt and of a second one, begun `after_seconds` later.

        The attempt that answers, or is left alone, leads; the other's placement is freed. Raises WorkerFailed.
        """
        first = OpeningStream.start(attempt.placement.call_target.stream(call))
        race = _Race(self._reports, pending, attempt, first)

        async def open_second() -> OpeningStream | None:
            second = await self._second_attempt(pending, attempt, first)
            if second is None:
                return None
            placement = second.placement
            stream = placement.call_target.stream(self._worker_calls.make(pending, placement))
            return race.add(second, OpeningStream.start(stream))

        try:
            winner = await first_of(first, after_seconds, open_second, race.drop)
            race.win(winner)
        except WorkerFailed:
            race.outcome = "failed"
            raise
        finally:
            await race.end()
            if pending.hedged:
                self._rules.outcomes[race.outcome] += 1
        return winner.task.result()

    async def _second_attempt(
        self, pending: PendingRequest, attempt: Attempt, first: OpeningStream
    ) -> Attempt | None:
        """Return a second attempt for the same request, with its placement reserved; it is not sent yet.

        None without room, if too many requests are retried, or if the first attempt is done by then.
        """
        if not self._retry_budget.remaining(self._clock()):
            return None
        placement = await self._acquisition.second_placement(pending, attempt.placement)
        if placement is None:
            return None
        # The first attempt was just in time, or other requests have spent the budget since.
        if first.task.done() or not self._retry_budget.remaining(self._clock()):
            self._reports.free_unused(placement, 0.0)
            return None
        self._retry_budget.try_spend(self._clock())
        if pending.progress.trace is not None:
            pending.progress.mark("hedge")
        pending.hedged = True
        second = Attempt(placement)
        self._reports.attempt_begins(pending, second)
        second.predicted, second.recorded = True, attempt.recorded
        second.first_byte_seconds_max = attempt.first_byte_seconds_max
        return second


class _Race:
    """The attempts of one hedged request until one of them answers; frees the placements of those that do not."""

    def __init__(
        self, reports: AttemptReports, pending: PendingRequest, attempt: Attempt, opening: OpeningStream
    ) -> None:
        self._reports = reports
        self._pending = pending
        self._first = attempt
        self._running = {opening: attempt}
        self.outcome = "left"
        """One of OUTCOMES."""

    def add(self, attempt: Attempt, opening: OpeningStream) -> OpeningStream:
        """Take the second attempt in, and return its stream."""
        self._running[opening] = attempt
        return opening

    def drop(self, opening: OpeningStream, err: WorkerFailed | None) -> None:
        """Free the placement of an attempt that brought no answer; the other one leads from now on."""
        gone, pending = self._running[opening], self._pending
        if err is not None:
            self._reports.record_failure(pending, gone.placement, err)
        if gone is self._first:
            pending.lead_by(next(other for other in self._running.values() if other is not gone))
        else:
            self.outcome = "failed"
        self._reports.free(pending, gone)

    def win(self, opening: OpeningStream) -> None:
        """Let the attempt lead whose stream has answered."""
        leading = self._running.pop(opening)
        leading.stream = opening.stream
        if leading is not self._pending.attempt:
            self._pending.lead_by(leading)
        if leading is not self._first:
            self.outcome = "won"
        elif self.outcome != "failed":
            self.outcome = "lost"

    async def end(self) -> None:
        """Close the streams that have not won, and before that free the placements of attempts that do not lead.

        The leading attempt is freed by Attempts.end, also where no stream has won.
        """
        for other in self._running.values():
            if other is not self._pending.attempt and not other.ended:
                self._reports.free(self._pending, other)
        for opening in self._running:
            await opening.close()
