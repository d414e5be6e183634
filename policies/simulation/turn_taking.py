"""Requests of a simulation that take turns as in the real gateway, by queue policy and service class.

    arrive --- none waits, a worker has room ------------------------------------------> sent
       |                                                                                  ^
       +--> waits: interactive classes --turns, in the order of the queue policy----------+
       |           batch work ----------turns that the others leave-----------------------+
       +--> refused or made batch work: the target of its class cannot be kept

Without service classes all requests are of the class `chat`, and none is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import (
    FilledWorkers,
    filled_beside_tenants,
    filled_workers,
    much_demand,
)
from policies.admission.passed_over import VainLook, WorkerAhead, is_no_wider
from policies.admission.search_bounds import PASSED_OVER_MAX
from policies.admission.traffic_in_sight import TrafficInSight
from policies.admission.waiting_bounds import shed_after_seconds
from policies.admission.window_sizes import dispatch_window
from policies.cell_turns import QueueProgress, turn_bounds
from policies.routing.protocol import Route
from policies.service_class import BATCH, CHAT, ServiceClass
from policies.simulation.trace import TraceRequest
from policies.simulation.turn_queue import QueueRule, TurnQueue
from policies.simulation.worker_speeds import MODEL
from radix_cache.match import WorkerId


class TooLate(Exception):
    """No worker can meet the request's target for the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTerms:
    """The terms on which a request may be sent to a worker now."""

    window: DispatchWindow
    narrow: bool
    """Whether the narrow window holds for it."""
    background: bool = False
    patient: bool = False
    """Whether its class fills the workers that urgent classes leave."""
    work_share: float = 0.0
    """Its tenant's share of the work of the last seconds, with it; 0: its tenant was the only one in sight."""
    ahead: bool = False
    """Whether its turn is too far ahead of other cells for a worker that is not idle."""
    due_at: float | None = None
    """When its first token is due, if its class prefers a worker that can meet this; None: it does not."""
    refused_late: bool = False
    """Whether the request is refused, or made batch work, if no worker can meet its target."""


class PassedOver(set[int]):
    """The requests that one round has passed over; `looks`: how many of them it has looked at."""

    looks = 0
    most = 0
    """How many may be passed over, once a window is known."""

    def ends(self) -> bool:
        """Return whether the round ends: it has found no room for one more than may be passed over."""
        return self.looks > PASSED_OVER_MAX or len(self) > self.most


class Dispatching(Protocol):
    """What turn taking needs of the simulation."""

    def route(self, number: int, terms: TurnTerms, closed: ClosedWorkers, now: float) -> Route | None:
        """Return the route that a request takes now; None if it waits. Raises TooLate."""
        ...

    def vain_look(self, number: int) -> VainLook | None:
        """Return the loads with which the request last found no route."""
        ...

    def ahead(self, number: int, worker: WorkerId) -> WorkerAhead:
        """Return what is ahead of a worker, as it is known where the request takes its turn."""
        ...

    def send(self, number: int, route: Route, now: float) -> None:
        """Send a request to the route's worker."""
        ...

    def begin_to_wait(self, number: int) -> None:
        """Note that a request waits."""
        ...

    def await_worker(self, number: int, now: float) -> None:
        """Let a request wait for its best worker, with what others wait for counted."""
        ...

    def may_go(self, number: int, window_tokens: int, closed: ClosedWorkers) -> bool:
        """Return whether the worker that a request waits for may have room; True if it waits for no certain one."""
        ...

    def tokens(self, number: int) -> tuple[int, int]:
        """Return the uncached prompt tokens of a request on its best worker, and its expected output tokens."""
        ...

    def refuse(self, number: int, error: str) -> None:
        """End a request that was not sent with this error."""
        ...

    def ms_per_token(self, number: int) -> float:
        """Return the workers' mean prefill time of a token, as the request's gateway knows it."""
        ...

    def fillable_workers(self) -> Sequence[WorkerId]:
        """Return the workers that may be filled, in the order of their ids."""
        ...

    def at(self, time: float, happens: Callable[[float], None]) -> None:
        """Let something happen at this time."""
        ...


