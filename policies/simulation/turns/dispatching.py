"""Dispatching: the interface of a simulation for turn taking, and the terms on which it sends a request."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.passed_over import VainLook, WorkerAhead
from policies.routing.protocol import Route
from policies.simulation.turns.waiting_tickets import Awaited
from radix_cache.match import WorkerId
from workers.worker import Speed


class TooLate(Exception):
    """No worker can meet the request's target for the first token."""


class TurnTerms(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Dispatching(Protocol):
    """The interface of the simulation for turn taking."""

    def route(self, number: int, terms: TurnTerms, closed: ClosedWorkers, now: float) -> Route | None:
        """Return the route that a request takes now; None if it waits. Raises TooLate."""
        ...

    def vain_look(self, number: int) -> VainLook | None:
        """Return the loads with which the request last found no route."""
        ...

    def ahead(self, number: int, worker: WorkerId) -> WorkerAhead:
        """Return the tokens and streams ahead of a worker, by the view that gives the request its turn."""
        ...

    def send(self, number: int, route: Route, now: float) -> None:
        """Send a request to the route's worker."""
        ...

    def begin_to_wait(self, number: int) -> None:
        """Note that a request waits."""
        ...

    def await_worker(self, number: int, now: float) -> Awaited:
        """Let a request wait for its best worker, with what others wait for counted, and return that worker."""
        ...

    def may_go(self, awaited: Awaited, window_tokens: int, closed: ClosedWorkers) -> bool:
        """Return whether this awaited worker may have room; True for None, which is no certain one."""
        ...

    def any_room(self, window_tokens: int, closed: ClosedWorkers) -> bool:
        """Return whether a worker that is not closed has room in such a window, by the only gateway's view."""
        ...

    def tokens(self, number: int) -> tuple[int, int]:
        """Return the uncached prompt tokens of a request on its best worker, and its expected output tokens."""
        ...

    def refuse(self, number: int, error: str) -> None:
        """End a request that was not sent with this error."""
        ...

    def ms_per_token(self, number: int) -> float:
        """Return the workers' mean prefill time of a token, by the view of the request's gateway."""
        ...

    def speed(self, number: int, worker: WorkerId) -> Speed:
        """Return the speed of a worker that the request's gateway has learnt or been given."""
        ...

    def fillable_workers(self) -> Sequence[WorkerId]:
        """Return the workers that may be filled, in the order of their ids."""
        ...

    def at(self, time: float, happens: Callable[[float], None]) -> None:
        """Let something happen at this time."""
        ...
