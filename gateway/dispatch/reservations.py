"""What is held for a request: quota from before it is dispatched until it is settled, and a place on a worker.

    async with reservations.hold(ctx, prompt, progress) as held:    # quota, all or nothing
        async with held.place() as placed:                          # ranked; waits for its turn if it must
            ...
            held.answered(placed)                                   # the first bytes came
            held.failed(placed, err)                                # or they did not: the next place is another one

Both are left on every ending. Quota is settled to what was used: nothing for what no worker took, the prompt and
the tokens that came for a stream that was cut, the worker's own count for what was completed. Nobody waits for it.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from gateway.context import RequestContext
from gateway.dispatch import costs
from gateway.dispatch.cache_shares import CacheShares
from gateway.dispatch.estimates import OutputEstimates
from gateway.dispatch.feedback import Feedback
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.placed import Bounds, Placed
from gateway.dispatch.preemption import TIMES_MAX, Attempt, Preempted, Preemptible
from gateway.dispatch.prefixes import PromptBlocks
from gateway.dispatch.ranks import Ranks
from gateway.dispatch.refusals import nobody_left, refused
from gateway.dispatch.rooms import NewRoom, Rooms
from gateway.dispatch.router import Router
from gateway.dispatch.turn import Turn
from gateway.dispatch.waiting_room import WaitingRoom
from gateway.errors import (
    QuotasUnavailable,
    RepeatRefused,
    RepeatRunning,
    StreamInterrupted,
    WorkerTimeout,
)
from gateway.queue.shared import SharedQueue
from gateway.quotas import quota
from gateway.quotas.headers import openai_headers
from gateway.quotas.leases import Leases
from gateway.quotas.limit import scopes_for
from gateway.quotas.quota import Lease, QuotaUnavailable, Refusal, Reservation
from gateway.telemetry.record import Progress
from policies.latency_model import predicted_ttft_ms
from policies.routing.protocol import Ranking, Route
from radix_cache.index import PrefixIndex
from radix_cache.match import WorkerId
from workers.adapter import Failure, WorkerAnswer, WorkerUnreachable

log = logging.getLogger(__name__)

UNCLEAR_MAX = 2
"""Workers that may fail inside over one request: after these, the request is at fault and nobody is blamed."""


class Reservations:
    """`new_room` makes a waiting room."""

    def __init__(
        self,
        *,
        leases: Leases,
        router: Router,
        fleet: Fleet,
        index: PrefixIndex,
        shares: CacheShares,
        feedback: Feedback,
        estimates: OutputEstimates,
        bounds: Bounds,
        queue: SharedQueue,
        new_room: NewRoom,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.leases = leases
        self.router = router
        self.fleet = fleet
        self.index = index
        self.shares = shares
        self.feedback = feedback
        self.estimates = estimates
        self.bounds = bounds
        self.queue = queue
        self.ranks = ranks
        self.clock = clock
        self.preemptible = Preemptible()
        self._rooms = Rooms(
            fleet, new_room, self._unseat, lambda: queue.share_of(bounds.release_window_tokens)
        )

    @asynccontextmanager
    async def hold(
        self,
        ctx: RequestContext,
        prompt: PromptBlocks,
        progress: Progress,
        comments: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> AsyncIterator["Held"]:
        """Quota for the request. `comments`: entered while it is on its way to a place.

        Raises QuotaExceeded, BudgetExhausted, RequestExceedsLimit, QuotasUnavailable, RepeatRunning, RepeatRefused.
        """
        lease = await self._reserve(ctx, prompt)
        progress.mark("reserve")
        held = Held(self, ctx, prompt, progress, lease, comments)
        try:
            yield held
        finally:
            held.close()
            cost = costs.used(ctx, progress)
            progress.charge(*costs.not_yet_settled(progress.used(), cost, lease.settled))
            self.leases.end(lease, cost)
            if progress.usage is not None:
                self.estimates.learn(ctx, progress.output_tokens_used())

    def room(self, queue: str) -> WaitingRoom[Placed]:
        return self._rooms.of(queue)

    def rooms(self) -> Mapping[str, WaitingRoom[Placed]]:
        """By queue."""
        return self._rooms.all()

    def room_made(self) -> None:
        """A worker may have room again."""
        self._rooms.room_made()

    def preempt(self, routes: Ranking, uncached: Callable[[Route], int]) -> None:
        """Batch requests make room for this one, where that is enough."""
        self.preemptible.make_room(routes, uncached, self.queue.share_of(self.bounds.release_window_tokens))

    def fleet_changed(self) -> None:
        """A worker came or went: where requests may go has changed."""
        self.queue.ask_again()
        self.room_made()

    def leave(self, placed: Placed, cost_change: float) -> bool:
        """Gives a place back. False if nobody else has to know what it cost: see SharedQueue.leave."""
        placed.place.leave()
        if placed.rank is not None:
            placed.rank.leave()
        told = self.queue.leave(placed.shared, cost_change)
        if placed.answering is not None:
            self.queue.leave(placed.answering, 0.0)
        self.room_made()
        return told

    def _unseat(self, placed: Placed) -> None:
        self.leave(placed, 0.0)

    async def _reserve(self, ctx: RequestContext, prompt: PromptBlocks) -> Lease:
        tenant, model = ctx.tenant, ctx.model.name
        scopes = scopes_for(tenant.scopes, model)
        output_tokens = self.estimates.reserved(ctx, scopes, prompt.prompt_tokens)
        reservation = Reservation(
            id=ctx.id,
            organisation=tenant.organisation,
            scopes=scopes,
            cost=costs.reserved(ctx, prompt_tokens=prompt.prompt_tokens, output_tokens=output_tokens),
            tenant=tenant.id,
            model=model,
            once=ctx.once,
            closed=tenant.closed,
        )
        try:
            decision = await self.leases.reserve(reservation)
        except QuotaUnavailable as err:
            raise QuotasUnavailable from err
        except quota.RepeatRefused as err:
            if err.why == "running":
                raise RepeatRunning from err
            raise RepeatRefused(different=err.why == "different") from err
        if isinstance(decision, Refusal):
            raise refused(decision)
        return decision


class Held:
    """One request's quota, and its way from place to place."""

    def __init__(
        self,
        by: Reservations,
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
        self._by_shadow = by.router.for_shadow()
        self._tried: dict[WorkerId, WorkerUnreachable] = {}
        self._recorded = False
        self._comments = comments
        self._attempt = Attempt()
        self._turn = Turn(
            by,
            ctx,
            prompt,
            progress,
            output_tokens=by.estimates.expected(ctx),
            by_shadow=self._by_shadow,
            tried=self._tried,
        )

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Placed]:
        """A place on the best worker that was not tried yet, once there is one with room for it.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, DeadlinePassed; after failures
        Overloaded, WorkerError.
        """
        if self._tried:
            placed = self._turn.seat()
        else:
            async with self._comments():
                placed = await self._turn.come()
        if placed is None:
            raise nobody_left(self._tried.values())
        progress, index = self._progress, self._by.index
        progress.mark("queue" if progress.queued_at is not None else "route")
        predicted_ms = predicted_ttft_ms(placed.computes.speed, placed.tokens_ahead)
        progress.sent_to(
            placed.worker.id,
            by_shadow=self._by_shadow,
            reason=placed.route.reason,
            predicted_tokens=placed.route.matched_tokens,
            predicted_ttft_seconds=predicted_ms / 1000,
            prefill_worker=placed.computes.id if placed.computes is not placed.worker else None,
        )
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s goes to %s: %s", self._ctx.id, placed.worker.id, placed.route.reason)
        expected = self._by.feedback.sent(placed.computes.id, self._prompt)
        self._recorded = self._by.shares.take(self._ctx.tenant, self._new_blocks(index))
        if self._recorded:
            # Not where it is only handed over: whoever comes next would have to compute it there.
            index.record(self._prompt.namespace, self._prompt.hashes, placed.computes.id, self._ctx.id)
        try:
            yield placed
        except StreamInterrupted:
            self._by.fleet.broke(placed.worker)
            raise
        else:
            if progress.answered:
                for worker in {placed.worker.id: placed.worker, placed.computes.id: placed.computes}.values():
                    self._by.fleet.ended(worker)
        finally:
            progress.usage = placed.cached(progress.usage)
            if progress.usage is not None and self._prompt.exact:
                self._by.feedback.reported(expected, self._ctx.id, progress.usage.cached_tokens)
            self._by.feedback.left(expected)
            self._learn(placed)
            index.withdraw(placed.computes.id, self._ctx.id)
            change = self._turn.cost_change(costs.used(self._ctx, progress))
            if not self._by.leave(placed, change):
                self._turn.settle(change)

    @asynccontextmanager
    async def until_first_byte(self, placed: Placed) -> AsyncIterator[None]:
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
            self._progress.dispatched = False
            raise

    def answered(self, placed: Placed, answer: WorkerAnswer) -> None:
        """Its first bytes came: unless it refused, the prompt is computed and its blocks are there."""
        by, progress = self._by, self._progress
        if by.preemptible.drop(self._attempt):
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
            progress.worker_ttft_seconds = now - placed.since
            progress.first_token_seconds = now - self._ctx.received_at
        placed.place.first_token()
        if placed.rank is not None:
            placed.rank.first_token()
        by.queue.first_token(placed.shared)
        by.room_made()

    def failed(self, placed: Placed, cause: WorkerUnreachable) -> None:
        """No answer from there. Raises WorkerTimeout, WorkerError or Overloaded if nobody else is worth asking."""
        self._progress.mark("failed_attempt")
        self._progress.dispatched = self._progress.answered = False
        self._progress.frames = 0
        worker = placed.computes if cause.worker == placed.computes.id else placed.worker
        self._tried[worker.id] = cause
        self._by.fleet.failed(worker, cause)
        if cause.timed_out:
            # Whoever has waited that long will not wait that long again.
            raise WorkerTimeout(self._by.bounds.first_token_seconds_max) from cause
        unclear = sum(tried.failure is Failure.UNCLEAR for tried in self._tried.values())
        if unclear >= UNCLEAR_MAX or len(self._tried) >= self._by.bounds.attempts_max:
            raise nobody_left(self._tried.values()) from cause

    def _new_blocks(self, index: PrefixIndex) -> int:
        """Of the prompt, those that nobody is known to hold; asked only where it matters."""
        if self._ctx.tenant.cache_blocks_max is None:
            return 0
        match, hashes = index.match(self._prompt.namespace, self._prompt.hashes), self._prompt.hashes
        return len(hashes) - max((match.blocks(worker.id) for worker in self._by.fleet), default=0)

    def close(self) -> None:
        """Forgets what failed: an error that was raised knows the frames it came through, and they know this."""
        self._tried.clear()

    def _learn(self, placed: Placed) -> None:
        """How long the first token took for so many tokens; what was cached is known best at the end."""
        progress = self._progress
        tpot = progress.tpot_seconds()
        if tpot is not None and progress.worker == placed.worker.id:
            self._by.fleet.step(placed.worker, tpot * 1000)
        if progress.worker_ttft_seconds is None:
            return
        tokens, usage = placed.tokens_ahead, progress.usage
        if usage is not None and usage.cached_tokens is not None:
            tokens += min(placed.route.matched_tokens, self._prompt.prompt_tokens) - usage.cached_tokens
        self._by.fleet.first_token(
            placed.computes, tokens=max(1, tokens), ttft_ms=progress.worker_ttft_seconds * 1000
        )
