"""What is held for a request: quota from before it is dispatched until it is settled, and a place on a worker.

    async with reservations.hold(ctx, prompt, progress) as held:    # quota, all or nothing
        async with held.place() as placed:                          # ranked; waits for its turn if it must
            ...
            held.answered(placed)                                   # the first bytes came
            held.failed(placed, err)                                # or they did not: the next place is another one

Both are left on every ending. Quota is settled to what was used: nothing for what no worker took, the prompt and
the tokens that came for a stream that was cut, the worker's own count for what was completed. Nobody waits for it.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil

import msgspec

from gateway.context import RequestContext
from gateway.dispatch.estimates import OutputEstimates
from gateway.dispatch.feedback import Feedback
from gateway.dispatch.fleet import Fleet, Worker
from gateway.dispatch.loads import Place
from gateway.dispatch.prefixes import PromptBlocks
from gateway.dispatch.router import Router
from gateway.dispatch.waiting_room import Asked, NowhereToGo, WaitingRoom
from gateway.errors import (
    GatewayError,
    NoWorker,
    Overloaded,
    QuotaExceeded,
    RequestExceedsLimit,
    WorkerError,
    WorkerTimeout,
)
from gateway.queue.shared import AskAnew, NoRoute, SharedQueue
from gateway.queue.shared import Placed as Turn
from gateway.queue.store import ROUTES_MAX, SharedRoute, SharedTicket
from gateway.quotas.leases import Leases
from gateway.quotas.quota import (
    REQUESTS,
    TOTAL_TOKENS,
    Cost,
    Lease,
    Refusal,
    Reservation,
    Standing,
    tightest,
)
from gateway.telemetry.record import Progress
from policies.admission import has_window
from policies.queueing.cost import CostWeights
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Ranking, Route
from radix_cache.index import PrefixIndex
from radix_cache.match import WorkerId
from workers.adapter import Failure, WorkerUnreachable

UNCLEAR_MAX = 2
"""Workers that may fail inside over one request: after these, the request is at fault and nobody is blamed."""

BUSY_SECONDS = 1.0
"""When to come back if all workers are busy and none says when."""

HEADER_NAMES = {REQUESTS: "requests", TOTAL_TOKENS: "tokens"}


class Placed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A place that was given: where, why, and since when. `shared`: its name among all gateways' places."""

    worker: Worker
    route: Route
    place: Place
    shared: SharedTicket
    tokens_ahead: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`release_window_tokens`: see policies/admission. `attempts_max`: workers tried before the first byte."""

    release_window_tokens: int
    costs: CostWeights
    attempts_max: int
    first_token_seconds_max: float


class Reservations:
    """`new_room` makes the waiting room of a model."""

    def __init__(
        self,
        *,
        leases: Leases,
        router: Router,
        fleet: Fleet,
        index: PrefixIndex,
        feedback: Feedback,
        estimates: OutputEstimates,
        bounds: Bounds,
        queue: SharedQueue,
        new_room: Callable[[str, Callable[[Placed], None]], WaitingRoom[Placed]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.leases = leases
        self.router = router
        self.fleet = fleet
        self.index = index
        self.feedback = feedback
        self.estimates = estimates
        self.bounds = bounds
        self.queue = queue
        self.clock = clock
        self._new_room = new_room
        self._rooms: dict[str, WaitingRoom[Placed]] = {}

    @asynccontextmanager
    async def hold(
        self, ctx: RequestContext, prompt: PromptBlocks, progress: Progress
    ) -> AsyncIterator["Held"]:
        """Quota for the request. Raises QuotaExceeded, RequestExceedsLimit."""
        lease = await self._reserve(ctx, prompt)
        progress.mark("reserve")
        held = Held(self, ctx, prompt, progress, lease)
        try:
            yield held
        finally:
            self.leases.end(lease, _used(progress))
            if progress.usage is not None:
                self.estimates.learn(ctx, progress.output_tokens_used())

    def room(self, model: str) -> WaitingRoom[Placed]:
        room = self._rooms.get(model)
        if room is None:
            room = self._rooms[model] = self._new_room(model, self._unseat)
        return room

    def rooms(self) -> Mapping[str, WaitingRoom[Placed]]:
        """By model."""
        return self._rooms

    def room_made(self) -> None:
        """A worker may have room again."""
        for room in self._rooms.values():
            if len(room):
                room.room_made()

    def fleet_changed(self) -> None:
        """A worker came or went: where requests may go has changed."""
        self.queue.ask_again()
        self.room_made()

    def leave(self, placed: Placed, cost_change: float) -> bool:
        """Gives a place back. False if the queue is not told what it cost: see SharedQueue.leave."""
        placed.place.leave()
        settled = self.queue.leave(placed.shared, cost_change)
        self.room_made()
        return settled

    def _unseat(self, placed: Placed) -> None:
        self.leave(placed, 0.0)

    async def _reserve(self, ctx: RequestContext, prompt: PromptBlocks) -> Lease:
        decision = await self.leases.reserve(
            Reservation(
                id=ctx.id,
                organisation=ctx.tenant.organisation,
                scopes=ctx.tenant.scopes,
                cost=Cost(
                    prompt_tokens=prompt.prompt_tokens,
                    output_tokens=self.estimates.reserved(ctx, prompt.prompt_tokens),
                ),
            )
        )
        if isinstance(decision, Refusal):
            raise _refused(decision)
        return decision


class Held:
    """One request's quota, and its way from place to place."""

    def __init__(
        self, by: Reservations, ctx: RequestContext, prompt: PromptBlocks, progress: Progress, lease: Lease
    ) -> None:
        self.headers = limit_headers(lease.standings)
        self._by = by
        self._ctx = ctx
        self._prompt = prompt
        self._progress = progress
        self._sequence = by.router.arrival(ctx.model.name)
        self._output_tokens = by.estimates.expected(ctx)
        self._tried: dict[WorkerId, WorkerUnreachable] = {}
        self._ticket: Ticket | None = None
        self._charged = 0.0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Placed]:
        """A place on the best worker that was not tried yet, once there is one with room for it.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker; after failures Overloaded, WorkerError.
        """
        placed = self._seat() if self._tried else await self._turn()
        if placed is None:
            raise self._nobody_left()
        progress, index = self._progress, self._by.index
        progress.mark("queue" if progress.queued_at is not None else "route")
        progress.sent_to(placed.worker.id, placed.route.reason, placed.route.matched_tokens)
        expected = self._by.feedback.sent(placed.worker.id, self._prompt)
        index.record(self._prompt.namespace, self._prompt.hashes, placed.worker.id, self._ctx.id)
        try:
            yield placed
        finally:
            if progress.usage is not None and self._prompt.exact:
                self._by.feedback.reported(expected, self._ctx.id, progress.usage.cached_tokens)
            self._by.feedback.left(expected)
            index.withdraw(placed.worker.id, self._ctx.id)
            self._leave(placed)

    def answered(self, placed: Placed, status: int) -> None:
        """Its first bytes came: unless it refused, the prompt is computed and its blocks are there."""
        by, progress = self._by, self._progress
        progress.mark("first_byte")
        by.fleet.answered(placed.worker)
        if status >= 400:
            return
        progress.answered = True
        for worker, cause in self._tried.items():
            # A refusal would tell nothing: where a bad request is refused here, it may well have failed there.
            if cause.failure is Failure.UNCLEAR:
                by.fleet.at_fault(by.fleet[worker], cause)
        by.index.confirm(self._prompt.namespace, self._prompt.hashes, placed.worker.id, self._ctx.id)
        if self._ctx.request.stream:
            ttft_ms = (by.clock() - placed.since) * 1000
            by.fleet.first_token(placed.worker, tokens=placed.tokens_ahead, ttft_ms=ttft_ms)
        placed.place.first_token()
        by.queue.first_token(placed.shared)
        by.room_made()

    def failed(self, placed: Placed, cause: WorkerUnreachable) -> None:
        """No answer from there. Raises WorkerTimeout, WorkerError or Overloaded if nobody else is worth asking."""
        self._progress.mark("failed_attempt")
        self._progress.dispatched = False
        self._tried[placed.worker.id] = cause
        self._by.fleet.failed(placed.worker, cause)
        if cause.timed_out:
            # Whoever has waited that long will not wait that long again.
            raise WorkerTimeout(self._by.bounds.first_token_seconds_max) from cause
        unclear = sum(tried.failure is Failure.UNCLEAR for tried in self._tried.values())
        if unclear >= UNCLEAR_MAX or len(self._tried) >= self._by.bounds.attempts_max:
            raise self._nobody_left() from cause

    def _nobody_left(self) -> WorkerError | Overloaded:
        """Nobody is left to be asked: were all of them busy?"""
        tried = self._tried.values()
        if any(cause.failure is not Failure.BUSY for cause in tried):
            return WorkerError()
        seconds = [s for cause in tried if (s := cause.retry_after_seconds) is not None]
        return Overloaded(min(seconds, default=BUSY_SECONDS))

    def _leave(self, placed: Placed) -> None:
        """Gives the place back; what was used replaces what the turn was charged with."""
        used, by = _used(self._progress), self._by
        units = 0.0
        if used is not None:
            units = by.bounds.costs.units(
                uncached_tokens=used.prompt_tokens - used.cached_tokens,
                cached_tokens=used.cached_tokens,
                output_tokens=used.output_tokens,
            )
        change, self._charged = units - self._charged, units
        if not by.leave(placed, change) and self._ticket is not None:
            by.room(self._ctx.model.name).settle(self._ticket, change)

    async def _turn(self) -> Placed:
        """A place in its turn, wherever turns are given: that may change while it waits."""
        while True:
            ranking = self._ranking()
            room = self._by.room(self._ctx.model.name)
            ticket = self._ticket = room.ticket(self._asked(ranking), self._ticket)
            placed: Placed | None
            try:
                if self._by.queue.shared:
                    placed = await room.wait_with_all(ticket, partial(self._turn_of_all, ticket))
                else:
                    placed = room.at_once(ticket, partial(self._seat, ranking))
                    if placed is None:
                        self._waits()
                        placed = await room.wait(ticket, self._seat)
            except AskAnew:
                continue
            finally:
                if self._progress.queued_at is not None:
                    self._progress.queued_until = self._by.clock()
            self._charged = ticket.cost
            return placed

    async def _turn_of_all(self, ticket: Ticket) -> Placed:
        by, known = self._by, dict[WorkerId, Route]()
        shared = by.queue.ticket(ticket, self._ctx.model.name, self._kv_tokens)

        def routes() -> list[SharedRoute]:
            ranking = self._ranking()[:ROUTES_MAX]
            known.update((route.worker, route) for route in ranking)
            return [self._shared_route(route) for route in ranking]

        try:
            turn = await by.queue.turn(shared, ticket, routes, self._waits)
        except NoRoute:
            raise NoWorker(self._ctx.model.name) from None
        worker = by.fleet[turn.worker]
        return self._placed(worker, known[turn.worker], turn.uncached_tokens, shared)

    def _shared_route(self, route: Route) -> SharedRoute:
        """What it costs there however many tokens are queued by then."""
        queued = self._by.fleet[route.worker].load.all_tokens_queued
        return SharedRoute(
            route.worker,
            self._uncached(route),
            route.cost_ms - route.ms_per_queued_token * queued,
            route.ms_per_queued_token,
        )

    def _waits(self) -> None:
        if self._progress.queued_at is None:
            self._progress.queued_at = self._by.clock()

    def _uncached(self, route: Route) -> int:
        return max(1, self._prompt.prompt_tokens - route.matched_tokens)

    @property
    def _kv_tokens(self) -> int:
        return self._prompt.prompt_tokens + self._output_tokens

    def _asked(self, ranking: Ranking) -> Asked:
        prompt, best = self._prompt, ranking[0] if ranking else None
        cached = min(best.matched_tokens, prompt.prompt_tokens) if best is not None else 0
        uncached = prompt.prompt_tokens - cached
        return Asked(
            tenant=self._ctx.tenant.id,
            weight=self._ctx.tenant.plan.weight,
            cost=self._by.bounds.costs.units(
                uncached_tokens=uncached, cached_tokens=cached, output_tokens=self._output_tokens
            ),
            uncached_tokens=uncached,
            cached_tokens=cached,
            worker=best.worker if best is not None and cached else "",
        )

    def _ranking(self) -> Ranking:
        return self._by.router.ranked(
            self._ctx,
            self._prompt,
            sequence=self._sequence,
            output_tokens=self._output_tokens,
            without=self._tried,
        )

    def _seat(self, ranking: Ranking | None = None) -> Placed | None:
        """Ranks with what is known now and takes the best place that has room; None if none has.

        After a failure room is not asked for: the request has had its turn.
        """
        by = self._by
        if ranking is None:
            ranking = self._ranking()
        if not ranking:
            if self._tried:
                return None
            raise NowhereToGo
        window = by.queue.share_of(by.bounds.release_window_tokens)
        for route in ranking:
            worker, uncached = by.fleet[route.worker], self._uncached(route)
            if self._tried or has_window(worker.load.all_tokens_queued, uncached, window):
                assert self._ticket is not None
                shared = by.queue.ticket(self._ticket, self._ctx.model.name, self._kv_tokens)
                by.queue.hold(shared, Turn(worker.id, uncached))
                return self._placed(worker, route, uncached, shared)
        return None

    def _placed(self, worker: Worker, route: Route, uncached: int, shared: SharedTicket) -> Placed:
        return Placed(
            worker=worker,
            route=route,
            tokens_ahead=worker.load.all_tokens_queued + uncached,
            since=self._by.clock(),
            place=Place(worker.load, uncached_tokens=uncached, kv_tokens=self._kv_tokens),
            shared=shared,
        )


