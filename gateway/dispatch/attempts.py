"""The attempts of a request to get its answer from a worker, each on a placement of its own.

    begin           a placement: ranked, in its turn if it must wait; after a failure on another worker, after a
                    preemption in its turn again (`answer` of gateway/pipeline.py calls it)
    open            the request is sent; the first bytes of the answer came, or WorkerFailed, or Preempted
    ...             the answer is relayed; gateway/relay raises WorkerFailed or StreamInterrupted if it breaks off
    close           the worker's stream is ended, or its connection closed
    raise_if_final  no answer came: another attempt, or the error (retries.py)
    end             the placement is freed, on every ending

Where hedged_opening.py opens a second attempt, both run side by side until the first byte.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from gateway.dispatch.acquisition.worker_acquisition import WorkerAcquisition
from gateway.dispatch.attempt_reports import AttemptReports
from gateway.dispatch.charged_tokens import ImpossibleUsage, own_count, tokens_to_charge
from gateway.dispatch.costs import cost_of
from gateway.dispatch.hedged_opening import HedgedOpenings
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.pending_request import Attempt, PendingRequest
from gateway.dispatch.placement import Placement
from gateway.dispatch.preemption import Preemption, may_be_preempted
from gateway.dispatch.prefix_prediction import PrefixPrediction
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.dispatch.refusals import no_worker_left
from gateway.dispatch.retries import Retries
from gateway.dispatch.worker_calls import WorkerCalls
from gateway.domain.errors import NoWorker
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.models.model_selection import session_key
from gateway.quotas.quota_store import Lease
from gateway.routing.router import Router
from gateway.telemetry.progress import Progress
from workers.adapter import WorkerAnswer, WorkerCall

KeepAlive = Callable[[], AbstractAsyncContextManager[None]]
"""A context that is open while a request waits for its placement: it sends the client comments meanwhile."""


class Attempts:
    """Sends requests to workers, and tries another worker when one fails before the first byte.

    `clock`: seconds on the monotonic clock.
    """

    def __init__(
        self,
        *,
        acquisition: WorkerAcquisition,
        worker_calls: WorkerCalls,
        reports: AttemptReports,
        hedged: HedgedOpenings,
        retries: Retries,
        prediction: PrefixPrediction,
        router: Router,
        estimates: OutputEstimates,
        provider_quota: ProviderQuota,
        preemption: Preemption,
        clock: Callable[[], float],
    ) -> None:
        self._acquisition = acquisition
        self._worker_calls = worker_calls
        self.reports = reports
        self._hedged = hedged
        self.retries = retries
        self._prediction = prediction
        self._router = router
        self._estimates = estimates
        self._provider_quota = provider_quota
        self._preemption = preemption
        self._clock = clock
        self._impossible_usage = ImpossibleUsage(clock)

    def pending_request(
        self, ctx: RequestContext, prompt: PromptBlocks, progress: Progress
    ) -> PendingRequest:
        """Return the request with the notes that dispatch keeps on it; nothing is reserved yet."""
        return PendingRequest(
            ctx,
            prompt,
            progress,
            self._acquisition.limits,
            sequence=self._router.arrival(ctx.model.name),
            output_tokens=self._estimates.expected(ctx),
            session=session_key(ctx.request, ctx.tenant),
            by_shadow=self._router.shadow is not None and self._router.shadow_decides(),
        )

    async def begin(self, pending: PendingRequest, keep_alive: KeepAlive | None = None) -> None:
        """Begin an attempt on the best worker that has not failed, once there is one with room.

        A request that was preempted begins again here as one that was never sent.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, ClientTimeoutPassed; after
        failures Overloaded, WorkerError.
        """
        # `worker_failed` does not count providers. `failed_workers` is looked at first, since it is mostly empty.
        if pending.failed_workers and pending.worker_failed:
            placement = await self.retries.placement(pending)
        else:
            placement = await self._placement_in_turn(pending, keep_alive)
        if placement is None:
            last = pending.attempt
            raise no_worker_left(
                pending.failed_workers.values(), at_provider=last is not None and last.placement.at_provider
            )
        progress = pending.progress
        if progress.trace is not None:
            progress.mark("queue" if progress.queued_at is not None else "route")
        attempt = pending.attempt = Attempt(placement)
        pending.lead_by(attempt)

    async def open(
        self, pending: PendingRequest, lease: Lease, prepare: Callable[[], None] = lambda: None
    ) -> WorkerAnswer:
        """Send the request and return the answer, once its first bytes are there.

        `prepare` is called before that, while the worker computes where that is possible. Raises WorkerFailed,
        Preempted.
        """
        attempt = pending.attempt
        assert attempt is not None
        # The adapter calls `on_wait` once the request is written, or while a connection opens.
        on_wait = partial(self._predict_and_prepare, pending, attempt, prepare)
        call = self._worker_calls.make(pending, attempt.placement, on_wait)
        attempt.first_byte_seconds_max = call.first_byte_seconds_max
        hedged_after = self._hedged.after_seconds(pending, call, lease) if self._hedged.enabled else None
        if hedged_after is not None:
            on_wait()  # Called in a task of its own, it would be too late for the next request's ranking.
            answer = await self._hedged.open(pending, attempt, call, hedged_after)
        elif self._acquisition.limits.preempts and may_be_preempted(pending, call):
            on_wait()
            answer = await self._preemption.open(pending, attempt, call)
        else:
            answer = await _open(attempt, call, on_wait)
        self._answer_begins(pending, answer)
        return answer

    def _predict_and_prepare(
        self, pending: PendingRequest, attempt: Attempt, prepare: Callable[[], None]
    ) -> None:
        """Do once per attempt what need not be done before the request is sent."""
        if not attempt.predicted:
            self._prediction.predict(pending, attempt)
            prepare()

    def _answer_begins(self, pending: PendingRequest, answer: WorkerAnswer) -> None:
        """Note the answer on the attempt that leads, and report it, unless `relay` reports its stream."""
        attempt = pending.attempt
        assert attempt is not None
        attempt.answer, attempt.answered_at = answer, self._clock()
        if pending.progress.trace is not None:
            pending.progress.mark("first_byte")
        if answer.content_type != "text/event-stream" or not pending.ctx.request.stream:
            self.report_answer(pending)

    def report_answer(self, pending: PendingRequest) -> None:
        """Report that an answer has begun, unless that was done already."""
        attempt = pending.attempt
        if attempt is not None and attempt.answer is not None:
            answer, attempt.answer = attempt.answer, None
            self.reports.answered(pending, attempt, answer)

    async def close(self, pending: PendingRequest) -> None:
        """End the worker's stream; if it was not read to its end, close the connection."""
        attempt = pending.attempt
        if attempt is not None and attempt.answer is not None:
            self.report_answer(pending)
        if attempt is not None and attempt.stream is not None:
            stream, attempt.stream = attempt.stream, None
            await stream.__aexit__(None, None, None)

    def end(self, pending: PendingRequest) -> None:
        """End the request's work at a worker: count what was used, settle a provider's quota, free the placement.

        The attempt is the one that has answered, or else the last one.
        """
        attempt = pending.attempt
        assert attempt is not None
        placement, progress = attempt.placement, pending.progress
        self._impossible_usage.forget(pending.ctx, pending.prompt, progress)
        if progress.usage is None and progress.dispatched and not progress.worker_refused:
            progress.own_count = own_count(pending.ctx, pending.prompt, progress, placement, self._clock())
        if placement.prefill_worker is not placement.worker:
            progress.usage = placement.usage_of_pair(progress.usage)
        self.reports.learn(pending, attempt)
        used = None
        if placement.worker.provider is None:
            used = tokens_to_charge(progress)
        elif placement.provider_lease is not None:
            cost = cost_of(tokens_to_charge(progress), placement.prices(pending.ctx.model))
            self._provider_quota.settle(placement.provider_lease, cost)
        # What a provider computed kept no request waiting here: it is no part of a tenant's share in the queue.
        self._acquisition.end_and_correct(pending, used, partial(self.reports.free, pending, attempt))

    async def _placement_in_turn(
        self, pending: PendingRequest, keep_alive: KeepAlive | None
    ) -> Placement | None:
        """Return a placement in the request's turn; None if providers failed and no worker here takes it.

        It is for the first attempt, for one after a preemption, and for one after only providers have failed, since
        the request then has had no turn at a worker here.
        """
        if pending.failed_workers and not self.retries.may_spend():
            return None
        placement = None
        try:
            if keep_alive is None:
                placement = await self._acquisition.acquire(pending)
            else:
                async with keep_alive():
                    placement = await self._acquisition.acquire(pending)
        except NoWorker:
            if not pending.failed_workers:
                raise
            return None  # The provider's failure explains more to the client.
        except asyncio.CancelledError:
            if placement is not None:  # Ending the keep-alive takes a moment, in which the client may leave.
                self._give_back(pending, placement)
            raise
        if not pending.progress.attempts:
            self.retries.budget.record_request(self._clock())
        return placement

    def _give_back(self, pending: PendingRequest, placement: Placement) -> None:
        """Free a placement to which nothing was sent."""
        if placement.provider_lease is not None:
            self._provider_quota.release(placement.provider_lease)
        self._acquisition.end_and_correct(pending, None, partial(self.reports.free_unused, placement))


async def _open(attempt: Attempt, call: WorkerCall, on_wait: Callable[[], None]) -> WorkerAnswer:
    """Send the request to the attempt's worker alone, and wait for the first bytes of its answer."""
    placement = attempt.placement
    if placement.prefill_worker is not placement.worker:
        on_wait()  # The calls of a pair may go out in tasks of their own.
    stream = placement.call_target.stream(call)
    answer = await stream.__aenter__()
    attempt.stream = stream
    if not attempt.predicted:
        on_wait()  # The adapter has not called it.
    return answer
