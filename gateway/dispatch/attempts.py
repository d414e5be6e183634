"""One request that has its quota, on its way from place to place.

    async with held.place():                        # ranked; waits for its turn if it must
        async with held.answer(call) as answer:     # its first bytes came
            ...
        held.failed(err)                            # or they did not: the next place is another one

A place is left on every ending. How often all requests together may go on to a next place is bounded, see
policies/admission/retry_budget: beyond it the first failure is the answer. Where second.py says so, a request has a second
place for a while; from the first byte on it has one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from gateway.dispatch.attempt import Leg, Legs
from gateway.dispatch.hedged_request import Second, Seconder
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.placement import Placed
from gateway.dispatch.preemption import TIMES_MAX, Attempt, Preempted, Preemptible
from gateway.dispatch.refusals import nobody_left
from gateway.dispatch.worker_acquisition import Turn
from gateway.domain.context import RequestContext
from gateway.domain.errors import NoWorker, StreamInterrupted, WorkerTimeout
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.worker import Worker
from gateway.kv_index.index_quota import CacheShares
from gateway.quotas.headers import openai_headers
from gateway.quotas.prices import Prices
from gateway.quotas.quota import Lease
from gateway.telemetry.record import Progress
from radix_cache.index import PrefixIndex
from radix_cache.match import WorkerId
from workers.adapter import Failure, WorkerAnswer, WorkerCall, WorkerUnreachable

UNCLEAR_MAX = 2
"""Workers that may fail inside over one request: after these, the request is at fault and nobody is blamed."""


class Desk(Seconder, Protocol):
    """What places are held with; see Reservations."""

    shares: CacheShares
    estimates: OutputEstimates
    preemptible: Preemptible


class Held:
    """One request's quota, and its way from place to place."""

    def __init__(
        self,
        by: Desk,
        ctx: RequestContext,
        prompt: PromptBlocks,
        progress: Progress,
        lease: Lease,
        comments: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self.standings = lease.standings
        self.headers = openai_headers(lease.standings)
        self._by = by
        self._ctx = ctx
        self._prompt = prompt
        self._progress = progress
        by_shadow = by.router.for_shadow()
        self._tried: dict[WorkerId, WorkerUnreachable] = {}
        self._recorded = False
        self._seconds_max = 0.0
        self._leg: Leg | None = None
        self._comments = comments
        self._attempt = Attempt()
        self._turn = Turn(
            by,
            ctx,
            prompt,
            progress,
            output_tokens=by.estimates.expected(ctx),
            by_shadow=by_shadow,
            tried=self._tried,
        )
        self._legs = Legs(by, ctx, prompt, progress, self._turn, by_shadow=by_shadow)
        self._second = Second(by, prompt, progress, lease, self._turn, self._legs, self._tried)

    @property
    def worker(self) -> Worker:
        """Who answers, or is to."""
        assert self._leg is not None
        return self._leg.placed.worker

    @property
    def prices(self) -> Prices | None:
        """Of who answers, or was to."""
        model = self._ctx.model
        return self._leg.placed.prices(model) if self._leg is not None else model.prices

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place on the best worker that was not tried yet, once there is one with room for it.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, DeadlinePassed; after failures
        Overloaded, WorkerError.
        """
        placed = await self._next() if self._turn.over else await self._first()
        if placed is None:
            raise nobody_left(self._tried.values())
        progress = self._progress
        progress.mark("queue" if progress.queued_at is not None else "route")
        self._leg = self._legs.sent(placed)
        self._legs.told(self._leg)
        self._recorded = not placed.outside and self._by.shares.take(
            self._ctx.tenant, self._new_blocks(self._by.index)
        )
        if self._recorded:
            # Not where it is only handed over: whoever comes next would have to compute it there.
            self._by.index.record(
                self._prompt.namespace, self._prompt.hashes, placed.computes.id, self._ctx.id
            )
        try:
            yield
        except StreamInterrupted:
            self._by.fleet.broke(self.worker)
            raise
        else:
            if progress.answered:
                answered = self._leg.placed
                for worker in {each.id: each for each in (answered.worker, answered.computes)}.values():
                    self._by.fleet.ended(worker)
        finally:
            self._legs.leave(self._leg)

    @asynccontextmanager
    async def answer(self, call: Callable[[Placed], WorkerCall]) -> AsyncIterator[WorkerAnswer]:
        """The worker's answer, once its first bytes are there; of two workers, where that takes too long.

        Raises WorkerUnreachable, Preempted.
        """
        assert self._leg is not None
        placed, asked = self._leg.placed, call(self._leg.placed)
        self._seconds_max = asked.first_byte_seconds_max
        seconds = self._second.patience_seconds(placed) if asked.stream else None
        if seconds is not None:
            answering = self._second.answer(
                self._leg, asked, seconds, call, blame=self._blame, leads=self._leads
            )
            async with answering as answer:
                self._answered(self._leg.placed, answer)
                yield answer
            return
        async with self._until_first_byte(placed), placed.through.stream(asked) as answer:
            self._answered(placed, answer)
            yield answer

    def failed(self, cause: WorkerUnreachable) -> None:
        """No answer from there. Raises WorkerTimeout, WorkerError or Overloaded if nobody else is worth asking."""
        assert self._leg is not None
        self._progress.mark("failed_attempt")
        self._progress.take_back()
        self._blame(self._leg.placed, cause)
        if cause.timed_out:
            # Whoever has waited that long will not wait that long again.
            raise WorkerTimeout(self._seconds_max) from cause
        unclear = sum(tried.failure is Failure.UNCLEAR for tried in self._tried.values())
        if unclear >= UNCLEAR_MAX or len(self._tried) >= self._by.bounds.attempts_max:
            raise nobody_left(self._tried.values()) from cause

    def close(self) -> None:
        """Forgets what failed: an error that was raised knows the frames it came through, and they know this."""
        self._tried.clear()

    async def _first(self) -> Placed | None:
        """In its turn; also again, after providers alone have failed at it."""
        if self._tried and not self._by.retries.spend(self._by.clock()):
            return None
        placed = None
        try:
            async with self._comments():
                placed = await self._turn.come()
        except NoWorker:
            if not self._tried:
                raise
            return None  # What a provider made of it says more.
        except asyncio.CancelledError:
            self._legs.unused(placed)  # Ending the comments takes a moment, in which the client may leave.
            raise
        if not self._progress.attempts:
            self._by.retries.request(self._by.clock())
        return placed

    async def _next(self) -> Placed | None:
        """After a failure; None if nobody is left, or too many requests are sent again."""
        turn, why = self._turn, "workers here failed"
        # Of the attempts that it may have, the last is a provider's: another like those may fail alike.
        is_last = len(self._tried) + 1 >= self._by.bounds.attempts_max
        if not self._by.retries.left(self._by.clock()):
            self._by.retries.refuse()
            return None
        placed = (await turn.instead(why) if is_last else None) or turn.seat() or await turn.instead(why)
        if placed is not None:
            self._by.retries.spend(self._by.clock())
        return placed

    @asynccontextmanager
    async def _until_first_byte(self, placed: Placed) -> AsyncIterator[None]:
        """Entered with a worker's stream: until that has begun, a batch request may have to give way.

        Raises Preempted.
        """
        by = self._by
        if (
            not (by.bounds.preempts and self._turn.background)
            or self._tried
            or self._attempt.times >= TIMES_MAX
        ):
            yield
            return
        try:
            async with self._attempt.until_first_byte(placed, by.preemptible):
                yield
        except Preempted:
            self._progress.take_back()
            raise

    def _answered(self, placed: Placed, answer: WorkerAnswer) -> None:
        """Its first bytes came: unless it refused, the prompt is computed and its blocks are there."""
        by, progress = self._by, self._progress
        by.preemptible.drop(self._attempt)
        self._attempt.stay()
        progress.mark("first_byte")
        by.fleet.answered(placed.worker)
        if answer.status >= 400:
            return
        progress.answered = True
        if placed.computes is not placed.worker:
            by.fleet.answered(placed.computes)
        for worker, cause in self._tried.items():
            # A refusal would tell nothing: where a bad request is refused here, it may well have failed there.
            if cause.failure is Failure.UNCLEAR and worker in by.fleet:
                by.fleet.at_fault(by.fleet[worker], cause)
        if self._recorded:
            for holder in placed.holders:
                by.index.confirm(self._prompt.namespace, self._prompt.hashes, holder, self._ctx.id)
        if answer.content_type == "text/event-stream":
            now = by.clock()
            if not placed.outside:  # Nothing was predicted of it.
                progress.worker_ttft_seconds = now - placed.since
            progress.first_token_seconds = now - self._ctx.received_at
        placed.place.first_token()
        if placed.rank is not None:
            placed.rank.first_token()
        by.queue.first_token(placed.shared)
        by.room_made()

    def _leads(self, leg: Leg) -> None:
        """It answers, or is the one that is left to."""
        self._leg = leg

    def _blame(self, placed: Placed, cause: WorkerUnreachable) -> None:
        """Whose failure it is. That one is not asked again."""
        worker = placed.computes if cause.worker == placed.computes.id else placed.worker
        self._tried[worker.id] = cause
        self._by.fleet.failed(worker, cause)

    def _new_blocks(self, index: PrefixIndex) -> int:
        """Of the prompt, those that nobody is known to hold; asked only where it matters."""
        if self._ctx.tenant.cache_blocks_max is None:
            return 0
        match, hashes = index.match(self._prompt.namespace, self._prompt.hashes), self._prompt.hashes
        return len(hashes) - max((match.blocks(worker.id) for worker in self._by.fleet), default=0)
