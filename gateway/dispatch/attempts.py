"""The attempts of a request to get its answer from a worker, each on a placement of its own.

    begin       a placement: ranked, in its turn if it must wait
    open        the request is sent; the first bytes of the answer came, or WorkerUnreachable
    ...         the answer is relayed
    close       the worker's stream is ended, or hung up on
    failed      no answer came: the next attempt is another worker's
    end         the placement is freed, on every ending

How many attempts all requests together may make is bounded, see policies/admission/retry_budget: beyond that the
first failure is the answer. Where hedging.py says so, a request has two attempts at a time until the first byte.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from gateway.dispatch.costs import cost_of
from gateway.dispatch.hedging import Hedging, OpeningStream, bears_twice, first_of
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.own_count import own_count, without_impossible_usage
from gateway.dispatch.pending_request import Attempt, PendingRequest
from gateway.dispatch.placement import Placement, Placements
from gateway.dispatch.preemption import PREEMPTIONS_MAX, Preempted, PreemptibleAttempt, Preemption
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.dispatch.refusals import no_worker_left
from gateway.dispatch.worker_acquisition import WorkerAcquisition
from gateway.domain.context import RequestContext
from gateway.domain.errors import NoWorker, WorkerTimeout
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.fleet import Fleet
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.index_quota import IndexQuota
from gateway.models.model_selection import session_key
from gateway.quotas.quota import Lease
from gateway.routing.router import Router
from gateway.telemetry.record import Progress
from policies.admission.retry_budget import RetryBudget
from policies.admission.ttft_target import SAMPLES_MIN
from policies.latency_model import predicted_ttft_ms, predicted_ttft_p95_ms
from radix_cache.index import PrefixIndex
from workers.adapter import FailureKind, WorkerAnswer, WorkerCall, WorkerUnreachable

log = logging.getLogger(__name__)

UNCLEAR_MAX = 2
"""Workers that may fail inside over one request: after these the request is at fault, and no worker is blamed."""

HOLDERS_COMPARED = 8
"""Workers with the longest parts of a prompt that are compared, however large the fleet is."""

KeepAlive = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while a request waits for its placement: the client sees that it was not forgotten."""

MakeCall = Callable[[Placement], WorkerCall]
"""Returns the request as the placement's worker gets it."""


