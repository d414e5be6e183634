"""Where a request goes that no worker here takes: to a provider, if its tenant consents.

    waits for a worker of ours  --too long, refused, nobody up-->  the cheapest provider that is up
    our workers failed at it, before the first byte  ----------->  the same
    the provider is full: 429, Retry-After  -------------------->  it rests; the next one, or a turn here

A provider is never ranked beside our own workers: nothing of it is in the index, and no policy could say what it
costs in milliseconds. Batch work, which can wait, goes there only where nobody here serves its model.
"""

from collections.abc import Collection

from gateway.context import RequestContext
from gateway.dispatch.fleet import Fleet, Worker
from gateway.errors import AdmissionTimeout, NoWorker, Overloaded, TargetMissed, TenantQueueFull
from policies.routing.protocol import Route
from radix_cache.match import WorkerId

REFUSALS = (NoWorker, Overloaded, TenantQueueFull, AdmissionTimeout, TargetMissed)
"""What a request would be told for want of room here."""


class GoesOver(Exception):
    """It has waited long enough for a worker of ours."""

    code = "waited"


class Overflow:
    """Of one request."""

    def __init__(self, ctx: RequestContext, fleet: Fleet, *, prompt_tokens: int, output_tokens: int) -> None:
        self._ctx = ctx
        self._fleet = fleet
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens

    def routes(self, why: str, without: Collection[WorkerId] = ()) -> list[Route]:
        """Providers that may get it now, the cheapest first; none where its tenant has not consented."""
        able = [worker for worker in self._able() if worker.id not in without]
        able.sort(key=lambda worker: (self._spend(worker), worker.load.streams))
        return [
            Route(worker=worker.id, cost_ms=0.0, matched_tokens=0, reason=f"overflow to a provider: {why}")
            for worker in able
        ]

    def after_seconds(self, ttft_seconds: float) -> float | None:
        """How long it waits for a worker of ours, where its class wants a first token so soon; None: for good."""
        return min((_after(worker, ttft_seconds) for worker in self._able()), default=None)

    def goes_over_at(
        self, arrived_at: float, ttft_seconds: float, without: Collection[WorkerId] = ()
    ) -> float | None:
        """When one that came then has waited long enough, and a provider does not rest; None: it waits for good."""
        moments = (
            max(arrived_at + _after(worker, ttft_seconds), worker.rests_until)
            for worker in self._able(resting=True)
            if worker.id not in without
        )
        return min(moments, default=None)

    def back_in_seconds(self, without: Collection[WorkerId] = ()) -> float | None:
        """Until the first of those that rest may be asked again; None where none does."""
        rests = (w.rests_until - self._fleet.now() for w in self._able(resting=True) if w.id not in without)
        return min((seconds for seconds in rests if seconds > 0), default=None)

    def _able(self, *, resting: bool = False) -> list[Worker]:
        if not self._ctx.tenant.overflows or not self._ctx.request.generates:
            return []
        return self._fleet.providers(self._ctx.model.name, resting=resting)

    def _spend(self, worker: Worker) -> int:
        """What it costs there at most."""
        prices = worker.provider.prices_of(self._ctx.model) if worker.provider is not None else None
        if prices is None:
            return 0
        return prices.cost_at_most(prompt_tokens=self._prompt_tokens, output_tokens=self._output_tokens)


def _after(worker: Worker, ttft_seconds: float) -> float:
    assert worker.provider is not None
    return ttft_seconds if worker.provider.after_seconds is None else worker.provider.after_seconds
