"""What may be asked of providers: limits of their own, which all gateways hold together, as tenants' are held.

lease = await allowances.take(...)       or a Refusal: at a limit it is no candidate
allowances.settle(lease, cost)           what was asked of it; a request that failed there is one, too
allowances.give_back(lease)              nothing was
"""

from collections import Counter
from itertools import count

from gateway.dispatch.output_estimates import OutputEstimates
from gateway.domain.context import RequestContext
from gateway.fleet.worker import Worker
from gateway.quotas.leases import Leases
from gateway.quotas.limit import Scope, scopes_for
from gateway.quotas.quota import Cost, Lease, Refusal, Reservation
from radix_cache.match import WorkerId

ONE_REQUEST = Cost(prompt_tokens=0)
"""Providers count it, whatever became of it."""


class Allowances:
    """`refused`: how often a limit had no room, by provider."""

    def __init__(self, leases: Leases, estimates: OutputEstimates) -> None:
        self.refused: Counter[WorkerId] = Counter()
        self._leases = leases
        self._estimates = estimates
        self._numbers = count()

    async def take(self, ctx: RequestContext, worker: Worker, prompt_tokens: int) -> Lease | Refusal:
        """All that this request may cost there, at once; without limits there is nothing to ask."""
        assert worker.provider is not None
        # No organisation has such a name: its counters are its own.
        account = f"provider:{worker.id}"
        scopes = scopes_for((Scope(name=account, limits=worker.provider.limits),), ctx.model.name)
        prices = worker.provider.prices_of(ctx.model)
        output_tokens = self._estimates.reserved(ctx, scopes, prompt_tokens)
        spend = 0
        if prices is not None:
            spend = prices.cost_at_most(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        decision = await self._leases.reserve(
            Reservation(
                # A name of its own: who gave one back, since the provider rested, may ask once more.
                id=f"{ctx.id}@{worker.id}~{next(self._numbers)}",
                organisation=account,
                scopes=scopes,
                cost=Cost(
                    prompt_tokens=prompt_tokens, cached_tokens=None, output_tokens=output_tokens, spend=spend
                ),
                tenant=ctx.tenant.id,
                model=ctx.model.name,
            )
        )
        if isinstance(decision, Refusal):
            self.refused[worker.id] += 1
        return decision

    def settle(self, lease: Lease, cost: Cost | None) -> None:
        """It was asked. `cost`: None if nothing came of it."""
        self._leases.end(lease, cost if cost is not None else ONE_REQUEST)

    def give_back(self, lease: Lease) -> None:
        """It was not."""
        self._leases.end(lease, None)
