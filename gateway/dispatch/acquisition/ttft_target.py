"""The TTFT target of a service class: which routes meet it, and what happens to a request if none does.

wait_rules.py ends the wait of a request whose target has passed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gateway.dispatch.pending_request import PendingRequest
from gateway.domain.errors import ClientTimeoutPassed, TargetMissed
from gateway.fleet.fleet import Fleet
from gateway.queueing.waiting_room import WaitingRoom
from policies.admission.ttft_chance import MeetsTarget, has_a_chance, in_time
from policies.routing.protocol import Ranking, Route


class Demoted(Exception):
    """The request has become a batch request, since no worker could meet its TTFT target."""


def tokens_to_compute(prompt_tokens: int, route: Route) -> int:
    """Return the prompt tokens that the route's worker has to compute, at least 1."""
    return max(1, prompt_tokens - route.matched_tokens)


class TtftTargets:
    """Holds requests to the TTFT of their service class. `clock`: seconds on the monotonic clock."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock

    def routes_in_time(self, pending: PendingRequest, routes: Ranking) -> Sequence[Route]:
        """Return the routes that can meet the request's target."""
        due_at = target_at(pending)
        return [route for route in routes if self._meets(in_time, pending, route, due_at)]

    def preferred(self, pending: PendingRequest, routes: Ranking) -> Ranking:
        """Return the routes that the request may take.

        These are all routes if its class lets late requests wait, or if no route is in time; else those in time.
        """
        if pending.service_class.late == "wait":
            return routes
        return tuple(self.routes_in_time(pending, routes)) or routes

    def tokens_in_time(self, pending: PendingRequest, route: Route) -> int:
        """Return how many tokens the worker may compute until the first token is due, its own included."""
        speed = self._fleet[route.prefill_worker or route.worker].speed
        left_ms = 1000 * (target_at(pending) - self._clock()) - speed.fixed_ms
        return max(0, int(left_ms / speed.ms_per_token))

    def check(
        self, pending: PendingRequest, routes: Ranking, room: WaitingRoom[Any], *, demotes: bool = True
    ) -> None:
        """Check that some route is likely to lead to a first token in time.

        Raises ClientTimeoutPassed, TargetMissed, Demoted.
        """
        service_class, expires_at = pending.service_class, pending.ctx.expires_at
        if not routes:
            return
        if expires_at is not None and not self._has_a_chance(pending, routes, expires_at):
            raise ClientTimeoutPassed
        if service_class.late not in ("reject", "demote") or (service_class.late == "demote" and not demotes):
            return
        if self._has_a_chance(pending, routes, target_at(pending)):
            return
        if service_class.late == "demote":
            raise Demoted
        raise TargetMissed(service_class.name, room.retry_after(pending.ctx.tenant.id))

    def _has_a_chance(self, pending: PendingRequest, routes: Ranking, due_at: float) -> bool:
        return any(self._meets(has_a_chance, pending, route, due_at) for route in routes)

    def _meets(self, meets: MeetsTarget, pending: PendingRequest, route: Route, due_at: float) -> bool:
        worker = self._fleet[route.prefill_worker or route.worker]
        ahead = worker.load.all_tokens_queued - worker.load.computed(worker.speed)
        tokens = ahead + tokens_to_compute(pending.prompt.prompt_tokens, route)
        return meets(worker.speed, worker.learnt.fit, tokens, 1000 * (due_at - self._clock()))


def target_at(pending: PendingRequest) -> float:
    """Return when the request's first token is due, on the monotonic clock."""
    return pending.ctx.received_at + pending.service_class.ttft_seconds
