"""When a request's first token should be there, what can keep that, and what becomes of it if nothing can."""

from collections.abc import Callable
from typing import Any

from gateway.domain.context import RequestContext
from gateway.domain.errors import AdmissionTimeout, DeadlinePassed, TargetMissed
from gateway.fleet.fleet import Fleet
from gateway.queueing.waiting_room import Patience, WaitingRoom
from policies.admission.waiting_room import shed_after_seconds
from policies.latency_model import predicted_ttft_ms
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Ranking, Route

SAMPLES_MIN = 8
"""First tokens of a worker before anybody is turned away for what is expected of it."""


def uncached_tokens(prompt_tokens: int, route: Route) -> int:
    """What a prompt would have to have computed on a route; never nothing."""
    return max(1, prompt_tokens - route.matched_tokens)


class Demoted(Exception):
    """It goes on as a batch request."""


class Target:
    """`kind`: its service class; demotion changes it."""

    def __init__(
        self,
        ctx: RequestContext,
        fleet: Fleet,
        prompt_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self.kind = ctx.service_class
        self._ctx = ctx
        self._fleet = fleet
        self._prompt_tokens = prompt_tokens
        self._clock = clock

    @property
    def at(self) -> float:
        """When the first token should be there."""
        return self._ctx.received_at + self.kind.ttft_seconds

    def kept_by(self, routes: Ranking) -> list[Route]:
        """The routes that can keep it."""
        return [route for route in routes if self._by_then(route, self.at)]

    def check(self, routes: Ranking, room: WaitingRoom[Any], *, demotes: bool = True) -> None:
        """Raises DeadlinePassed, TargetMissed, Demoted where no route leads to a first token in time."""
        expires, kind = self._ctx.expires_at, self.kind
        if not routes:
            return
        if expires is not None and not any(self._by_then(route, expires) for route in routes):
            raise DeadlinePassed
        if kind.late not in ("reject", "demote") or (kind.late == "demote" and not demotes):
            return
        if self.kept_by(routes):
            return
        if kind.late == "demote":
            raise Demoted
        raise TargetMissed(kind.name, room.retry_after(self._ctx.tenant.id))

    def patience(self, room: WaitingRoom[Any], ticket: Ticket) -> Patience | None:
        """What ends its waiting, besides the room's own bound."""
        kind, ends = self.kind, list[Patience]()
        if self._ctx.expires_at is not None:
            ends.append(Patience(self._ctx.expires_at, lambda _: DeadlinePassed()))
        if kind.late == "reject":
            ends.append(Patience(self.at, lambda retry: TargetMissed(kind.name, retry)))
        if kind.late == "demote":
            ends.append(Patience(self.at, lambda _: Demoted()))
        if kind.sheds:
            since = room.standing_since
            stands = self._clock() - since if since is not None else 0.0
            seconds = shed_after_seconds(kind.ttft_seconds, stands)
            ends.append(Patience(ticket.arrived_at + seconds, lambda retry: AdmissionTimeout(seconds, retry)))
        return min(ends, key=lambda end: end.until, default=None)

    def _by_then(self, route: Route, moment: float) -> bool:
        """Can a first token be expected from there by then? Of a worker that is not known yet it can."""
        worker = self._fleet[route.prefill_worker or route.worker]
        if worker.learnt.fit.samples < SAMPLES_MIN:
            return True
        ahead = worker.load.all_tokens_queued - worker.load.computed(worker.speed)
        tokens = ahead + uncached_tokens(self._prompt_tokens, route)
        return self._clock() + predicted_ttft_ms(worker.speed, tokens) / 1000 <= moment
