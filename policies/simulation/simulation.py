"""A discrete-event simulation: plays a trace against simulated engines, with the real policies deciding.

    arrival --> policy ranks by this gateway's view  --> engine --> first token --> end
                   ^                                       |  stored, evicted     (events, perhaps late or lost)
                   +---------- loads, predictions ---------+------------------> index

The outcomes depend on the arguments alone: the same seed gives the same outcomes.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from policies.admission.awaited_tokens import own_worker_route
from policies.admission.closed_workers import ClosedWorkers
from policies.admission.passed_over import VainLook, WorkerAhead
from policies.load_order.least_loaded import RANKED_MAX
from policies.routing.protocol import Route, RouteQuery, RoutingPolicy
from policies.simulation.cells import PERIOD_SECONDS, CellExchange, TenantCells
from policies.simulation.engines.block_cache import BlockCache
from policies.simulation.engines.simulated_engine import SimulatedCache, SimulatedEngine, SimulatedJob
from policies.simulation.gateway_announcements import GatewayAnnouncements, InFlightRequest
from policies.simulation.gateway_view import Expected, GatewayView
from policies.simulation.index_events import IndexEvents
from policies.simulation.known_blocks import BlockPaths, KnownBlocks, KnownPrefixes
from policies.simulation.outcome import RunResult
from policies.simulation.scenario import FleetAction, FleetChange, Scenario
from policies.simulation.simulation_parts import engines_of, gateways_of, outcomes_of, turns_of
from policies.simulation.timeline import Timeline
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.turns.dispatching import TurnTerms
from policies.simulation.turns.turn_taking import TurnTaking
from policies.simulation.turns.waiting_tickets import Awaited, AwaitedWorker
from radix_cache.match import WorkerId
from workers.worker import Speed

PROGRESS_REQUESTS = 100
ONE_CELL = (0,)


class Simulation:
    """One run of a trace with a policy in a scenario.

    `caches` and `known` replace the engines' block caches and the prefix index, where they are not the plain ones.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        policy: RoutingPolicy,
        scenario: Scenario,
        *,
        seed: int = 0,
        paths: BlockPaths | None = None,
        caches: Sequence[SimulatedCache] | None = None,
        known: KnownPrefixes | None = None,
        bounds: bool = False,
    ) -> None:
        """`bounds`: whether outcomes have the least TTFT that the engines' own steps allow."""
        self._trace = trace
        self._bounds = bounds
        self._scenario = scenario
        self._random = Random(f"radixgate {seed}")
        self._events = Timeline()
        blocks = scenario.kv_tokens // BLOCK_TOKENS
        self._caches = caches or [BlockCache(blocks) for _ in range(scenario.workers)]
        self._blocks_max = blocks
        self._engines = engines_of(scenario, self._caches)
        self._known = known or KnownBlocks(paths or BlockPaths(trace))
        self._index_events = IndexEvents(self._known, scenario, self._events, self._random)
        self._ids = [WorkerId(f"w{at:04}") for at in range(scenario.workers)]
        self._places = {worker: at for at, worker in enumerate(self._ids)}
        self._set_up(range(scenario.workers))
        gateways = gateways_of(scenario, policy, self._ids, self._random, seed)
        self._gateways = gateways.all
        self._cells = TenantCells(scenario.cells)
        self._exchange = CellExchange(
            gateways.views, [self._cells.homes(cell, self._ids) for cell in range(scenario.cells)]
        )
        for cell in range(scenario.cells if scenario.cells > 1 else 0):
            self._exchange.take_window(cell, scenario.window_tokens or 0)
        self._announcements = GatewayAnnouncements(
            [gateway.view for gateway in self._gateways],
            scenario,
            self._events,
            shared=gateways.share_views,
            queue_view=gateways.queue_view,
        )
        self._turns = turns_of(scenario, self)
        self._queries: dict[int, tuple[int, RouteQuery]] = {}
        self._sent: dict[int, InFlightRequest] = {}
        self._predicted_tokens = 0
        self._all_arrived = False
        self._outcomes = outcomes_of(trace, scenario)

    def run(self, progress: Callable[[int], None] | None = None) -> RunResult:
        """Simulate until the last request has ended; `progress` is called with the number of further arrivals."""
        for change in self._scenario.changes:
            self._events.at(change.at, partial(self._change, change))
        cells = self._scenario.cells
        for cell in range(cells if cells > 1 else 0):
            # Each at its own moments.
            self._events.at(PERIOD_SECONDS * cell / cells, partial(self._exchange_loads, cell))
        for number, request in enumerate(self._trace):
            self._events.pass_until(request.at)
            self._arrive(number, request.at)
            if progress is not None and (number + 1) % PROGRESS_REQUESTS == 0:
                progress(PROGRESS_REQUESTS)
        self._all_arrived = True
        self._events.pass_all()
        if progress is not None:
            progress(len(self._trace) % PROGRESS_REQUESTS)
        return RunResult(
            outcomes=tuple(self._outcomes),
            seconds=max((o.last_at for o in self._outcomes if o.last_at is not None), default=0.0),
            computed_tokens=tuple(engine.computed_tokens for engine in self._engines),
            busy_seconds=tuple(engine.busy_seconds for engine in self._engines),
            predicted_tokens=self._predicted_tokens,
        )

    def at(self, time: float, happens: Callable[[float], None]) -> None:
        """Let something happen at this time."""
        self._events.at(time, happens)

    # Requests

    def _arrive(self, number: int, now: float) -> None:
        request = self._trace[number]
        if -(-(request.prompt_tokens + request.output_tokens) // BLOCK_TOKENS) > self._blocks_max:
            self._outcomes[number].error = "context_length_exceeded"
            return
        if self._bounds:
            least = min(engine.soonest_ttft(request, now) for engine in self._engines)
            self._outcomes[number].soonest_ttft = least
        at = self._gateway_of(request)
        self._queries[number] = (at, self._gateways[at].query(request))
        self._place(number, now)

    def _gateway_of(self, request: TraceRequest) -> int:
        """Return the gateway that serves a request: any one of its tenant's cell."""
        cells = self._scenario.cells
        gateways = len(self._gateways) // cells
        at = self._random.randrange(gateways) if gateways > 1 else 0
        return at * cells + (self._cells.of(request.tenant) if cells > 1 else 0)

    def _turns_of(self, number: int) -> TurnTaking:
        """Return the queue of the cell whose gateway has the request."""
        return self._turns[self._queries[number][0] % self._scenario.cells]

    def _place(self, number: int, now: float) -> None:
        """Send a request, or let it wait."""
        if not self._up:
            self._end(number, "no_worker")
            return
        request = self._trace[number]
        if self._turns:
            uncached, output = self.tokens(number)
            gateway = self._queries[number][0]
            self._turns_of(number).arrive(number, request, uncached, output, now)
            self._announcements.take_reply(gateway, range(len(self._ids)), now)
            return
        route = self._route(number, now)
        if route is not None:
            self.send(number, route, now)
            return
        self._gateways[self._queries[number][0]].wait(number, self.tokens(number)[0], now)
        self._view_of(number).prefixes.wait(number, request)

    def _view_of(self, number: int) -> GatewayView:
        """Return the view of the gateway that has the request."""
        return self._gateways[self._queries[number][0]].view

    def route(self, number: int, terms: TurnTerms, closed: ClosedWorkers, now: float) -> Route | None:
        """Return the route that a request takes in its turn; None if it waits. Raises TooLate."""
        return self._route(number, now, closed, terms)

    def vain_look(self, number: int) -> VainLook | None:
        """Return the loads with which the request last found no route."""
        return self._gateways[self._queries[number][0]].vain_look()

    def ahead(self, number: int, worker: WorkerId) -> WorkerAhead:
        """Return the tokens and streams ahead of a worker, by the view that gives the request its turn."""
        return self._gateways[self._queries[number][0]].ahead(self._places[worker])

    def begin_to_wait(self, number: int) -> None:
        """Note that a request waits for its turn."""
        self._view_of(number).prefixes.wait(number, self._trace[number])

    def await_worker(self, number: int, now: float) -> Awaited:
        """Let a request wait for its best worker, with what others wait for counted, and return that worker."""
        at, query = self._queries[number]
        gateway, request = self._gateways[at], self._trace[number]
        gateway.view.stop_awaiting(number)
        known = self._known.match(request.blocks)
        waits = gateway.view.prefixes.is_waiting(number)
        ranking, places = gateway.ranking(query, request, known, self._up, self._places, now, waits=waits)
        own = own_worker_route(ranking) if len(self._up) <= RANKED_MAX else None
        if own is None:
            return None
        uncached = max(1, request.prompt_tokens - own.matched_tokens)
        gateway.view.await_worker(number, places[own.worker], uncached)
        return AwaitedWorker(at, places[own.worker])

    def may_go(self, awaited: Awaited, window_tokens: int, closed: ClosedWorkers) -> bool:
        """Return whether this awaited worker may have room; True for None, which is no certain one."""
        if awaited is None:
            return True
        view = self._gateways[awaited.gateway].view
        return self._ids[awaited.worker] not in closed and view.fits(awaited.worker, 1, window_tokens)

    def any_room(self, window_tokens: int, closed: ClosedWorkers) -> bool:
        """Return whether a worker that is not closed has room in such a window, by the only gateway's view."""
        fits = self._gateways[0].view.fits
        return any(fits(at, 1, window_tokens) and self._ids[at] not in closed for at in self._up)

    def tokens(self, number: int) -> tuple[int, int]:
        """Return the uncached prompt tokens of a request on its best worker, and its expected output tokens."""
        request = self._trace[number]
        prefixes = self._view_of(number).prefixes
        held = prefixes.longest_match(
            self._known.match(request.blocks), request.blocks, waits=prefixes.is_waiting(number)
        )
        return max(1, request.prompt_tokens - held * BLOCK_TOKENS), self._queries[number][1].output_tokens

    def refuse(self, number: int, error: str) -> None:
        """End a request that was not sent with this error."""
        self._view_of(number).stop_waiting(number)
        self._end(number, error)

    def ms_per_token(self, number: int) -> float:
        """Return the workers' mean prefill time of a token, by the view of the request's gateway."""
        return self._view_of(number).speeds.ms_per_token

    def speed(self, number: int, worker: WorkerId) -> Speed:
        """Return the speed of a worker that the request's gateway has learnt or been given."""
        return self._view_of(number).speeds.of[self._places[worker]]

    def fillable_workers(self) -> Sequence[WorkerId]:
        """Return the workers that may be filled, in the order of their ids; none where several cells use them."""
        return self._fillable

    def _route(
        self,
        number: int,
        now: float,
        closed: ClosedWorkers | None = None,
        terms: TurnTerms | None = None,
    ) -> Route | None:
        at, query = self._queries[number]
        request = self._trace[number]
        known = self._known.match(request.blocks)
        gateway = self._gateways[at]
        return gateway.route(
            query,
            request,
            known,
            self._up,
            self._places,
            now,
            ClosedWorkers() if closed is None else closed,
            waits=gateway.view.prefixes.is_waiting(number),
            terms=terms,
            awaited=gateway.view.awaited_worker(number),
        )

    def send(self, number: int, route: Route, now: float) -> None:
        """Send a request to the route's worker."""
        at, query = self._queries[number]
        request, worker = self._trace[number], self._places[route.worker]
        tokens = max(1, request.prompt_tokens - route.matched_tokens)
        expected = Expected(tokens, request.prompt_tokens + query.output_tokens)
        ahead = tokens + self._gateways[at].view.tokens_ahead(worker, now)
        sent = self._sent[number] = InFlightRequest(number, at, worker, expected, ahead, now)
        self._predicted_tokens += route.matched_tokens
        outcome = self._outcomes[number]
        outcome.worker, outcome.attempts = worker, outcome.attempts + 1
        self._announcements.dispatched(sent, request, now)
        engine = self._engines[worker]
        before = engine.ends_at
        engine.submit(SimulatedJob(number, request, now), now)
        self._evictions(worker, now)
        if engine.ends_at is not None and engine.ends_at != before:
            self._events.at(engine.ends_at, partial(self._engine_ends, worker))

    def _end(self, number: int, error: str | None = None) -> None:
        self._outcomes[number].error = error
        self._queries.pop(number, None)

    def _exchange_loads(self, cell: int, now: float) -> None:
        """Exchange a cell's loads and turns with the other cells, and give the turns that follow."""
        view, turns = self._gateways[cell].view, self._turns[cell]
        window = turns.narrow_window(view.speeds.ms_per_token, now)
        self._exchange.exchange(cell, window, now)
        turns.keep_in_step(self._exchange.progress(cell, turns.progress), window * len(self._up))
        self._room_made(now, (cell,))
        if self._sent or self._queries or not self._all_arrived:
            self._events.at(now + PERIOD_SECONDS, partial(self._exchange_loads, cell))

    def _room_made(self, now: float, cells: Iterable[int]) -> None:
        """Send waiting requests of these cells to the workers that have room now."""
        if not self._up:
            return
        for cell in cells if self._turns else ():
            self._turns[cell].give_turns(now)
        if self._turns:
            return
        for gateway in self._gateways:
            for number in gateway.turns(now):
                route = self._route(number, now)
                if route is not None:
                    gateway.leave(number)
                    self.send(number, route, now)

    # Engines

    def _engine_ends(self, worker: int, now: float) -> None:
        """End a step, or a run of steps, of an engine."""
        engine = self._engines[worker]
        if engine.ends_at != now:
            return  # The run was cut in the meantime, or its worker died.
        engine.finish(now)
        for job, blocks in engine.published:
            self._index_events.stored(worker, job.request.blocks[:blocks], now)
        engine.published.clear()
        cells = self._cells_of(engine) if self._scenario.cells > 1 else ONE_CELL
        for job in engine.first_tokens:
            self._first_token(job, now)
        for job in engine.finished:
            self._finished(job, now)
        room = bool(engine.first_tokens or engine.finished)
        engine.first_tokens.clear()
        engine.finished.clear()
        engine.begin(now)
        self._evictions(worker, now)
        if engine.ends_at is not None:
            self._events.at(engine.ends_at, partial(self._engine_ends, worker))
        if room:
            self._room_made(now, cells)

    def _cells_of(self, engine: SimulatedEngine) -> list[int]:
        """Return the cells whose requests have a first token or an end at an engine."""
        gateways = {self._sent[job.number].gateway for job in (*engine.first_tokens, *engine.finished)}
        return sorted({at % self._scenario.cells for at in gateways})

    def _first_token(self, job: SimulatedJob, now: float) -> None:
        outcome, sent = self._outcomes[job.number], self._sent[job.number]
        outcome.first_at = now
        outcome.cached_tokens = job.cached_tokens
        self._announcements.first_token(sent, now)
        view = self._gateways[sent.gateway].view
        view.speeds.learn_first_token(sent.worker, sent.tokens_ahead, 1000 * (now - sent.at))

    def _finished(self, job: SimulatedJob, now: float) -> None:
        outcome, sent = self._outcomes[job.number], self._sent.pop(job.number)
        outcome.last_at = now
        self._announcements.ended(sent, now)
        if self._turns:
            self._turns_of(job.number).finish(job.number, job.cached_tokens)
        gateway = self._gateways[sent.gateway]
        gateway.answered(job.request)
        tpot = outcome.tpot
        if tpot is not None:
            gateway.view.speeds.learn_step(sent.worker, 1000 * tpot)
        self._end(job.number)

    def _evictions(self, worker: int, now: float) -> None:
        cache = self._caches[worker]
        if cache.evicted:
            gone, cache.evicted = cache.evicted, []
            self._index_events.removed(worker, gone, now)

    # Workers come and go

    def _change(self, change: FleetChange, now: float) -> None:
        worker = change.worker
        if change.what is FleetAction.JOIN:
            if worker not in self._up:
                self._set_up([*self._up, worker])
                for gateway in self._gateways:
                    gateway.view.join(worker, now)
                self._follow_up(worker)
                self._room_made(now, range(self._scenario.cells))
            return
        self._set_up(at for at in self._up if at != worker)
        self._follow_up(worker)
        if change.what is FleetAction.KILL:
            self._index_events.restarted(worker)
            for job in self._engines[worker].stop():
                self._lost(job, now)

    def _set_up(self, workers: Iterable[int]) -> None:
        """Set which workers get requests."""
        self._up = sorted(workers)
        self._fillable = [self._ids[worker] for worker in self._up] if self._scenario.cells == 1 else []

    def _follow_up(self, worker: int) -> None:
        """Update the gateways' lists of workers: a worker has come or gone."""
        for gateway in self._gateways:
            gateway.follow(worker, self._up)

    def _lost(self, job: SimulatedJob, now: float) -> None:
        """Handle a request that was lost with its worker: send it again unless its answer has begun."""
        number, outcome, sent = job.number, self._outcomes[job.number], self._sent.pop(job.number)
        if not sent.started:
            self._announcements.first_token(sent, now)
        self._announcements.ended(sent, now)
        if self._turns:
            self._turns_of(number).cancel(number)
        if outcome.first_at is not None:
            self._end(number, "stream_interrupted")
        elif outcome.attempts >= self._scenario.attempts_max:
            self._end(number, "worker_error")
        else:
            self._place(number, now)