class Attempts:
    """Sends requests to workers, and goes on to another worker when one fails before the first byte.

    `clock`: seconds on the monotonic clock.
    """

    def __init__(
        self,
        *,
        acquisition: WorkerAcquisition,
        placements: Placements,
        fleet: Fleet,
        router: Router,
        index: PrefixIndex,
        index_quota: IndexQuota,
        feedback: Feedback,
        estimates: OutputEstimates,
        provider_quota: ProviderQuota,
        retries: RetryBudget,
        hedging: Hedging,
        preemption: Preemption,
        room_made: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`room_made`: called when a worker may have room again."""
        self._acquisition = acquisition
        self._placements = placements
        self._fleet = fleet
        self._router = router
        self._index = index
        self._index_quota = index_quota
        self._feedback = feedback
        self._estimates = estimates
        self._provider_quota = provider_quota
        self._retries = retries
        self._hedging = hedging
        self._preemption = preemption
        self._room_made = room_made
        self._clock = clock

    def request(self, ctx: RequestContext, prompt: PromptBlocks, progress: Progress) -> PendingRequest:
        """Return the request in the form in which dispatch keeps its notes on it."""
        return PendingRequest(
            ctx,
            prompt,
            progress,
            self._acquisition.limits,
            sequence=self._router.arrival(ctx.model.name),
            output_tokens=self._estimates.expected(ctx),
            session=session_key(ctx.request, ctx.tenant),
            by_shadow=self._router.shadow is not None and self._router.for_shadow(),
        )

    async def begin(self, request: PendingRequest, keep_alive: KeepAlive | None = None) -> None:
        """Begin an attempt on the best worker that was not tried yet, once there is one with room.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, DeadlinePassed; after failures
        Overloaded, WorkerError.
        """
        if request.failed and request.had_its_turn:
            placement = await self._placement_after_failure(request)
        else:
            placement = await self._placement_in_turn(request, keep_alive)
        if placement is None:
            last = request.attempt
            raise no_worker_left(
                request.failed.values(), at_provider=last is not None and last.placement.at_provider
            )
        progress = request.progress
        if progress.trace is not None:
            progress.mark("queue" if progress.queued_at is not None else "route")
        attempt = request.attempt = self._send(request, placement)
        self._lead(request, attempt)
        if placement.worker.provider is None:
            tenant, prompt = request.ctx.tenant, request.prompt
            attempt.recorded = tenant.cache_blocks_max is None or self._index_quota.try_record(
                tenant, _new_blocks(request, placement)
            )
            if attempt.recorded:
                # Not on the decode worker of a pair, where the next request with this prefix must compute it again.
                worker, match = placement.prefill_worker.id, placement.match
                self._index.record(prompt.namespace, prompt.hashes, worker, request.ctx.id, match)

    async def open(self, request: PendingRequest, lease: Lease, make_call: MakeCall) -> WorkerAnswer:
        """Send the request and return the answer, once its first bytes are there.

        Raises WorkerUnreachable, Preempted.
        """
        attempt = request.attempt
        assert attempt is not None
        placement = attempt.placement
        call = make_call(placement)
        attempt.first_byte_seconds_max = call.first_byte_seconds_max
        if self._hedging.enabled and call.stream and call.carrier is None:
            seconds = self._hedge_after_seconds(request, placement, lease)
            if seconds is not None:
                answer = await self._open_hedged(request, attempt, call, seconds, make_call)
                assert request.attempt is not None
                self._answered(request, request.attempt, answer)
                return answer
        stream = placement.upstream.stream(call)
        limits = self._acquisition.limits
        # What a carrier has taken cannot be called back.
        if limits.preempts and request.background and not request.failed and call.carrier is None:
            answer = await self._open_preemptible(request, placement, stream)
        else:
            answer = await stream.__aenter__()
        attempt.stream = stream
        self._answered(request, attempt, answer)
        return answer

    async def close(self, request: PendingRequest) -> None:
        """End the worker's stream; what was not read of it is hung up on."""
        attempt = request.attempt
        if attempt is not None and attempt.stream is not None:
            stream, attempt.stream = attempt.stream, None
            await stream.__aexit__(None, None, None)

    def completed(self, request: PendingRequest) -> None:
        """Note that the answer came to its end."""
        assert request.attempt is not None
        placement = request.attempt.placement
        if request.progress.answered:
            self._fleet.ended(placement.worker)
            if placement.prefill_worker is not placement.worker:
                self._fleet.ended(placement.prefill_worker)

    def broke_off(self, request: PendingRequest) -> None:
        """Note that the answer broke off after its first byte."""
        assert request.attempt is not None
        self._fleet.broke(request.attempt.placement.worker)

    def failed(self, request: PendingRequest, cause: WorkerUnreachable) -> None:
        """Note that no answer came.

        Raises WorkerTimeout, WorkerError or Overloaded if no other worker may be tried.
        """
        attempt = request.attempt
        assert attempt is not None
        if request.progress.trace is not None:
            request.progress.mark("failed_attempt")
        request.progress.discard_attempt()
        self._blame(request, attempt.placement, cause)
        if cause.timed_out:
            # A client that has waited that long will not wait that long again.
            raise WorkerTimeout(attempt.first_byte_seconds_max) from cause
        unclear = sum(each.failure is FailureKind.SERVER_ERROR for each in request.failed.values())
        if unclear >= UNCLEAR_MAX or len(request.failed) >= request.limits.attempts_max:
            raise no_worker_left(
                request.failed.values(), at_provider=attempt.placement.at_provider
            ) from cause

    def end(self, request: PendingRequest) -> None:
        """Free the placement of the attempt that has answered, or of the last one that has not."""
        attempt = request.attempt
        assert attempt is not None
        placement, progress = attempt.placement, request.progress
        without_impossible_usage(request.ctx, request.prompt, progress)
        if progress.usage is None and progress.dispatched and not progress.refused:
            progress.partial = own_count(request.ctx, request.prompt, progress, placement, self._clock())
        if placement.prefill_worker is not placement.worker:
            progress.usage = placement.usage_of_pair(progress.usage)
        usage = progress.usage
        if usage is not None and attempt.expectation is not None and request.prompt.exact:
            self._feedback.cache_reported(attempt.expectation, request.ctx.id, usage.cached_tokens)
        used = None
        if placement.worker.provider is None:
            self._learn(request, placement)
            used = progress.tokens_to_charge()
        elif placement.provider_lease is not None:
            cost = cost_of(progress.tokens_to_charge(), placement.prices(request.ctx.model))
            self._provider_quota.settle(placement.provider_lease, cost)
        # What a provider computed kept no request waiting here: it is no part of a tenant's share in the queue.
        self._acquisition.settle(request, used, partial(self._free, request, attempt))

    async def _placement_in_turn(
        self, request: PendingRequest, keep_alive: KeepAlive | None
    ) -> Placement | None:
        """Return a placement in the request's turn; also again, after providers alone have failed at it."""
        if request.failed and not self._retries.try_spend(self._clock()):
            return None
        placement = None
        try:
            if keep_alive is None:
                placement = await self._acquisition.acquire(request)
            else:
                async with keep_alive():
                    placement = await self._acquisition.acquire(request)
        except NoWorker:
            if not request.failed:
                raise
            return None  # The provider's failure tells the client more.
        except asyncio.CancelledError:
            if placement is not None:  # Ending the keep-alive takes a moment, in which the client may leave.
                self._give_back(request, placement)
            raise
        if not request.progress.attempts:
            self._retries.record_request(self._clock())
        return placement

    async def _placement_after_failure(self, request: PendingRequest) -> Placement | None:
        """Return a placement on another worker; None if none is left, or too many requests are retried."""
        acquisition, why = self._acquisition, "workers here failed"
        if not self._retries.remaining(self._clock()):
            self._retries.record_refusal()
            return None
        placement = None
        # The last attempt is a provider's: another worker like those may fail like those.
        if len(request.failed) + 1 >= request.limits.attempts_max:
            placement = await acquisition.at_provider_after_failure(request, why)
        placement = placement or acquisition.place_now(request)
        placement = placement or await acquisition.at_provider_after_failure(request, why)
        if placement is not None:
            self._retries.try_spend(self._clock())
        return placement

    def _send(self, request: PendingRequest, placement: Placement) -> Attempt:
        """Return an attempt on this placement; call it before the index is told of the request."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "request %s goes to %s: %s", request.ctx.id, placement.worker.id, placement.route.reason
            )
        expectation = None
        if request.prompt.hashes and placement.worker.provider is None:
            expectation = self._feedback.request_sent(
                placement.prefill_worker.id, request.prompt, placement.match
            )
        return Attempt(placement, expectation)

    def _lead(self, request: PendingRequest, attempt: Attempt) -> None:
        """Let this attempt be the one that answers, or is to."""
        placement = attempt.placement
        request.attempt = attempt
        request.progress.assign_worker(
            placement.worker.id,
            dispatched_at=placement.placed_at,
            by_shadow=request.by_shadow and placement.worker.provider is None,
            reason=placement.route.reason,
            predicted_tokens=placement.route.matched_tokens,
            predicted_ttft_seconds=(
                predicted_ttft_ms(placement.prefill_worker.learnt.speed, placement.tokens_ahead) / 1000
            ),
            prefill_worker=(
                placement.prefill_worker.id if placement.prefill_worker is not placement.worker else None
            ),
        )

    async def _open_preemptible(
        self,
        request: PendingRequest,
        placement: Placement,
        stream: AbstractAsyncContextManager[WorkerAnswer],
    ) -> WorkerAnswer:
        """Open the stream of a batch request, which may have to give up its placement until the first byte."""
        if request.preemptions >= PREEMPTIONS_MAX:
            return await stream.__aenter__()
        preemptible = PreemptibleAttempt(placement)
        self._preemption.add(preemptible)
        try:
            return await preemptible.first_byte(stream.__aenter__())
        except Preempted:
            request.preemptions += 1
            self._preemption.count += 1
            request.progress.discard_attempt()
            raise
        finally:
            self._preemption.remove(preemptible)

    def _answered(self, request: PendingRequest, attempt: Attempt, answer: WorkerAnswer) -> None:
        """Note the first bytes of an answer: unless the worker refused, the prompt's blocks are computed."""
        placement, progress, fleet = attempt.placement, request.progress, self._fleet
        if progress.trace is not None:
            progress.mark("first_byte")
        fleet.answered(placement.worker)
        if answer.status >= 400:
            return
        progress.answered = True
        if placement.prefill_worker is not placement.worker:
            fleet.answered(placement.prefill_worker)
        for worker, cause in request.failed.items():
            # A refusal would prove nothing: a request that is refused here may well have failed there.
            if cause.failure is FailureKind.SERVER_ERROR and worker in fleet:
                fleet.at_fault(fleet[worker], cause)
        if attempt.recorded:
            prompt = request.prompt
            for holder in placement.holders:
                self._index.confirm(prompt.namespace, prompt.hashes, holder)
        if answer.content_type == "text/event-stream":
            now = self._clock()
            if not placement.at_provider:  # Nothing was predicted of a provider.
                progress.worker_ttft_seconds = now - placement.placed_at
            progress.first_token_seconds = now - request.ctx.received_at
        self._placements.first_token(placement)
        self._room_made()

    def _free(self, request: PendingRequest, attempt: Attempt, cost_change: float = 0.0) -> bool:
        """Free an attempt's placement; see Placements.end for the result."""
        attempt.ended = True
        if attempt.expectation is not None:
            self._feedback.request_ended(attempt.expectation)
        if attempt.recorded:
            self._index.withdraw(attempt.placement.prefill_worker.id, request.ctx.id)
        known_elsewhere = self._placements.end(attempt.placement, cost_change)
        self._room_made()
        return known_elsewhere

    def _give_back(self, request: PendingRequest, placement: Placement) -> None:
        """Free a placement to which nothing was sent."""
        if placement.provider_lease is not None:
            self._provider_quota.release(placement.provider_lease)
        self._acquisition.settle(request, None, partial(self._end_unused, placement))

    def _end_unused(self, placement: Placement, cost_change: float) -> bool:
        known_elsewhere = self._placements.end(placement, cost_change)
        self._room_made()
        return known_elsewhere

    def _blame(self, request: PendingRequest, placement: Placement, cause: WorkerUnreachable) -> None:
        """Note the worker at fault, which is not tried again."""
        worker = placement.worker
        if cause.worker == placement.prefill_worker.id:
            worker = placement.prefill_worker
        request.failed[worker.id] = cause
        request.progress.attempt_failed(
            worker.id, "timed_out" if cause.timed_out else cause.failure.name.lower()
        )
        self._fleet.failed(worker, cause)

    def _learn(self, request: PendingRequest, placement: Placement) -> None:
        """Learn how long the first token took for so many tokens; what was cached is known best at the end."""
        progress = request.progress
        if progress.stream:
            tpot = progress.tpot_seconds()
            if tpot is not None and progress.worker == placement.worker.id:
                self._fleet.step(placement.worker, tpot * 1000)
        if progress.worker_ttft_seconds is None:
            return
        tokens, usage = placement.tokens_ahead, progress.usage
        if usage is not None and usage.cached_tokens is not None:
            tokens += min(placement.route.matched_tokens, request.prompt.prompt_tokens) - usage.cached_tokens
        self._fleet.first_token(
            placement.prefill_worker, tokens=max(1, tokens), ttft_ms=progress.worker_ttft_seconds * 1000
        )

    # Hedging: two attempts at a time.

    def _hedge_after_seconds(
        self, request: PendingRequest, placement: Placement, lease: Lease
    ) -> float | None:
        """Return after how long without a first byte a second worker gets the request; None: it is not hedged."""
        rules = self._hedging
        if (
            placement.at_provider
            or request.hedged
            or request.background
            or request.prompt.prompt_tokens > rules.prompt_tokens_max
            or len(request.failed) + 2 > request.limits.attempts_max
            or not bears_twice(lease)
        ):
            return None
        if rules.after_seconds is not None:
            return rules.after_seconds
        learnt = placement.prefill_worker.learnt
        if learnt.fit.samples < SAMPLES_MIN:
            return None
        return predicted_ttft_p95_ms(learnt.speed, learnt.fit.error_ms, placement.tokens_ahead) / 1000

    async def _open_hedged(
        self,
        request: PendingRequest,
        attempt: Attempt,
        call: WorkerCall,
        after_seconds: float,
        make_call: MakeCall,
    ) -> WorkerAnswer:
        """Return the first answer of this attempt and of a second one, begun `after_seconds` later.

        The attempt that answers, or is left alone, leads; the other's placement is freed. Raises WorkerUnreachable.
        """
        running = dict[OpeningStream, Attempt]()
        outcome = "left"

        async def open_second() -> OpeningStream | None:
            second = await self._second_attempt(request, attempt, first)
            if second is None:
                return None
            opening = OpeningStream(second.placement.upstream.stream(make_call(second.placement)))
            running[opening] = second
            return opening

        def failed(opening: OpeningStream, err: WorkerUnreachable | None) -> None:
            nonlocal outcome
            gone = running[opening]
            if err is not None:
                self._blame(request, gone.placement, err)
            if gone is attempt:
                self._lead(request, next(other for other in running.values() if other is not attempt))
            else:
                outcome = "failed"
            self._free(request, gone)

        first = OpeningStream(attempt.placement.upstream.stream(call))
        running[first] = attempt
        try:
            winner = await first_of(first, after_seconds, open_second, failed)
            leading = running.pop(winner)
            leading.stream = winner.stream
            if leading is not request.attempt:
                self._lead(request, leading)
            if leading is not attempt:
                outcome = "won"
            elif outcome != "failed":
                outcome = "lost"
        except WorkerUnreachable:
            outcome = "failed"
            raise
        finally:
            # Their placements are free at once, and then they are hung up on.
            for other in running.values():
                if other is not request.attempt and not other.ended:
                    self._free(request, other)
            for opening in running:
                await opening.close()
            if request.hedged:
                self._hedging.outcomes[outcome] += 1
        return winner.task.result()

    async def _second_attempt(
        self, request: PendingRequest, attempt: Attempt, first: OpeningStream
    ) -> Attempt | None:
        """Return a second attempt for the same request; None without room, or if too many requests are retried."""
        if not self._retries.remaining(self._clock()):
            return None
        placement = await self._acquisition.second_placement(request, attempt.placement)
        if placement is None:
            return None
        if first.task.done():
            self._end_unused(placement, 0.0)  # The first attempt was just in time.
            return None
        self._retries.try_spend(self._clock())
        if request.progress.trace is not None:
            request.progress.mark("hedge")
        request.hedged = True
        second = self._send(request, placement)
        second.recorded = attempt.recorded
        second.first_byte_seconds_max = attempt.first_byte_seconds_max
        return second


def _new_blocks(request: PendingRequest, placement: Placement) -> int:
    """Return how many blocks of the prompt no worker is known to hold, of those that hold the longest parts."""
    match, blocks = placement.match, len(request.prompt.hashes)
    longest = match.holders(HOLDERS_COMPARED) if match is not None else ()
    return blocks - match.blocks(longest[0]) if match is not None and longest else blocks
