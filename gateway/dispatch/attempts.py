"""The attempts of a request to get its answer from a worker, each on a placement of its own.

    begin           a placement: ranked, in its turn if it must wait
    open            the request is sent; the first bytes of the answer came, or WorkerFailed
    ...             the answer is relayed; gateway/relay/relay.py decides what happens to one that breaks off
    close           the worker's stream is ended, or its connection closed
    retry_or_raise  no answer came: the next attempt is another worker's, if the request may have one more
    end             the placement is freed, on every ending

A request is given up once `attempts_max` workers (requests.attempts_max of the settings) have failed at it,
SERVER_ERRORS_MAX of them inside, or one has timed out. All requests together share a retry budget
(policies/admission/retry_budget.py): once it is spent, the client gets the last failure. Where hedged_opening.py
says so, two attempts run side by side until the first byte.
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
from gateway.dispatch.preemption import PREEMPTIONS_MAX, Preempted, PreemptibleAttempt, Preemption
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.dispatch.refusals import no_worker_left
from gateway.dispatch.worker_calls import MakeCall
from gateway.domain.errors import NoWorker, WorkerTimeout
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.kv_index.index_quota import IndexQuota
from gateway.models.model_selection import session_key
from gateway.quotas.quota_store import Lease
from gateway.routing.router import Router
from gateway.telemetry.request_record import Progress
from policies.admission.retry_budget import RetryBudget
from radix_cache.index import PrefixIndex
from workers.adapter import FailureKind, WorkerAnswer, WorkerFailed

SERVER_ERRORS_MAX = 2
"""Workers that may fail inside over one request: after these the request is at fault, and no worker is blamed."""

HOLDERS_COMPARED = 8
"""Workers with the longest parts of a prompt that are compared, however large the fleet is."""

KeepAlive = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while a request waits for its placement: the client sees that it was not forgotten."""


