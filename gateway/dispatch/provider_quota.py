"""The limits of outside providers, which all gateways keep together as they keep those of tenants.

lease = await quota.reserve(...)      or a Refusal: a provider at a limit is no candidate
quota.settle(lease, cost)             the provider was asked; a request that failed there counts as one, too
quota.release(lease)                  the provider was not asked
"""

from collections import Counter
from itertools import count

from gateway.dispatch.output_estimates import OutputEstimates
from gateway.domain.request_context import RequestContext
from gateway.fleet.worker import Worker
from gateway.quotas.leases import Leases
from gateway.quotas.limit import Scope, scopes_for
from gateway.quotas.quota_store import Cost, Lease, Refusal, Reservation
from radix_cache.match import WorkerId

ONE_REQUEST = Cost(prompt_tokens=0)
"""The cost of a request that failed: providers count it all the same."""


class ProviderQuota:
    """Reserves and settles what requests take of the limits of outside providers."""

    def __init__(self, leases: Leases, estimates: OutputEstimates) -> None:
        self.refused: Counter[WorkerId] = Counter()
        """How often a limit had no room, by provider."""
        self._leases = leases
        self._estimates = estimates
        self._numbers = count()

    async def reserve(self, ctx: RequestContext, worker: Worker, prompt_tokens: int) -> Lease | Refusal:
        """Reserve the most that this request may cost there; without limits no store is asked."""
        assert worker.provider is not None
        # No organisation has such a name: the provider's counters are its own.
        account = f"provider:{worker.id}"
        scopes = scopes_for((Scope(name=account, limits=worker.provider.limits),), ctx.model.name)
        prices = worker.provider.prices_of(ctx.model)
        output_tokens = self._estimates.reserved(ctx, scopes, prompt_tokens)
        spend = 0
        if prices is not None:
            spend = prices.cost_at_most(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        decision = await self._leases.reserve(
            Reservation(
                # A name of its own: a request that released one, since the provider rested, may reserve once more.
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
        """Charge what the request used; None: the provider was asked, and nothing came of it."""
        self._leases.end(lease, cost if cost is not None else ONE_REQUEST)

    def release(self, lease: Lease) -> None:
        """Release a reservation; the provider was never asked."""
        self._leases.end(lease, None)
