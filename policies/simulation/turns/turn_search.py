"""The search of a simulated queue for the request that goes next, in the order of turns.

next_of_one     one gateway gives turns: those whose own worker is full need not be looked at
next_of_all     all gateways give turns together, as in Redis: looks in vain are kept (passed_over.py)
"""

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Protocol

from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.passed_over import VainLook, is_no_wider
from policies.admission.search_bounds import PASSED_OVER_MAX
from policies.routing.protocol import Route
from policies.service_class import ServiceClass
from policies.simulation.turns.dispatching import Dispatching, TooLate, TurnTerms
from policies.simulation.turns.turn_queue import TurnQueue
from policies.simulation.turns.waiting_tickets import FlowHeadSearch


class Turns(Protocol):
    """The interface of the waiting requests for a search."""

    def window(self, number: int, now: float) -> DispatchWindow:
        """Return the window of a worker for a request."""
        ...

    def terms(self, number: int, now: float, window: DispatchWindow | None = None) -> TurnTerms:
        """Return the terms on which a request may be sent now."""
        ...

    def refuse(self, number: int, error: str) -> None:
        """End a request that was not sent with this error."""
        ...


class PassedOver(set[int]):
    """The requests that one round has passed over; `looks`: how many of them it has looked at."""

    looks = 0
    most = 0
    """How many may be passed over, once a window is known."""

    def ends(self) -> bool:
        """Return whether the round ends: it has found no room for one more than may be passed over."""
        return self.looks > PASSED_OVER_MAX or len(self) > self.most


class TurnSearch:
    """Finds the next request of a queue, and its route."""

    def __init__(
        self,
        turns: Turns,
        dispatching: Dispatching,
        classes: Mapping[str, ServiceClass],
        *,
        of_all_gateways: bool,
    ) -> None:
        """`of_all_gateways`: several gateways give turns together, each with loads of its own."""
        self._turns = turns
        self._dispatching = dispatching
        self._classes = classes
        self._of_all_gateways = of_all_gateways
        self._vain_looks: dict[int, tuple[VainLook, TurnTerms]] = {}
        """Of requests that wait, in a queue of all gateways."""

    def forget_look(self, number: int) -> None:
        """Look at a request again, though it was looked at in vain."""
        self._vain_looks.pop(number, None)

    def next_of_one(
        self, queue: TurnQueue, heads: FlowHeadSearch, closed: ClosedWorkers, now: float
    ) -> tuple[int, Route] | None:
        """Return the request that goes next and its route; `heads` passes over the requests before it."""
        number = queue.next_number(now) if self._of_all_gateways else queue.any_number()
        if number is None:
            return None
        window = self._turns.window(number, now)
        may_go = partial(self._dispatching.may_go, window_tokens=window.wide, closed=closed)
        # With classes a look may refuse a request as late; several gateways have windows of their own.
        always_looks = self._classes or self._of_all_gateways
        while (
            heads.passed_over_count <= queue.passed_over_max
            and (always_looks or self._dispatching.any_room(window.widest, closed))
            and (number := queue.next_number(now, heads, may_go if window.awaits_one else None)) is not None
        ):
            try:
                route = self._dispatching.route(number, self._turns.terms(number, now), closed, now)
            except TooLate:
                queue.leave(number)
                self._turns.refuse(number, "target_missed")
                continue
            if route is not None:
                return number, route
            queue.pass_over(heads, number)
        return None

    def next_of_all(
        self, queue: TurnQueue, passed_over: PassedOver, closed: ClosedWorkers, now: float
    ) -> tuple[int, Route] | None:
        """Return the same in a queue of all gateways, which keeps looks in vain (passed_over.py)."""
        if passed_over.ends():
            return None
        window: DispatchWindow | None = None
        with closing(queue.in_turn(now, passed_over)) as in_turn:
            for number in in_turn:
                window = window or self._turns.window(number, now)
                passed_over.most = window.passed_over_max if queue.passed_over_max else 0
                terms = self._turns.terms(number, now, window)
                if self._is_vain(number, terms, closed):
                    passed_over.add(number)
                    if passed_over.ends():
                        return None
                    continue
                try:
                    route = self._dispatching.route(number, terms, closed, now)
                except TooLate:
                    queue.leave(number)
                    self._turns.refuse(number, "target_missed")
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
        return self.next_of_all(queue, passed_over, closed, now)

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
        """Keep a look in vain; not where it depends on the time that is left."""
        look = self._dispatching.vain_look(number)
        if look is not None and terms.due_at is None:
            self._vain_looks[number] = look, terms