class Attempts:
    """Sends requests to workers, and goes on to another worker when one fails before the first byte.

    `clock`: seconds on the monotonic clock.
    """

    def __init__(
        self,
        *,
        acquisition: WorkerAcquisition,
        reports: AttemptReports,
        hedged: HedgedOpenings,
        router: Router,
        index: PrefixIndex,
        index_quota: IndexQuota,
        estimates: OutputEstimates,
        provider_quota: ProviderQuota,
        retries: RetryBudget,
        preemption: Preemption,
        clock: Callable[[], float],
    ) -> None:
        self._acquisition = acquisition
        self.reports = reports
        self._hedged = hedged
        self._router = router
        self._index = index
        self._index_quota = index_quota
        self._estimates = estimates
        self._provider_quota = provider_quota
        self._retries = retries
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
        """Begin an attempt on the best worker that was not tried yet, once there is one with room.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, ClientTimeoutPassed; after
        failures Overloaded, WorkerError.
        """
        # `worker_failed` leaves providers out. Most requests have no failure at all, which is quicker to see.
        if pending.failed_workers and pending.worker_failed:
            placement = await self._placement_after_failure(pending)
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

    async def open(self, pending: PendingRequest, lease: Lease, make_call: MakeCall) -> WorkerAnswer:
        """Send the request and return the answer, once its first bytes are there.

        Raises WorkerFailed, Preempted.
        """
        attempt = pending.attempt
        assert attempt is not None
        placement = attempt.placement
        # This has to be called before anything is waited for, so that the next request is ranked with this prompt's
        # blocks at its worker. The adapter calls it once the request is written, or while a connection opens;
        # where the call runs in a task of its own, that is too late, and it is called here.
        predict = partial(self._predict, pending, attempt)
        call = make_call(placement, predict)
        attempt.first_byte_seconds_max = call.first_byte_seconds_max
        seconds = None
        if self._hedged.enabled and call.stream and call.carrier is None:
            seconds = self._hedged.after_seconds(pending, placement, lease)
        limits = self._acquisition.limits
        if seconds is not None:
            predict()
            answer = await self._hedged.open(pending, attempt, call, seconds, make_call)
            attempt = pending.attempt
            assert attempt is not None
        # What a carrier has taken cannot be called back.
        elif limits.preempts and pending.background and not pending.failed_workers and call.carrier is None:
            predict()
            stream = placement.call_target.stream(call)
            answer = await self._open_preemptible(pending, placement, stream)
            attempt.stream = stream
        else:
            if placement.prefill_worker is not placement.worker:
                predict()  # The calls of a pair may go out in tasks of their own.
            stream = placement.call_target.stream(call)
            answer = await stream.__aenter__()
            attempt.stream = stream
            if not attempt.predicted:
                predict()  # The adapter has not called it.
        attempt.answer, attempt.answered_at = answer, self._clock()
        if pending.progress.trace is not None:
            pending.progress.mark("first_byte")
        if answer.content_type != "text/event-stream" or not pending.ctx.request.stream:
            # A stream is reported by `relay`, once the client has the first bytes.
            self.report_answer(pending)
        return answer

    def _predict(self, pending: PendingRequest, attempt: Attempt) -> None:
        """Note what the index knows of the worker's cache, and let it count on the prompt; once per attempt.

        The worker need not wait for this, but the next request's ranking does: nothing is awaited before it.
        """
        if attempt.predicted:
            return
        attempt.predicted = True
        self.reports.attempt_begins(pending, attempt)
        placement, tenant, prompt = attempt.placement, pending.ctx.tenant, pending.prompt
        if placement.worker.provider is not None or not prompt.hashes:
            return
        attempt.recorded = tenant.cache_blocks_max is None or self._index_quota.try_record(
            tenant, _new_blocks(pending, placement)
        )
        if attempt.recorded:
            # Not on the decode worker of a pair, where the next request with this prefix must compute it again.
            worker, match = placement.prefill_worker.id, placement.match
            self._index.record(prompt.namespace, prompt.hashes, worker, pending.ctx.id, match)

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

    def retry_or_raise(self, pending: PendingRequest, cause: WorkerFailed) -> None:
        """Note that no answer came, and return if another worker may be tried.

        The budget of all retries is asked later, by `begin`.

        Raises WorkerTimeout, WorkerError or Overloaded if not.
        """
        attempt = pending.attempt
        assert attempt is not None
        if pending.progress.trace is not None:
            pending.progress.mark("failed_attempt")
        pending.progress.discard_attempt()
        self.reports.record_failure(pending, attempt.placement, cause)
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
        """Return a placement in the request's turn, for its first attempt.

        Also for a later one if only providers have failed: the request has had no turn at a worker here.
        """
        if pending.failed_workers and not self._retries.try_spend(self._clock()):
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
            return None  # The provider's failure tells the client more.
        except asyncio.CancelledError:
            if placement is not None:  # Ending the keep-alive takes a moment, in which the client may leave.
                self._give_back(pending, placement)
            raise
        if not pending.progress.attempts:
            self._retries.record_request(self._clock())
        return placement

    async def _placement_after_failure(self, pending: PendingRequest) -> Placement | None:
        """Return a placement on another worker; None if none is left, or too many requests are retried."""
        if not self._retries.try_spend(self._clock()):
            return None
        placement = None
        try:
            placement = await self._other_placement(pending)
        finally:
            if placement is None:
                self._retries.give_back(self._clock())
        return placement

    async def _other_placement(self, pending: PendingRequest) -> Placement | None:
        """Return a placement on a worker or at a provider that has not failed at the request; None without one."""
        acquisition, why, placement = self._acquisition, "workers here failed", None
        # The last attempt goes to a provider: workers of the same kind may fail for the same reason.
        if len(pending.failed_workers) + 1 >= pending.limits.attempts_max:
            placement = await acquisition.at_provider_after_failure(pending, why)
        placement = placement or acquisition.own_turns.place_now(pending)
        return placement or await acquisition.at_provider_after_failure(pending, why)

    async def _open_preemptible(
        self,
        pending: PendingRequest,
        placement: Placement,
        stream: AbstractAsyncContextManager[WorkerAnswer],
    ) -> WorkerAnswer:
        """Open the stream of a batch request, which may have to give up its placement until the first byte."""
        if pending.preemptions >= PREEMPTIONS_MAX:
            return await stream.__aenter__()
        preemptible = PreemptibleAttempt(placement)
        self._preemption.add(preemptible)
        try:
            return await preemptible.first_byte(stream.__aenter__())
        except Preempted:
            pending.preemptions += 1
            self._preemption.count += 1
            pending.progress.discard_attempt()
            raise
        finally:
            self._preemption.remove(preemptible)

    def _give_back(self, pending: PendingRequest, placement: Placement) -> None:
        """Free a placement to which nothing was sent."""
        if placement.provider_lease is not None:
            self._provider_quota.release(placement.provider_lease)
        self._acquisition.end_and_correct(pending, None, partial(self.reports.free_unused, placement))


def _new_blocks(pending: PendingRequest, placement: Placement) -> int:
    """Return how many blocks lie beyond the longest part of the prompt that a worker is known to hold."""
    match, blocks = placement.match, len(pending.prompt.hashes)
    longest = match.holders(HOLDERS_COMPARED) if match is not None else ()
    return blocks - match.blocks(longest[0]) if match is not None and longest else blocks
