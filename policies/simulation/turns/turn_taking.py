"""Requests of a simulation that take turns as in the real gateway, by queue policy and service class.

    arrive --- none waits, a worker has room ------------------------------------------> sent
       |                                                                                  ^
       +--> waits: interactive classes --turns, in the order of the queue policy----------+
       |           batch work ----------turns that the others leave-----------------------+
       +--> refused or made batch work: the target of its class cannot be kept

Without service classes all requests are of the class `chat`, and none is refused.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import little_work
from policies.admission.waiting_bounds import shed_after_seconds
from policies.cell_turns import QueueProgress, turn_bounds
from policies.routing.protocol import Route
from policies.service_class import BATCH, CHAT, ServiceClass
from policies.simulation.trace import TraceRequest
from policies.simulation.turns.dispatching import Dispatching, TooLate, TurnTerms
from policies.simulation.turns.queue_rule import QueueRule
from policies.simulation.turns.traffic_window import TrafficWindow
from policies.simulation.turns.turn_queue import TurnQueue
from policies.simulation.turns.turn_search import PassedOver, TurnSearch


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
        self._classes = classes
        self._dispatching = dispatching
        batch_seconds = classes.get(BATCH.name, BATCH).ttft_seconds
        self._window_of_traffic = TrafficWindow(window_tokens, batch_seconds, workers=workers)
        self._searches = TurnSearch(self, dispatching, classes, of_all_gateways=of_all_gateways)
        self._of: dict[int, tuple[TraceRequest, ServiceClass, float]] = {}
        """By number: the request, its class, and its tenant's share of the work, with it."""

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
        flood = queue.flood_of(request.tenant)
        ms_per_token = self._dispatching.ms_per_token(number)
        self._window_of_traffic.see(
            service_class,
            request.tenant,
            uncached_tokens,
            now,
            crowds=crowds,
            flood=flood,
            ms_per_token=ms_per_token,
        )
        if arrives:
            little = little_work(service_class.ttft_seconds, ms_per_token=ms_per_token)
            work_share = self._window_of_traffic.work_share(request.tenant, now, tokens_min=little)
            self._of[number] = request, service_class, work_share
        at_once = not len(queue) and (queue is self._interactive or not len(self._interactive))
        if at_once and queue.by_tag:
            # A gateway sends its worker with the request to the queue of all gateways.
            self._await_worker(number, queue, now)
        terms = replace(self.terms(number, now), narrow=service_class.background)
        try:
            route = (
                self._route(number, terms, ClosedWorkers(), now) if at_once or terms.refused_late else None
            )
        except TooLate:
            if service_class.late == "demote":
                self._of[number] = request, self._classes.get(BATCH.name, BATCH), terms.work_share
                self.arrive(number, request, uncached_tokens, output_tokens, now)
            else:
                self.refuse(number, "target_missed")
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
        """Return a worker's narrow window in tokens, where none is filled; `ms_per_token`: the workers' speed."""
        return self._window_of_traffic.window(ms_per_token, (), now).narrow

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
            self._searches.forget_look(due)
        if not len(queue):
            return
        closed = ClosedWorkers()
        if queue.by_tag:
            search = partial(self._searches.next_of_all, queue, PassedOver(), closed, now)
        else:
            search = partial(self._searches.next_of_one, queue, queue.search(now), closed, now)
        while (found := search()) is not None:
            number, route = found
            queue.take()
            self._searches.forget_look(number)
            self._see_turn(number, queue, now)
            self._dispatching.send(number, route, now)

    def _see_turn(self, number: int, queue: TurnQueue, now: float) -> None:
        """Note that a request had its turn after a wait."""
        request, service_class, _ = self._of[number]
        self._window_of_traffic.see_turn(
            service_class,
            request.tenant,
            self._dispatching.tokens(number)[0],
            now,
            crowds=queue.waiting_of(request.tenant) > 0,
            flood=queue.flood_of(request.tenant),
        )

    def _await_worker(self, number: int, queue: TurnQueue, now: float) -> None:
        """Let a request wait for its own worker, where none goes before others."""
        if queue.passed_over_max and self.window(number, now).awaits_one:
            awaited = self._dispatching.await_worker(number, now)
            if not queue.by_tag:
                queue.await_worker(number, awaited)

    def _route(self, number: int, terms: TurnTerms, closed: ClosedWorkers, now: float) -> Route | None:
        return self._dispatching.route(number, terms, closed, now)

    def terms(self, number: int, now: float, window: DispatchWindow | None = None) -> TurnTerms:
        """Return the terms on which a request may be sent now."""
        request, service_class, work_share = self._of[number]
        background = service_class.background
        window = window or self.window(number, now)
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

    def window(self, number: int, now: float) -> DispatchWindow:
        """Return the window of a worker for a request."""
        fillable = self._dispatching.fillable_workers()
        ms_per_token = self._dispatching.ms_per_token(number)
        return self._window_of_traffic.window(
            ms_per_token, fillable, now, partial(self._dispatching.speed, number)
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
        self.refuse(number, error)
        self.give_turns(now)

    def refuse(self, number: int, error: str) -> None:
        """End a request that was not sent with this error."""
        self._of.pop(number, None)
        self._dispatching.refuse(number, error)


def class_of(request: TraceRequest, classes: Mapping[str, ServiceClass]) -> ServiceClass | None:
    """Return the request's service class, `chat` if it names none of these; None without any."""
    return classes.get(request.service_class) or classes.get(CHAT.name, CHAT) if classes else None
