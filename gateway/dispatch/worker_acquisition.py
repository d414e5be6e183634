"""One request's way to a place on a worker: ranked, in its turn, wherever turns are given.

    alone    rank --- room, and nobody waits ---> place        waiting room: ranked again in its turn
    shared   rank --- Redis says who and where --> place        ranked again when its turn has come

Where turns are given may change while it waits (gateway/queueing/shared/membership.py): it asks anew, and keeps its number.
Its service class and its client's own timeout say when it is too late: it is then let go before it costs a prefill.
"""

from collections.abc import Collection, Mapping
from functools import partial

import msgspec

from gateway.dispatch.placement import Placed
from gateway.dispatch.provider_overflow import REFUSALS, GoesOver, Overflow
from gateway.dispatch.seats import Parts, computes_at, is_there, seated
from gateway.dispatch.ttft_target import Demoted, Target, uncached_tokens
from gateway.domain.context import RequestContext
from gateway.domain.errors import GatewayError, NoWorker, Overloaded
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.queueing.shared.keys import queue_of
from gateway.queueing.shared.local_placements import Placed as SharedPlaced
from gateway.queueing.shared.shared_queue import AskAnew, NoRoute
from gateway.queueing.shared.store import ROUTES_MAX, SharedRoute, SharedTicket
from gateway.queueing.waiting_room import Asked, NowhereToGo, Patience, WaitingRoom
from gateway.quotas.quota import Cost
from gateway.routing.router import Decision
from gateway.telemetry.record import Progress
from policies.admission.dispatch_window import close_enough_to_best, fits_window
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Ranking, Route
from radix_cache.match import WorkerId
from workers.adapter import WorkerUnreachable