class TurnTaking:
    """Gives turns to the requests of a simulation, known by their number."""

    def __init__(
        self,
        rule: QueueRule,
        window_tokens: int,
        classes: Mapping[str, ServiceClass],
        dispatching: Dispatching,
        *,
        workers: int = 0,
        of_all_gateways: bool = False,
    ) -> None:
        """`classes`: the service classes by name; empty: all requests are of the class `chat`.

        `workers`: how many there are. `of_all_gateways`: several gateways give turns together, as in Redis.
        """
        self._interactive = rule.queue(workers=workers, by_tag=of_all_gateways)
        self._batch = rule.queue(workers=workers, by_tag=of_all_gateways)
        self._window_tokens = window_tokens
        self._workers = workers
        self._classes = classes
        self._dispatching = dispatching
        self._in_sight = TrafficInSight()
        self._of: dict[int, tuple[TraceRequest, ServiceClass, float]] = {}
        """By number: the request, its class, and its tenant's share of the work before it."""
        self._vain_looks: dict[int, tuple[VainLook, TurnTerms]] = {}
        """Of requests that wait, in a queue of all gateways."""

    def arrive(
        self, number: int, request: TraceRequest, uncached_tokens: int, output_tokens: int, now: float
    ) -> None:
        """Send a request, let it wait, or refuse it. The tokens are those that its cost is estimated from."""
        arrives = number not in self._of
        if arrives:
            self._of[number] = request, class_of(request, self._classes) or CHAT, 0.0
        service_class = self._of[number][1]
        queue = self._queue_of(number)
        crowds = queue.waiting_of(request.tenant) > 0
        self._in_sight.see(
            MODEL,
            service_class.ttft_seconds,
            request.tenant,
            now,
            tokens=uncached_tokens,
            crowds=crowds,
            flood=queue.flood_of(request.tenant),
            window_tokens=self._window_tokens,
        )
        if arrives:
            work_share = self._in_sight.work_share(MODEL, request.tenant, now)
            self._of[number] = request, service_class, work_share
        at_once = not len(queue) and (queue is self._interactive or not len(self._interactive))
        if at_once and queue.by_tag:
            self._await_worker(
                number, queue, now
            )  # A gateway names its worker when it asks the queue of all.
        terms = replace(self._terms(number, now), narrow=service_class.background)
        try:
            route = (
                self._route(number, terms, ClosedWorkers(), now) if at_once or terms.refused_late else None
            )
        except TooLate:
            if service_class.late == "demote":
                self._of[number] = request, self._classes.get(BATCH.name, BATCH), terms.work_share
                self.arrive(number, request, uncached_tokens, output_tokens, now)
            else:
                self._refuse(number, "target_missed")
            return
        queue.arrive(
            number, request, uncached_tokens, output_tokens, now, service_class if self._classes else None
        )
        if at_once and queue.try_at_once(number, now) and route is not None:
            queue.take()
            self._dispatching.send(number, route, now)
            return
        queue.wait(number, now)
        self._await_worker(number, queue, now)
        self._dispatching.begin_to_wait(number)
        self._bound_wait(number, queue, now)
        if not at_once:
            self.give_turns(now)  # Earlier requests may wait for other workers than this one.

    def give_turns(self, now: float) -> None:
        """Send waiting requests to the workers that have room now: batch work only if no other request waits."""
        self._give_turns_of(self._interactive, now)
        if not len(self._interactive):
            self._give_turns_of(self._batch, now)

    def narrow_window(self, ms_per_token: float, now: float) -> int:
        """Return the narrow window of a worker, in tokens; `ms_per_token`: the workers' speed."""
        return self._window_at(ms_per_token, now).narrow

    @property
    def progress(self) -> tuple[QueueProgress, ...]:
        """How far its queues have come with their turns."""
        return self._interactive.progress, self._batch.progress

    def keep_in_step(self, others: Sequence[Sequence[QueueProgress]], window_tokens: int) -> None:
        """Follow what other cells have published of their queues; `window_tokens`: of all workers together."""
        for at, queue in enumerate((self._interactive, self._batch)):
            published = (progress[at] for progress in others)
            queue.keep_in_step(turn_bounds(queue.progress, published, window_tokens))

    def finish(self, number: int, cached_tokens: int) -> None:
        """Charge an answered request with what it used."""
        request = self._of[number][0]
        self._queue_of(number).finish(number, request, cached_tokens)
        del self._of[number]

    def cancel(self, number: int) -> None:
        """Take back the charge of a request that was lost with its worker."""
        self._queue_of(number).cancel(number)

    def _queue_of(self, number: int) -> TurnQueue:
        return self._batch if self._of[number][1].background else self._interactive

    def _give_turns_of(self, queue: TurnQueue, now: float) -> None:
        if (due := queue.take_due_estimate(now)) is not None:
            queue.estimate(due, self._of[due][0], *self._dispatching.tokens(due))
            self._await_worker(due, queue, now)
            self._vain_looks.pop(due, None)
        search = self._search_remembered if queue.by_tag else self._search
        passed_over, closed = PassedOver(), ClosedWorkers()
        while (found := search(queue, passed_over, closed, now)) is not None:
            number, route = found
            queue.take()
            self._vain_looks.pop(number, None)
            self._see_turn(number, queue, now)
            self._dispatching.send(number, route, now)

    def _see_turn(self, number: int, queue: TurnQueue, now: float) -> None:
        request, service_class, _ = self._of[number]
        self._in_sight.see_turn(
            MODEL,
            service_class.ttft_seconds,
            request.tenant,
            now,
            tokens=self._dispatching.tokens(number)[0],
            crowds=queue.waiting_of(request.tenant) > 0,
            flood=queue.flood_of(request.tenant),
        )

    def _search(
        self, queue: TurnQueue, passed_over: PassedOver, closed: ClosedWorkers, now: float
    ) -> tuple[int, Route] | None:
        """Return the request that goes next and its route; the requests before it are passed over."""
        may_go = self._those_that_may_go(queue, closed, now)
        while (
            len(passed_over) <= queue.passed_over_max
            and (number := queue.next_number(now, passed_over, may_go)) is not None
        ):
            try:
                route = self._route(number, self._terms(number, now), closed, now)
            except TooLate:
                queue.leave(number)
                self._refuse(number, "target_missed")
                continue
            if route is not None:
                return number, route
            passed_over.add(number)
        return None

    def _await_worker(self, number: int, queue: TurnQueue, now: float) -> None:
        """Let a request wait for its own worker, where none goes before others."""
        if queue.passed_over_max and self._window(number, now).awaits_one:
            self._dispatching.await_worker(number, now)

    def _those_that_may_go(
        self, queue: TurnQueue, closed: ClosedWorkers, now: float
    ) -> Callable[[int], bool] | None:
        """Return what tells whether a waiting request need be looked at; None: all of them."""
        number = queue.next_number(now)
        if number is None or not (window := self._window(number, now)).awaits_one:
            return None
        return lambda number: self._dispatching.may_go(number, window.wide, closed)

    def _search_remembered(
        self, queue: TurnQueue, passed_over: PassedOver, closed: ClosedWorkers, now: float
    ) -> tuple[int, Route] | None:
        """Return the same in a queue of all gateways, which remembers looks in vain (passed_over.py)."""
        if passed_over.ends():
            return None
        window: DispatchWindow | None = None
        with closing(queue.in_turn(now, passed_over)) as in_turn:
            for number in in_turn:
                window = window or self._window(number, now)
                passed_over.most = window.passed_over_max if queue.passed_over_max else 0
                terms = self._terms(number, now, window)
                if self._is_vain(number, terms, closed):
                    passed_over.add(number)
                    if passed_over.ends():
                        return None
                    continue
                try:
                    route = self._route(number, terms, closed, now)
                except TooLate:
                    queue.leave(number)
                    self._refuse(number, "target_missed")
                    break
                if route is not None:
                    return number, route
                self._remember(number, terms)
                passed_over.add(number)
                passed_over.looks += 1
                if passed_over.ends():
                    return None
            else:
                return None
        return self._search_remembered(queue, passed_over, closed, now)

    def _is_vain(self, number: int, terms: TurnTerms, closed: ClosedWorkers) -> bool:
        """Return whether a look is known to be in vain; the workers that the request waits for are then closed."""
        if (known := self._vain_looks.get(number)) is None:
            return False
        look, before = known
        crowds = terms.narrow and not terms.background
        ahead = partial(self._dispatching.ahead, number)
        if (
            (terms.narrow, terms.patient, terms.ahead) != (before.narrow, before.patient, before.ahead)
            or not is_no_wider(terms.window, before.window)
            or not look.holds(ahead, closed, crowds=crowds)
        ):
            return False
        closed.close(look.waits_for, crowds=crowds)
        return True

    def _remember(self, number: int, terms: TurnTerms) -> None:
        """Remember a look in vain; not where it depends on the time that is left."""
        look = self._dispatching.vain_look(number)
        if look is not None and terms.due_at is None:
            self._vain_looks[number] = look, terms

    def _route(self, number: int, terms: TurnTerms, closed: ClosedWorkers, now: float) -> Route | None:
        return self._dispatching.route(number, terms, closed, now)

    def _terms(self, number: int, now: float, window: DispatchWindow | None = None) -> TurnTerms:
        request, service_class, work_share = self._of[number]
        background = service_class.background
        window = window or self._window(number, now)
        queue = self._queue_of(number)
        crowds = window.contended and queue.waiting_of(request.tenant) > 1
        return TurnTerms(
            window=window,
            narrow=background or crowds,
            background=background,
            patient=window.is_patient(
                service_class.ttft_seconds, is_narrow=background or crowds, work_share=work_share
            ),
            work_share=work_share,
            ahead=queue.is_ahead(request.tenant),
            due_at=None if service_class.late == "wait" else request.at + service_class.ttft_seconds,
            refused_late=service_class.late in ("reject", "demote"),
        )

    def _window(self, number: int, now: float) -> DispatchWindow:
        return self._window_at(self._dispatching.ms_per_token(number), now)

    def _window_at(self, ms_per_token: float, now: float) -> DispatchWindow:
        demand = self._in_sight.demand((MODEL,), now)
        return dispatch_window(
            demand,
            contended=self._in_sight.contended((MODEL,), now),
            ms_per_token=ms_per_token,
            tokens_max=self._window_tokens,
            batch_seconds=self._classes.get(BATCH.name, BATCH).ttft_seconds,
            flood=self._in_sight.standing_flood((MODEL,), now),
            filled=self._filled(demand, ms_per_token, now),
            workers=self._workers,
        )

    def _filled(self, demand: Mapping[float, float], ms_per_token: float, now: float) -> FilledWorkers | None:
        workers, tokens_max = self._dispatching.fillable_workers(), self._window_tokens
        if not demand:
            return None
        if len(demand) > 1:
            return filled_workers(demand, workers, ms_per_token=ms_per_token, tokens_max=tokens_max)
        if not self._in_sight.has_several_tenants((MODEL,), now):
            return None
        return filled_beside_tenants(
            self._in_sight.demand_of_others(
                (MODEL,), much_demand(len(workers), ms_per_token=ms_per_token), now
            ),
            workers,
            target_seconds=min(demand),
            ms_per_token=ms_per_token,
            tokens_max=tokens_max,
        )

    def _bound_wait(self, number: int, queue: TurnQueue, now: float) -> None:
        """Let the request's class end its wait."""
        request, service_class, _ = self._of[number]
        if not self._classes:
            return
        if service_class.late in ("reject", "demote"):
            due_at = request.at + service_class.ttft_seconds
            self._dispatching.at(due_at, partial(self._too_late, number, "target_missed"))
        if service_class.sheds:
            seconds = shed_after_seconds(
                service_class.ttft_seconds, now - queue.standing_since(service_class.name)
            )
            self._dispatching.at(now + seconds, partial(self._too_late, number, "admission_timeout"))

    def _too_late(self, number: int, error: str, now: float) -> None:
        if number not in self._of or not self._queue_of(number).leave(number):
            return
        self._refuse(number, error)
        self.give_turns(now)

    def _refuse(self, number: int, error: str) -> None:
        self._of.pop(number, None)
        self._dispatching.refuse(number, error)


def class_of(request: TraceRequest, classes: Mapping[str, ServiceClass]) -> ServiceClass | None:
    """Return the request's service class, `chat` if it names none of these; None without any."""
    return classes.get(request.service_class) or classes.get(CHAT.name, CHAT) if classes else None
