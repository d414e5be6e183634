"""The wait for the first worker of a model, which an autoscaler may be starting.

    no worker --the model has first_worker_seconds_max--> waits, is counted --a worker serves it--> ranked
                                                            |--this time is over--> no_worker
                                                            '--its client's timeout is over--> deadline_exceeded

These requests are in no waiting room, since there is nothing to rank and no turn to give.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from gateway.dispatch.pending_request import PendingRequest
from gateway.domain.errors import ClientTimeoutPassed, Overloaded
from gateway.fleet.fleet import Fleet


class FirstWorkerWait:
    """The requests that wait for the first worker of their model.

    `clock`: seconds on the monotonic clock.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock
        self.waiting: dict[asyncio.Future[None], tuple[str, str]] = {}
        """Model and service class of each request that waits."""
        self._closing: Exception | None = None

    def counts(self) -> "Counter[tuple[str, str]]":
        """Return how many requests wait, by model and service class."""
        return Counter(self.waiting.values())

    async def wait(self, pending: PendingRequest, requests_max: int) -> bool:
        """Wait for the first worker of the request's model, and return whether there is one.

        `requests_max` bounds how many requests may wait. Raises Overloaded,
        ClientTimeoutPassed, and what `close` was given.
        """
        model, ticket = pending.ctx.model, pending.ticket
        if not model.first_worker_seconds_max or pending.failed_workers or ticket is None:
            return False
        if self._fleet.serving(model.name):
            return False  # It has workers, but none that could take this request.
        until, expires_at = ticket.arrived_at + model.first_worker_seconds_max, pending.ctx.expires_at
        client_gives_up = False
        if expires_at is not None and expires_at < until:
            until, client_gives_up = expires_at, True
        if self._closing is not None:
            raise self._closing
        if len(self.waiting) >= requests_max:
            raise Overloaded(model.first_worker_seconds_max)
        woken = asyncio.get_running_loop().create_future()
        self.waiting[woken] = model.name, pending.service_class.name
        if pending.progress.queued_at is None:
            pending.progress.queued_at = self._clock()
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())):
                await woken
        except TimeoutError:
            if client_gives_up:
                raise ClientTimeoutPassed from None
            return False
        finally:
            del self.waiting[woken]
        return True

    def fleet_changed(self) -> None:
        """Wake the requests whose model has a worker now."""
        for woken, (model, _) in self.waiting.items():
            if not woken.done() and self._fleet.serving(model):
                woken.set_result(None)

    def close(self, error: Exception) -> None:
        """End every wait with this error, also those that begin later."""
        self._closing = error
        for woken in self.waiting:
            if not woken.done():
                woken.set_exception(error)
