"""Reports the outcome of each attempt to the parts that learn from it: the fleet, the index and the placements.

attempt_begins  the index's feedback notes what is known of the worker's cache
answered        the first bytes came: the worker is up, and the prompt's blocks are computed
completed       the answer came to its end
broke_off       it did not
record_failure  no answer came: the worker is at fault, and is not tried again for this request
learn           how long the first token took for so many tokens, once the worker has reported what it had cached;
                of a worker with few samples this is learnt when it has answered
free            the placement is given back; this follows every other report, on every ending
"""

import logging
from collections.abc import Callable

from gateway.dispatch.pending_request import Attempt, PendingRequest
from gateway.dispatch.placement import Placement, Placements
from gateway.fleet.fleet import Fleet
from gateway.kv_index.feedback import Feedback
from policies.admission.ttft_chance import SAMPLES_MIN
from radix_cache.index import PrefixIndex
from workers.adapter import FailureKind, WorkerAnswer, WorkerFailed

log = logging.getLogger(__name__)


class AttemptReports:
    """Reports the outcomes of attempts to the fleet, the prefix index, its feedback and the placements.

    `clock`: seconds on the monotonic clock.
    """

    def __init__(
        self,
        *,
        placements: Placements,
        fleet: Fleet,
        index: PrefixIndex,
        feedback: Feedback,
        capacity_freed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`capacity_freed`: called when a worker may have room again."""
        self._placements = placements
        self._fleet = fleet
        self._index = index
        self._feedback = feedback
        self._capacity_freed = capacity_freed
        self._clock = clock

    def attempt_begins(self, pending: PendingRequest, attempt: Attempt) -> None:
        """Note what the index has of the worker's cache, before this attempt is recorded in it."""
        placement = attempt.placement
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "request %s goes to %s: %s", pending.ctx.id, placement.worker.id, placement.route.reason
            )
        if pending.prompt.hashes and placement.worker.provider is None:
            attempt.expectation = self._feedback.request_sent(
                placement.prefill_worker.id, pending.prompt, placement.match
            )

    def answered(self, pending: PendingRequest, attempt: Attempt, answer: WorkerAnswer) -> None:
        """Note the first bytes of an answer: unless the worker refused, the prompt's blocks are computed."""
        placement, progress, fleet = attempt.placement, pending.progress, self._fleet
        fleet.answer_began(placement.worker)
        if answer.status >= 400:
            return
        progress.answered = True
        if placement.prefill_worker is not placement.worker:
            fleet.answer_began(placement.prefill_worker)
        for worker, cause in pending.failed_workers.items():
            # Only an answer shows that the other worker is at fault: what is refused here may have failed there for
            # the same reason.
            if cause.failure is FailureKind.SERVER_ERROR and worker in fleet:
                fleet.blame(fleet[worker], cause)
        if attempt.recorded:
            prompt = pending.prompt
            for holder in placement.holders:
                self._index.confirm(prompt.namespace, prompt.hashes, holder)
        if answer.content_type == "text/event-stream":
            now = attempt.answered_at
            if placement.worker.provider is None:  # Nothing was predicted of a provider.
                progress.worker_ttft_seconds = ttft_seconds = now - placement.placed_at
                prefill = placement.prefill_worker
                if prefill.learnt.own.fit.samples < SAMPLES_MIN:
                    # The queue needs the speed of an unknown worker before its first long answers have ended.
                    tokens = max(1, placement.tokens_ahead)
                    fleet.learn_first_token(prefill, tokens=tokens, ttft_ms=ttft_seconds * 1000)
                    attempt.ttft_learnt = True
            progress.first_token_seconds = now - pending.ctx.received_at
        self._placements.note_first_token(placement)
        self._capacity_freed()

    def completed(self, pending: PendingRequest) -> None:
        """Note that the answer came to its end."""
        assert pending.attempt is not None
        placement = pending.attempt.placement
        if pending.progress.answered:
            self._fleet.answer_ended(placement.worker)
            if placement.prefill_worker is not placement.worker:
                self._fleet.answer_ended(placement.prefill_worker)

    def broke_off(self, pending: PendingRequest) -> None:
        """Note that the answer broke off after its first byte."""
        assert pending.attempt is not None
        self._fleet.answer_broke_off(pending.attempt.placement.worker)

    def record_failure(self, pending: PendingRequest, placement: Placement, cause: WorkerFailed) -> None:
        """Note the worker at fault, which is not tried again."""
        worker = placement.worker
        if cause.worker == placement.prefill_worker.id:
            worker = placement.prefill_worker
        pending.failed_workers[worker.id] = cause
        pending.progress.attempt_failed(
            worker.id, "timed_out" if cause.timed_out else cause.failure.name.lower()
        )
        self._fleet.worker_failed(worker, cause)

    def learn(self, pending: PendingRequest, attempt: Attempt) -> None:
        """Learn what was cached, and how long the first token took for so many tokens."""
        placement, progress = attempt.placement, pending.progress
        cached_tokens = progress.usage.cached_tokens if progress.usage is not None else None
        if progress.usage is not None and attempt.expectation is not None and pending.prompt.exact:
            self._feedback.cache_reported(attempt.expectation, pending.ctx.id, cached_tokens)
        if placement.worker.provider is not None:
            return
        if progress.stream:
            tpot = progress.tpot_seconds()
            if tpot is not None and progress.worker == placement.worker.id:
                self._fleet.learn_step(placement.worker, tpot * 1000)
        if progress.worker_ttft_seconds is None or attempt.ttft_learnt:
            return
        tokens = placement.tokens_ahead
        if cached_tokens is not None:
            tokens += min(placement.route.matched_tokens, pending.prompt.prompt_tokens) - cached_tokens
        self._fleet.learn_first_token(
            placement.prefill_worker, tokens=max(1, tokens), ttft_ms=progress.worker_ttft_seconds * 1000
        )

    def free(self, pending: PendingRequest, attempt: Attempt, cost_change: float = 0.0) -> bool:
        """Free an attempt's placement; see Placements.end for the result."""
        attempt.ended = True
        if attempt.expectation is not None:
            self._feedback.request_ended(attempt.expectation)
        if attempt.recorded:
            self._index.withdraw(attempt.placement.prefill_worker.id, pending.ctx.id)
        known_elsewhere = self._placements.end(attempt.placement, cost_change)
        self._capacity_freed()
        return known_elsewhere

    def free_unused(self, placement: Placement, cost_change: float) -> bool:
        """Free a placement to which nothing was sent; see Placements.end for the result."""
        known_elsewhere = self._placements.end(placement, cost_change)
        self._capacity_freed()
        return known_elsewhere
