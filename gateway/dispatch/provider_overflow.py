"""Where a request goes that no worker here takes: to a provider, if its tenant consents.

    waits for a worker of ours  --too long, refused, nobody up-->  the cheapest provider that is up
    our workers failed at it, before the first byte  ----------->  the same
    the provider says that it is full (429, Retry-After)  ------>  it rests; the next one, or a turn here
    at a limit of the provider's  ------------------------------>  the next one, or a turn here; asked again later

A provider is never ranked beside our own workers: nothing of it is in the index, and no policy could say what it
costs in milliseconds. Batch work, which can wait, goes there only where nobody here serves its model.
"""

from collections.abc import Collection
from math import inf

from gateway.dispatch.provider_quota import Allowances
from gateway.domain.context import RequestContext
from gateway.domain.errors import AdmissionTimeout, NoWorker, Overloaded, TargetMissed, TenantQueueFull
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.quotas.quota import Lease, Refusal
from policies.routing.protocol import Route
from radix_cache.match import WorkerId

AT_LIMIT_SECONDS = 1.0

REFUSALS = (NoWorker, Overloaded, TenantQueueFull, AdmissionTimeout, TargetMissed)
"""What a request would be told for want of room here."""


class GoesOver(Exception):
    """It has waited long enough for a worker of ours."""

    code = "waited"


class Overflow:
    """Of one request. `allowances`: what providers' limits leave."""

    def __init__(
        self,
        ctx: RequestContext,
        fleet: Fleet,
        allowances: Allowances,
        *,
        prompt_tokens: int,
        output_tokens: int,
    ) -> None:
        self._ctx = ctx
        self._fleet = fleet
        self._allowances = allowances
        self._full_until: dict[WorkerId, float] = {}
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens

    def routes(self, why: str, without: Collection[WorkerId] = ()) -> list[Route]:
        """Providers that may get it now, the cheapest first; none where its tenant has not consented."""
        return [_route(worker, why) for worker in self._cheapest_first(without)]

    async def taken(self, why: str, without: Collection[WorkerId] = ()) -> tuple[Route, Lease] | None:
        """The first of these that has room within its limits, and what is held of them."""
        for worker in self._cheapest_first(without):
            if worker not in self._able():
                continue
            decision = await self._allowances.take(self._ctx, worker, self._prompt_tokens)
            if isinstance(decision, Refusal):
                self._full_until[worker.id] = self._again_at(decision.retry_after_seconds)
                continue
            if worker in self._able():
                return _route(worker, why), decision
            self._allowances.give_back(decision)  # It has left, or rests, since Redis was asked.
        return None

    def after_seconds(self, ttft_seconds: float) -> float | None:
        """How long it waits for a worker of ours, where its class wants a first token so soon; None: for good."""
        return min((_after(worker, ttft_seconds) for worker in self._able()), default=None)

    def goes_over_at(
        self, arrived_at: float, ttft_seconds: float, without: Collection[WorkerId] = ()
    ) -> float | None:
        """When one that came then has waited long enough, and a provider may have room; None: it waits for good."""
        moments = (
            max(arrived_at + _after(worker, ttft_seconds), self._back_at(worker))
            for worker in self._able(resting=True)
            if worker.id not in without
        )
        return min(moments, default=None)

    def back_in_seconds(self, without: Collection[WorkerId] = ()) -> float | None:
        """Until the first of those that rest, or are at a limit, may be asked again; None where none is."""
        away = (self._back_at(w) - self._fleet.now() for w in self._able(resting=True) if w.id not in without)
        return min((seconds for seconds in away if 0 < seconds < inf), default=None)

    def _cheapest_first(self, without: Collection[WorkerId]) -> list[Worker]:
        able = [worker for worker in self._able() if worker.id not in without]
        return sorted(able, key=lambda worker: (self._spend(worker), worker.load.streams))

    def _back_at(self, worker: Worker) -> float:
        return max(worker.rests_until, self._full_until.get(worker.id, -inf))

    def _again_at(self, retry_after_seconds: float | None) -> float:
        """When to ask a provider again that is at a limit: seldom, as each time costs a call to Redis."""
        if retry_after_seconds is None:
            return inf
        now = self._fleet.now()
        return now + max(AT_LIMIT_SECONDS, retry_after_seconds, now - self._ctx.received_at)

    def _able(self, *, resting: bool = False) -> list[Worker]:
        request = self._ctx.request
        if not self._ctx.tenant.overflows or not (request.generates or request.form is not None):
            return []
        return self._fleet.providers(self._ctx.model.name, resting=resting)

    def _spend(self, worker: Worker) -> int:
        """What it costs there at most."""
        prices = worker.provider.prices_of(self._ctx.model) if worker.provider is not None else None
        if prices is None:
            return 0
        return prices.cost_at_most(prompt_tokens=self._prompt_tokens, output_tokens=self._output_tokens)


def _route(worker: Worker, why: str) -> Route:
    return Route(worker=worker.id, cost_ms=0.0, matched_tokens=0, reason=f"overflow to a provider: {why}")


def _after(worker: Worker, ttft_seconds: float) -> float:
    assert worker.provider is not None
    return ttft_seconds if worker.provider.after_seconds is None else worker.provider.after_seconds
