"""Provider overflow: a request that no worker here takes goes to an outside provider, if its tenant consents.

    waits for a worker  --too long, refused, no worker up------>  the cheapest provider that is up
    workers failed at it before the first byte  ------------->  the same
    the provider is full (429, Retry-After)  ---------------->  it rests; the next provider, or a turn here
    at a limit of the provider's  --------------------------->  the next provider, or a turn here; tried again later

A provider is never ranked beside our own workers: nothing of its cache is in the index, and no policy could
estimate its cost in milliseconds. Batch work can wait, and goes there only where no worker serves its model.
"""

from collections.abc import Collection
from math import inf

from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.domain.errors import AdmissionTimeout, NoWorker, Overloaded, TargetMissed, TenantQueueFull
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.quotas.quota_store import Lease, Refusal
from policies.routing.protocol import Route
from radix_cache.match import WorkerId

AT_LIMIT_SECONDS = 1.0
"""The shortest time after which a provider that was at a limit is tried again."""

REFUSALS = (NoWorker, Overloaded, TenantQueueFull, AdmissionTimeout, TargetMissed)
"""Errors of a request that the workers here have no room for."""


class OverflowDue(Exception):
    """The request has waited long enough for a worker of ours, and goes to a provider."""


class ProviderOverflow:
    """Chooses an outside provider for a request that no worker of ours takes."""

    def __init__(self, fleet: Fleet, quota: ProviderQuota) -> None:
        self._fleet = fleet
        self._quota = quota

    def routes(self, pending: PendingRequest, why: str, without: Collection[WorkerId] = ()) -> list[Route]:
        """Return the providers that may get the request now, cheapest first; none without the tenant's consent."""
        return [_route(worker, why) for worker in self._cheapest_first(pending, without)]

    async def take(
        self, pending: PendingRequest, why: str, without: Collection[WorkerId] = ()
    ) -> tuple[Route, Lease] | None:
        """Reserve at the first of these providers that has room within its limits."""
        for worker in self._cheapest_first(pending, without):
            if worker not in self._able(pending):
                continue
            decision = await self._quota.reserve(pending.ctx, worker, pending.prompt.prompt_tokens)
            if isinstance(decision, Refusal):
                full_until = self._ask_again_at(pending, decision.retry_after_seconds)
                pending.provider_full_until[worker.id] = full_until
                continue
            if worker in self._able(pending):
                return _route(worker, why), decision
            self._quota.release(decision)  # The provider left, or rests, since Redis was asked.
        return None

    def waits_seconds(self, pending: PendingRequest) -> float | None:
        """Return how long the request waits for a worker of ours before it goes to a provider; None: for good."""
        ttft_seconds = pending.service_class.ttft_seconds
        return min((_after_seconds(worker, ttft_seconds) for worker in self._able(pending)), default=None)

    def overflows_at(
        self, pending: PendingRequest, arrived_at: float, without: Collection[WorkerId] = ()
    ) -> float | None:
        """Return when the request has waited long enough and a provider may have room; None for never."""
        ttft_seconds = pending.service_class.ttft_seconds
        moments = (
            max(arrived_at + _after_seconds(worker, ttft_seconds), self._back_at(pending, worker))
            for worker in self._able(pending, resting=True)
            if worker.id not in without
        )
        return min(moments, default=None)

    def back_in_seconds(self, pending: PendingRequest, without: Collection[WorkerId] = ()) -> float | None:
        """Return the seconds until a provider that rests or is at a limit may be tried again; None if none is."""
        away = (
            self._back_at(pending, worker) - self._fleet.now()
            for worker in self._able(pending, resting=True)
            if worker.id not in without
        )
        return min((seconds for seconds in away if 0 < seconds < inf), default=None)

    def _cheapest_first(self, pending: PendingRequest, without: Collection[WorkerId]) -> list[Worker]:
        able = [worker for worker in self._able(pending) if worker.id not in without]
        return sorted(able, key=lambda worker: (_spend_max(pending, worker), worker.load.streams))

    def _back_at(self, pending: PendingRequest, worker: Worker) -> float:
        return max(worker.rests_until, pending.provider_full_until.get(worker.id, -inf))

    def _ask_again_at(self, pending: PendingRequest, retry_after_seconds: float | None) -> float:
        """Return when to try a provider at a limit again: seldom, as each try costs a call to Redis."""
        if retry_after_seconds is None:
            return inf
        now = self._fleet.now()
        return now + max(AT_LIMIT_SECONDS, retry_after_seconds, now - pending.ctx.received_at)

    def _able(self, pending: PendingRequest, *, resting: bool = False) -> list[Worker]:
        asked = pending.ctx.request
        if not pending.ctx.tenant.may_overflow or not (asked.generates or asked.form is not None):
            return []
        return self._fleet.providers(pending.ctx.model.name, resting=resting)


def _spend_max(pending: PendingRequest, worker: Worker) -> int:
    """Return the most that the request can cost at the provider, in millionths of the currency."""
    prices = worker.provider.prices_of(pending.ctx.model) if worker.provider is not None else None
    if prices is None:
        return 0
    return prices.cost_at_most(
        prompt_tokens=pending.prompt.prompt_tokens, output_tokens=pending.output_tokens
    )


def _route(worker: Worker, why: str) -> Route:
    return Route(worker=worker.id, cost_ms=0.0, matched_tokens=0, reason=f"overflow to a provider: {why}")


def _after_seconds(worker: Worker, ttft_seconds: float) -> float:
    assert worker.provider is not None
    return ttft_seconds if worker.provider.after_seconds is None else worker.provider.after_seconds
