"""Preemption for one urgent request: batch requests give up their room, here or else at another gateway."""

from collections.abc import Callable
from functools import partial

from gateway.dispatch.acquisition.filled_routes import allowed_routes
from gateway.dispatch.acquisition.ttft_target import TtftTargets, tokens_to_compute
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import in_fleet, prefill_worker_of
from gateway.dispatch.preemption import Preemption
from gateway.fleet.fleet import Fleet
from gateway.queueing.shared.preemption_requests import Need, PreemptionRequests
from gateway.queueing.shared.queue_store import ROUTES_MAX
from gateway.queueing.shared.shared_turns import SharedTurns
from policies.admission.dispatch_window import DispatchWindow
from policies.routing.protocol import Ranking, Route


class UrgentPreemption:
    """Makes batch requests give up room for a request of another class."""

    def __init__(
        self,
        fleet: Fleet,
        queue: SharedTurns,
        targets: TtftTargets,
        preemption: Preemption,
        elsewhere: PreemptionRequests,
    ) -> None:
        self._fleet = fleet
        self._queue = queue
        self._targets = targets
        self._preemption = preemption
        self._elsewhere = elsewhere

    def make_room_in_time(self, pending: PendingRequest, routes: Ranking) -> bool:
        """Make batch requests give up room if no route meets the target; return whether that is enough."""
        if not routes or self._targets.routes_in_time(pending, routes):
            return False
        return self.make_room(pending, routes, partial(self._targets.tokens_in_time, pending))

    def make_room_in_window(self, pending: PendingRequest, routes: Ranking, window: DispatchWindow) -> bool:
        """Make batch requests give up room for this one in the window of a worker that it may wait for.

        Returns whether they do so here.
        """
        patient = window.is_patient(pending.service_class.ttft_seconds)

        def tokens(route: Route) -> int:
            return window.tokens(prefill_worker_of(route), is_narrow=False, patient=patient)

        allowed = allowed_routes(routes, pending.prompt.prompt_tokens, window, patient=patient)
        return self.make_room(pending, allowed, tokens)

    def make_room(self, pending: PendingRequest, routes: Ranking, window_of: Callable[[Route], int]) -> bool:
        """Make batch requests give up room for this one, if that is enough: here, or else at another gateway.

        `window_of` returns the tokens that the route's worker may have ahead. Returns whether they do so here.
        """
        needs = [
            Need(
                prefill_worker_of(route),
                tokens_to_compute(pending.prompt.prompt_tokens, route),
                self._fleet[prefill_worker_of(route)].load.all_tokens_queued,
                window_of(route),
            )
            for route in routes[:ROUTES_MAX]
            if in_fleet(self._fleet, route)  # A worker may have left while Redis was asked.
        ]
        if self._preemption.make_room(needs):
            return True
        if self._queue.membership_of(pending.queue_name, pending.ctx.tenant.id).shared:
            self._elsewhere.send(needs)
        return False