def _refused(refusal: Refusal) -> GatewayError:
    kind, _, name = refusal.scope.partition(":")
    owner = f"{kind} {name!r}"
    unit, amount, headers = refusal.unit, refusal.amount, limit_headers(refusal.standings)
    if refusal.retry_after_seconds is None:
        return RequestExceedsLimit(unit=unit, amount=amount, owner=owner, headers=headers)
    return QuotaExceeded(
        unit=unit,
        amount=amount,
        retry_after_seconds=refusal.retry_after_seconds,
        owner=owner,
        headers=headers,
    )


def limit_headers(standings: Sequence[Standing]) -> dict[str, str]:
    """OpenAI's names, with true values: of each kind of limit the one of which least is left."""
    headers = {}
    for unit, standing in tightest(standings).items():
        kind = HEADER_NAMES[unit]
        headers[f"x-ratelimit-limit-{kind}"] = str(standing.amount)
        headers[f"x-ratelimit-remaining-{kind}"] = str(standing.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = _duration(standing.reset_seconds)
    return headers


def _duration(seconds: float) -> str:
    """As OpenAI writes durations: 12ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def _used(progress: Progress) -> Cost | None:
    """What the request has cost; None if nothing was computed for it."""
    usage = progress.usage
    if usage is not None:
        return Cost(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens or 0,
            output_tokens=usage.completion_tokens or 0,
        )
    if progress.refused:
        return Cost(prompt_tokens=0)
    if progress.dispatched:
        return Cost(prompt_tokens=progress.prompt_tokens, output_tokens=progress.frames)
    return None
