"""What is held for a request: quota from before it is dispatched until it is settled, and a place on a worker.

    async with reservations.hold(ctx, prompt, progress) as held:    # quota, all or nothing
        ...                                                         # a place on a worker: see Held

It is left on every ending. Quota is settled to what was used: nothing for what no worker took, the prompt and
the tokens that came for a stream that was cut, the worker's own count for what was completed. Nobody waits for it.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from gateway.dispatch import costs
from gateway.dispatch.attempts import Held
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.placement import Bounds, Placed
from gateway.dispatch.preemption import Preemptible
from gateway.dispatch.provider_quota import Allowances
from gateway.dispatch.refusals import refused
from gateway.dispatch.seats import computes_at, is_there
from gateway.domain.context import RequestContext
from gateway.domain.errors import QuotasUnavailable, RepeatRefused, RepeatRunning, WorkerError
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.fleet import Fleet
from gateway.fleet.ranks import Ranks
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.index_quota import CacheShares
from gateway.queueing.shared.preemption_requests import Favours, Need
from gateway.queueing.shared.provider_backoff import Rests
from gateway.queueing.shared.shared_queue import SharedQueue
from gateway.queueing.shared.store import ROUTES_MAX
from gateway.queueing.waiting_room import RoomRules, WaitingRoom
from gateway.queueing.waiting_rooms import Rooms
from gateway.quotas import quota
from gateway.quotas.leases import Leases
from gateway.quotas.limit import scopes_for
from gateway.quotas.quota import Lease, QuotaUnavailable, Refusal, Reservation
from gateway.routing.router import Router
from gateway.telemetry.record import Progress
from policies.admission.retry_budget import RetryBudget
from policies.routing.protocol import Ranking, Route
from radix_cache.index import PrefixIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """Whose turn it is. `together`: all gateways may give turns together; see SharedQueue."""

    bounds: Bounds
    room: RoomRules
    together: bool


class Reservations:
    """`rules`: of every waiting room."""

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
        retries: RetryBudget,
        hedging: Hedging,
        queue: SharedQueue,
        rules: RoomRules,
        favours: Favours,
        rests: Rests,
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
        self.allowances = Allowances(leases, estimates)
        self.bounds = bounds
        self.retries = retries
        self.hedging = hedging
        self.queue = queue
        self.favours = favours
        self.rests = rests
        self.ranks = ranks
        self.clock = clock
        self.preemptible = Preemptible()
        self._rooms = Rooms(
            fleet,
            rules,
            self._unseat,
            lambda: self.window_tokens,
            clock,
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

        Raises QuotaExceeded, BudgetExhausted, RequestExceedsLimit, QuotasUnavailable, RepeatRunning, RepeatRefused;
        WorkerError if it was sent to workers of another model before, and may not be sent again.
        """
        if progress.attempts and not self.retries.try_spend(self.clock()):
            raise WorkerError
        lease = await self._reserve(ctx, prompt)
        progress.mark("reserve")
        held = Held(self, ctx, prompt, progress, lease, comments)
        try:
            yield held
        finally:
            held.close()
            cost = costs.used(progress, held.prices)
            progress.charge(*costs.not_yet_settled(progress.tokens_to_charge(), cost, lease.settled))
            self.leases.end(lease, cost)
            if progress.usage is not None:
                self.estimates.learn(ctx, progress.output_tokens_used())

    @property
    def rules(self) -> RoomRules:
        """Of every waiting room."""
        return self._rooms.rules

    def restate(self, rules: QueueRules) -> None:
        """For whoever comes or waits now; who has a place keeps it."""
        self.bounds = bounds = rules.bounds
        self.queue.restate(
            rules.room.order, bounds.release_window_tokens, bounds.hold, enabled=rules.together
        )
        self._rooms.restate(rules.room)
        self.room_made()

    def room(self, queue: str) -> WaitingRoom[Placed]:
        return self._rooms.of(queue)

    def rooms(self) -> Mapping[str, WaitingRoom[Placed]]:
        """By queue."""
        return self._rooms.all()

    def somebody_waits(self, model: str) -> bool:
        """Here, for a worker of this model, whatever for; batch work apart."""
        return not self._rooms.nobody_waits_beside(model)

    def room_made(self) -> None:
        """A worker may have room again."""
        self._rooms.room_made()

    def preempt(self, routes: Ranking, uncached: Callable[[Route], int]) -> None:
        """Batch requests make room for this one, where that is enough: here, else at another gateway."""
        needs = [
            Need(computes_at(route), uncached(route), self.fleet[computes_at(route)].load.all_tokens_queued)
            for route in routes[:ROUTES_MAX]
            if is_there(self.fleet, route)  # It may have left while Redis was asked.
        ]
        if not self.preemptible.make_room(needs, self.window_tokens) and self.queue.shared:
            self.favours.ask(needs)

    @property
    def window_tokens(self) -> int:
        """This gateway's part of a worker's window."""
        return self.queue.share_of(self.bounds.release_window_tokens)

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
