"""Reserves a request's quota before it is dispatched, and settles the quota at its end.

    lease = await reservations.reserve(ctx, prompt, progress)     # all limits or none
    try: ...                                                      # attempts to get an answer: see attempts.py
    finally: reservations.settle(pending, lease)

Quota is settled to what was used (charged_tokens.py): nothing for a request that no worker took, the prompt and the
tokens that came for a stream that was cut, the worker's own count for an answer that was completed, an estimate
for a whole answer whose client hung up. No request waits until it is settled.
"""

import time
from collections.abc import Callable

from gateway.dispatch import costs
from gateway.dispatch.charged_tokens import tokens_to_charge
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.refusals import refused
from gateway.domain.errors import IdempotencyKeyInUse, IdempotencyKeyReused, QuotasUnavailable, WorkerError
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.quotas import quota_store
from gateway.quotas.leases import Leases
from gateway.quotas.limit import scopes_for
from gateway.quotas.quota_store import Lease, QuotaStoreUnavailable, Refusal, Reservation
from gateway.telemetry.progress import Progress
from policies.admission.retry_budget import RetryBudget


class Reservations:
    """Reserves and settles the quota of requests. `clock`: seconds on the monotonic clock."""

    def __init__(
        self,
        leases: Leases,
        estimates: OutputEstimates,
        retry_budget: RetryBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.leases = leases
        self._estimates = estimates
        self._retry_budget = retry_budget
        self._clock = clock

    async def reserve(self, ctx: RequestContext, prompt: PromptBlocks, progress: Progress) -> Lease:
        """Reserve quota for the request.

        A request that was sent to workers of another model before also takes a retry from the budget of all
        requests.

        Raises QuotaExceeded, BudgetExhausted, RequestExceedsLimit, QuotasUnavailable, IdempotencyKeyInUse,
        IdempotencyKeyReused; WorkerError if the budget is spent.
        """
        if progress.attempts and not self._retry_budget.try_spend(self._clock()):
            raise WorkerError
        tenant, model = ctx.tenant, ctx.model.name
        scopes = scopes_for(tenant.scopes, model)
        output_tokens = self._estimates.reserved(ctx, scopes, prompt.prompt_tokens)
        try:
            decision = await self.leases.reserve(
                Reservation(
                    id=ctx.id,
                    organisation=tenant.organisation,
                    scopes=scopes,
                    cost=costs.reserved(ctx, prompt_tokens=prompt.prompt_tokens, output_tokens=output_tokens),
                    tenant=tenant.id,
                    model=model,
                    idempotency_key=ctx.idempotency_key,
                    closed=tenant.refused_without_redis,
                )
            )
        except QuotaStoreUnavailable as err:
            raise QuotasUnavailable from err
        except quota_store.RepeatedReservationRefused as err:
            if err.reason == "running":
                raise IdempotencyKeyInUse from err
            raise IdempotencyKeyReused(different=err.reason == "different") from err
        progress.limits = decision.limit_statuses
        if isinstance(decision, Refusal):
            raise refused(decision)
        if progress.trace is not None:
            progress.mark("reserve")
        return decision

    def settle(self, pending: PendingRequest, lease: Lease) -> None:
        """Charge what the request used, at the prices of the worker or provider that answered or was to answer."""
        ctx, progress, attempt = pending.ctx, pending.progress, pending.attempt
        prices = attempt.placement.prices(ctx.model) if attempt is not None else ctx.model.prices
        used = tokens_to_charge(progress)
        cost = costs.cost_of(used, prices)
        progress.charge(used, cost.spend if cost is not None else 0)
        self.leases.end(lease, cost)
        if used is not None and progress.usage is not None:
            self._estimates.learn(ctx, used.output_tokens)
        # A kept error holds its traceback, whose frames hold the request: clear it to avoid a reference cycle.
        pending.failed_workers.clear()