class Turn:
    """`tried`: workers that have failed at it; after the first it has had its turn, and takes a place anywhere."""

    def __init__(
        self,
        by: Parts,
        ctx: RequestContext,
        prompt: PromptBlocks,
        progress: Progress,
        *,
        output_tokens: int,
        by_shadow: bool,
        tried: Mapping[WorkerId, WorkerUnreachable],
    ) -> None:
        self._by = by
        self._bounds = by.bounds  # It is charged and settled alike, and leaves the queue that it came to.
        self._ctx = ctx
        self._prompt = prompt
        self._progress = progress
        self._sequence = by.router.arrival(ctx.model.name)
        self._output_tokens = output_tokens
        self._by_shadow = by_shadow
        self._tried = tried
        self._overflow = Overflow(
            ctx, by.fleet, by.allowances, prompt_tokens=prompt.prompt_tokens, output_tokens=output_tokens
        )
        self._outside: set[WorkerId] = set()
        self._target = Target(ctx, by.fleet, prompt.prompt_tokens, by.clock)
        self._ticket: Ticket | None = None
        self._charged = 0.0

    @property
    def background(self) -> bool:
        """Does everybody else go before it?"""
        return self._target.kind.background and self._bounds.background

    @property
    def over(self) -> bool:
        """Has it had its turn, and workers here failed at it?"""
        return not self._tried.keys() <= self._outside

    async def come(self) -> Placed:
        """A place in its turn; at a provider, where its tenant consents and no worker here takes it.

        Raises TenantQueueFull, Overloaded, AdmissionTimeout, NoWorker, TargetMissed, DeadlinePassed.
        """
        while True:
            try:
                return await self._come()
            except AskAnew:
                continue
            except GoesOver:
                if (placed := await self.outside("no worker here had room in time")) is not None:
                    return placed
            except REFUSALS as err:
                nobody = isinstance(err, NoWorker)
                may = nobody or not self._target.kind.background
                if may and (placed := await self.outside(f"{err.code} here")) is not None:
                    return placed
                if nobody and (seconds := self._overflow.back_in_seconds(self._tried)) is not None:
                    raise Overloaded(seconds, by_workers=True) from err
                raise
            except Demoted:
                if (placed := await self.outside("no worker here in time")) is not None:
                    return placed
                self._target.kind, self._ticket = self._bounds.batch, None
            finally:
                if self._progress.queued_at is not None:
                    self._progress.queued_until = self._by.clock()

    async def _come(self) -> Placed:
        decision = self._ranked()
        room = self._room()
        self._target.check(decision.routes, room)
        ticket = self._ticket = room.ticket(self._asked(decision.routes), self._ticket)
        placed: Placed | None
        if self._by.queue.shared:
            placed = await room.wait_with_all(
                ticket, partial(self._of_all, ticket, decision), self._patience(room, ticket)
            )
        else:
            placed = room.at_once(ticket, partial(self.seat, decision=decision))
            if placed is None:
                self._waits(decision)
                try:
                    placed = await room.wait(ticket, self.seat, self._patience(room, ticket))
                finally:
                    if placed is None:
                        self._by.room_made()  # Those who stood behind this room may go now.
        self._charged = ticket.cost
        return placed

    def seat(self, closed: set[WorkerId] | None = None, *, decision: Decision | None = None) -> Placed | None:
        """Ranks with what is known now and takes the best place that has room; None if none has.

        `closed`: workers that somebody waits for who goes before it; those that this one waits for are added.

        After a failure room is not asked for: the request has had its turn.
        """
        by, over = self._by, self.over
        if decision is None:
            decision = self._ranked()
            if not over:
                self._target.check(decision.routes, self._room(), demotes=False)
        if not decision.routes:
            if over:
                return None
            raise NowhereToGo
        window = by.queue.share_of(by.bounds.release_window_tokens)
        taken, waited_for = closed if closed is not None else set(), []
        for route in decision.routes:
            if not (over or close_enough_to_best(route.cost_ms, decision.routes[0].cost_ms, by.bounds.hold)):
                break
            worker, uncached = by.fleet[computes_at(route)], self._uncached(route)
            free = worker.id not in taken and fits_window(worker.load.all_tokens_queued, uncached, window)
            if over or free:
                if not over:
                    by.router.shadowed(decision)
                assert self._ticket is not None
                shared = by.queue.ticket(self._ticket, self._queue, self._kv_tokens)
                by.queue.hold(shared, SharedPlaced(worker.id, uncached))
                return self._placed(route, uncached, shared)
            waited_for.append(worker.id)
        taken.update(waited_for)
        return None

    async def besides(self, first: Placed) -> Placed | None:
        """One more place for the same request, at no cost; None unless there is room that nobody waits for."""
        by, decision = self._by, self._ranked(without=(first.worker.id, first.computes.id))
        if by.somebody_waits(self._ctx.model.name):
            return None
        assert self._ticket is not None
        shared = by.queue.ticket(self._ticket, self._queue, self._kv_tokens, cost=0.0)
        if by.queue.shared:
            known = dict[WorkerId, Route]()
            turn = await by.queue.spare(shared, self._shared_routes(decision, known))
            if turn is not None and not is_there(by.fleet, known[turn.worker]):
                by.queue.leave(shared, 0.0)
                turn = None
            return (
                self._placed(known[turn.worker], turn.uncached_tokens, shared) if turn is not None else None
            )
        window = by.queue.share_of(by.bounds.release_window_tokens)
        for route in decision.routes:
            worker, uncached = by.fleet[computes_at(route)], self._uncached(route)
            if fits_window(worker.load.all_tokens_queued, uncached, window):
                by.queue.hold(shared, SharedPlaced(worker.id, uncached))
                return self._placed(route, uncached, shared)
        return None

    async def instead(self, why: str) -> Placed | None:
        """`outside`, after a failure here. Batch work stays with those who serve its model."""
        stays = self._target.kind.background and self._by.fleet.serving(self._ctx.model.name)
        return None if stays else await self.outside(why)

    async def outside(self, why: str) -> Placed | None:
        """A place at a provider; it takes no turn here. None if none has room, or its tenant does not consent."""
        taken = await self._overflow.taken(why, self._tried)
        if taken is None:
            return None
        route, allowance = taken
        self._outside.add(route.worker)
        by, uncached = self._by, self._uncached(route)
        if self._ticket is None:
            self._ticket = self._room().ticket(self._asked(()))
        shared = by.queue.ticket(self._ticket, self._queue, self._kv_tokens, cost=0.0)
        by.queue.hold(shared, SharedPlaced(route.worker, uncached))
        return msgspec.structs.replace(self._placed(route, uncached, shared), allowance=allowance)

    def cost_change(self, used: Cost | None) -> float:
        """By how many units what was used differs from what it was charged with; it is charged with that now."""
        units = 0.0
        if used is not None:
            units = self._bounds.costs.units(
                uncached_tokens=used.prompt_tokens - (used.cached_tokens or 0),
                cached_tokens=used.cached_tokens or 0,
                output_tokens=used.output_tokens,
            )
        change, self._charged = units - self._charged, units
        if self._ticket is not None:
            self._room().used(self._ticket, change)
        return change

    def settle(self, cost_change: float) -> None:
        """In the room, where nobody else has to know."""
        if self._ticket is not None:
            self._room().settle(self._ticket, cost_change)

    async def _of_all(self, ticket: Ticket, decision: Decision) -> Placed:
        """The turn that all gateways together give. `decision`: as of this moment."""
        by, known = self._by, dict[WorkerId, Route]()
        shared = by.queue.ticket(ticket, self._queue, self._kv_tokens)
        asked = False

        def waits() -> None:
            self._room().waits(ticket)
            self._waits(decision)

        def routes() -> list[SharedRoute]:
            nonlocal asked, decision
            if asked:
                decision = self._ranked()
            asked = True
            return self._shared_routes(decision, known)

        try:
            turn = await by.queue.turn(shared, ticket, routes, waits)
        except NoRoute:
            raise NoWorker(self._ctx.model.name) from None
        route = known[turn.worker]
        try:
            # It was asked for when all of these were there.
            if not is_there(by.fleet, route):
                raise AskAnew
            left = tuple(each for each in decision.routes if is_there(by.fleet, each))
            self._target.check(left, self._room())
        except (GatewayError, Demoted, AskAnew):
            by.queue.leave(shared, -shared.cost)
            raise
        by.router.shadowed(decision)
        return self._placed(route, turn.uncached_tokens, shared)

    def _ranked(self, without: Collection[WorkerId] = ()) -> Decision:
        """Where a class would rather go to another choice than be late: those in time only, if there are any."""
        decision = self._by.router.ranked(
            self._ctx,
            self._prompt,
            sequence=self._sequence,
            output_tokens=self._output_tokens,
            without={*self._tried, *without} if without else self._tried,
            by_shadow=self._by_shadow,
        )
        if self._target.kind.late == "wait" or self.over:
            return decision
        routes = self._target.kept_by(decision.routes) or decision.routes
        return msgspec.structs.replace(decision, routes=routes)

    @property
    def _queue(self) -> str:
        return queue_of(self._ctx.model.name, background=self.background)

    def _room(self) -> WaitingRoom[Placed]:
        return self._by.room(self._queue)

    def _shared_routes(self, decision: Decision, known: dict[WorkerId, Route]) -> list[SharedRoute]:
        """In Redis a route is a worker that has room in its window; of two over one worker the better counts."""
        ranking = {computes_at(route): route for route in reversed(decision.routes)}
        known.update(ranking)
        return [self._shared_route(ranking[worker]) for worker in list(ranking)[: -ROUTES_MAX - 1 : -1]]

    def _shared_route(self, route: Route) -> SharedRoute:
        """What it costs there, however many tokens are queued by then."""
        worker = computes_at(route)
        queued = self._by.fleet[worker].load.all_tokens_queued
        return SharedRoute(
            worker,
            self._uncached(route),
            route.cost_ms - route.ms_per_queued_token * queued,
            route.ms_per_queued_token,
        )

    def _asked(self, ranking: Ranking) -> Asked:
        prompt, best = self._prompt, ranking[0] if ranking else None
        cached = min(best.matched_tokens, prompt.prompt_tokens) if best is not None else 0
        uncached = prompt.prompt_tokens - cached
        return Asked(
            tenant=self._ctx.tenant.id,
            weight=self._ctx.tenant.plan.weight,
            cost=self._bounds.costs.units(
                uncached_tokens=uncached, cached_tokens=cached, output_tokens=self._output_tokens
            ),
            uncached_tokens=uncached,
            cached_tokens=cached,
            worker=computes_at(best) if best is not None and cached else "",
            deadline=self._target.at,
            service_class=self._target.kind.name,
            level=self._target.kind.level,
        )

    def _placed(self, route: Route, uncached: int, shared: SharedTicket) -> Placed:
        assert self._ticket is not None
        return seated(self._by, self._ctx, self._prompt, route, uncached, shared, self._ticket)

    def _patience(self, room: WaitingRoom[Placed], ticket: Ticket) -> Patience | None:
        """What ends its waiting, besides the room's own bound."""
        ends = self._target.patience(room, ticket)
        if self._target.kind.background:
            return ends
        at = self._overflow.goes_over_at(ticket.arrived_at, self._target.kind.ttft_seconds, self._tried)
        if at is None or (ends is not None and ends.until <= at):
            return ends
        return Patience(at, lambda _: GoesOver())

    def _waits(self, decision: Decision) -> None:
        if self._progress.queued_at is None:
            self._progress.queued_at = self._by.clock()
        if self._by.bounds.preempts and not self.background:
            self._by.preempt(decision.routes, self._uncached)

    def _uncached(self, route: Route) -> int:
        return uncached_tokens(self._prompt.prompt_tokens, route)

    @property
    def _kv_tokens(self) -> int:
        return self._prompt.prompt_tokens + self._output_tokens
