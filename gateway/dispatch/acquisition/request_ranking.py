"""The ranking of a request's workers as of now, and the request as the queue policy gets it."""

from collections.abc import Collection, Sequence

import msgspec

from gateway.dispatch.acquisition.ttft_target import TtftTargets, target_at
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import prefill_worker_of
from gateway.queueing.queued_request import QueuedRequest
from gateway.routing.router import Decision, Router
from gateway.telemetry.request_events import ROUTES_MAX
from policies.routing.protocol import Route, SharedPrefix
from radix_cache.match import WorkerId


class RequestRanking:
    """Ranks the workers for a request; workers that failed at it are left out."""

    def __init__(self, router: Router, targets: TtftTargets) -> None:
        self.router = router
        self._targets = targets

    def rank(
        self, pending: PendingRequest, without: Collection[WorkerId] = (), *, known_only: bool = False
    ) -> Decision:
        """Rank the workers as of now, and leave out those that TtftTargets.preferred leaves out.

        After a worker failed none is left out for being late.

        `known_only`: as for Router.rank.
        """
        tried = pending.failed_workers
        decision = self.router.rank(pending, {*tried, *without} if without else tried, known_only=known_only)
        if pending.service_class.late != "wait" and not pending.worker_failed:
            routes = self._targets.preferred(pending, decision.routes)
            decision = msgspec.structs.replace(decision, routes=routes)
        pending.progress.ranking = decision.routes[:ROUTES_MAX]
        return decision


def queued_request(
    pending: PendingRequest, routes: Sequence[Route], shared: Sequence[SharedPrefix] = ()
) -> QueuedRequest:
    """Return what the queue policy gets of the request, by its ranking.

    `shared`: the parts of its prompt that other requests have, too. A part that only waiting requests have counts
    as cached, since it is computed once: their tenant would seem to flood otherwise.
    """
    prompt_tokens, best, tenant = pending.prompt.prompt_tokens, None, pending.ctx.tenant
    matched = 0
    if routes:
        best = routes[0]
        matched = min(best.matched_tokens, prompt_tokens)
    cached = matched
    if shared and not shared[-1].holders:
        cached = max(matched, shared[-1].tokens)
    uncached = prompt_tokens - cached
    service_class = pending.service_class
    return QueuedRequest(
        tenant=tenant.id,
        weight=tenant.plan.weight,
        cost=pending.limits.cost_weights.units(
            uncached_tokens=uncached, cached_tokens=cached, output_tokens=pending.output_tokens
        ),
        uncached_tokens=uncached,
        cached_tokens=cached,
        worker=prefill_worker_of(best) if best is not None and matched else "",
        deadline=target_at(pending),
        service_class=service_class.name,
        level=service_class.level,
        target_seconds=service_class.ttft_seconds,
    )
