"""Where a request would go now, and why: each worker with its rank and what its cost is made of. Nothing is sent.

For operators only: it says which worker holds how much of a tenant's prompt.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.adminapi.operation import OperationResponse, OperationRequest, Operation
from gateway.adminapi.problems import Problem
from gateway.dispatch.provider_overflow import Overflow
from gateway.domain.context import RequestContext
from gateway.domain.errors import Forbidden, GatewayError
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.fleet.worker import Worker
from gateway.pipeline import Services
from gateway.routing.router import Decision
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.types import Identifier
from gateway.tenants.directory import DirectoryAway, TenantDirectory, UnknownKey
from gateway.tenants.keys import HASH_PREFIX
from policies.admission.dispatch_window import fits_window
from policies.latency_model import predicted_ttft_ms
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.protocol import Candidate, Route

Decode = Callable[[Surface, bytes], InferenceRequest]
"""A body to what it asks for. Raises GatewayError."""

NOBODYS_KEY = ApiKeySettings(id="explain", hash=HASH_PREFIX + "0" * 64)


class RouteAsked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`body`: as a client would send it. `tenant`: whose cache it is; `default` where there are no tenants."""

    body: dict[str, Any]
    tenant: Identifier = "default"
    api: Literal["chat/completions", "completions"] = "chat/completions"


class WorkerRanked(msgspec.Struct, kw_only=True):
    """One worker, best first. `rank`: from 1; null where it takes no part, and `reason` says why.

    `matched_tokens`: of the prompt, held there or on their way; of these `host_tokens` and `disk_tokens` off the
    GPU; `doubted_tokens` more are in doubt. `has_window`: it would be sent at once. `terms`: what `cost_ms` is made
    of.
    """

    worker: str
    rank: int | None
    state: str
    reason: str
    cost_ms: Annotated[float | None, Meta(description="The policy's estimate.")] = None
    predicted_ttft_ms: float | None = None
    matched_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    doubted_tokens: int = 0
    tokens_queued: int = 0
    tokens_computed: int = 0
    streams: int = 0
    kv_tokens: int = 0
    kv_tokens_max: int | None = None
    has_window: bool = False
    terms: dict[str, float] = {}


class RouteExplained(msgspec.Struct, kw_only=True):
    """`model`: that would answer, after aliases, splits and fallbacks. `waiting`: for it, already."""

    tenant: str
    asked: str
    model: str
    policy: str
    prompt_tokens: int
    exact: bool
    blocks: int
    output_tokens: int
    waiting: int
    workers: list[WorkerRanked]


def operations(at: Services, decode: Decode) -> list[Operation]:
    async def explain(call: OperationRequest) -> OperationResponse:
        call.parameters()
        asked = await call.body(RouteAsked)
        try:
            return OperationResponse(value=await explained(at, decode, asked))
        except GatewayError as err:
            raise Problem(err.status if err.status in (400, 403, 404, 413) else 503, err.message) from err
        except PolicyContractBroken as err:
            raise Problem(500, f"The {err}.") from err
        except UnknownKey:
            raise Problem(404, f"There is no tenant {asked.tenant!r}.") from None
        except DirectoryAway:
            raise Problem(503, "Tenants are not known at present.", {"retry-after": "1"}) from None

    return [
        Operation(
            method="POST",
            path="/route",
            role="viewer",
            does="Rank the workers for a request as of now, and say why. It is not sent.",
            handle=explain,
            gives=RouteExplained,
            takes=RouteAsked,
        )
    ]


async def explained(at: Services, decode: Decode, asked: RouteAsked) -> RouteExplained:
    """Raises GatewayError, UnknownKey, DirectoryAway."""
    tenant = _tenant(at.authentication.directory, asked.tenant)
    request = decode(Surface(asked.api), msgspec.json.encode(asked.body))
    model = at.catalogue.find(request.model)
    if not tenant.allows(model.name):
        raise Forbidden(request.model)
    model = at.model_selection.split(model, request, tenant)
    ctx = RequestContext(id="explain", tenant=tenant, model=model, request=request, received_at=at.clock())
    if not at.model_selection.is_served(model.name, tenant):
        ctx = next(at.model_selection.fallbacks(ctx), ctx)
    prompt = await at.prompt_hasher.blocks(ctx)
    by = at.reservations
    output_tokens = by.estimates.expected(ctx)
    decision = by.router.now_ranked(ctx, prompt, output_tokens=output_tokens)
    window = by.queue.share_of(by.bounds.release_window_tokens)
    ranked = [
        _ranked(rank, route, decision, prompt.prompt_tokens, window)
        for rank, route in enumerate(decision.routes, start=1)
    ]
    taking_part = {route.worker for route in decision.routes}
    overflow = Overflow(
        ctx, by.fleet, by.allowances, prompt_tokens=prompt.prompt_tokens, output_tokens=output_tokens
    )
    waits = overflow.after_seconds(ctx.service_class.ttft_seconds)
    for route in overflow.routes(f"asked where nobody here takes it within {(waits or 0) * 1000:.0f} ms"):
        taking_part.add(route.worker)
        ranked.append(_provider(len(ranked) + 1, by.fleet[route.worker], route))
    others = [_out(worker, ctx, by.fleet.now()) for worker in by.fleet if worker.id not in taking_part]
    return RouteExplained(
        tenant=tenant.id,
        asked=request.model,
        model=ctx.model.name,
        policy=by.router.policy_name,
        prompt_tokens=prompt.prompt_tokens,
        exact=prompt.exact,
        blocks=len(prompt.hashes),
        output_tokens=output_tokens,
        waiting=len(by.rooms()[ctx.model.name]) if ctx.model.name in by.rooms() else 0,
        workers=ranked + others,
    )


def _tenant(directory: TenantDirectory, named: str) -> Tenant:
    """Raises UnknownKey, DirectoryAway."""
    try:
        return directory.by_id(named, NOBODYS_KEY)
    except UnknownKey:
        # Where there are no tenants, whoever comes without a key is one that stands in no list.
        keyless = directory.by_key(None)
        if keyless.id != named:
            raise
        return keyless


def _ranked(
    rank: int, route: Route, decision: Decision, prompt_tokens: int, window_tokens: int
) -> WorkerRanked:
    candidate: Candidate = next(one for one in decision.candidates if one.worker.id == route.worker)
    worker, uncached = candidate.worker, max(1, prompt_tokens - route.matched_tokens)
    ahead = worker.tokens_queued - worker.tokens_computed
    return WorkerRanked(
        worker=worker.id,
        rank=rank,
        state=worker.health.value,
        reason=route.reason,
        cost_ms=route.cost_ms,
        predicted_ttft_ms=predicted_ttft_ms(worker.speed, ahead + uncached),
        matched_tokens=route.matched_tokens,
        host_tokens=candidate.host_tokens,
        disk_tokens=candidate.disk_tokens,
        doubted_tokens=candidate.doubted_tokens,
        tokens_queued=worker.tokens_queued,
        tokens_computed=worker.tokens_computed,
        streams=worker.streams,
        kv_tokens=worker.kv_tokens,
        kv_tokens_max=worker.kv_tokens_max,
        has_window=fits_window(worker.tokens_queued, uncached, window_tokens),
        terms=route.terms._asdict() if route.terms is not None else {},
    )


def _provider(rank: int, worker: Worker, route: Route) -> WorkerRanked:
    """One that is asked after all others. What it costs there in time, nobody knows."""
    return WorkerRanked(
        worker=worker.id,
        rank=rank,
        state=worker.health.health.value,
        reason=route.reason,
        streams=worker.load.streams,
        has_window=True,
    )


def _out(worker: Worker, ctx: RequestContext, now: float) -> WorkerRanked:
    """One that takes no part."""
    state = worker.health.health.value
    if ctx.model.name not in worker.models:
        reason = f"it does not serve {ctx.model.name}"
    elif worker.provider is not None and not ctx.tenant.overflows:
        reason = f"it is a provider, and {ctx.tenant.id} has not consented (overflow: deny)"
    elif worker.able and (seconds := worker.rests_until - now) > 0:
        reason = f"it is a provider that wants to be let alone for {seconds:.0f} seconds"
    elif worker.health.trial:
        reason = "it is on trial, and has its one request"
    elif worker.health.open:
        reason = "its circuit is open: too many of its requests failed"
    else:
        reason = f"it is {state}{f': {worker.trouble}' if worker.trouble else ''}"
    return WorkerRanked(worker=worker.id, rank=None, state=state, reason=reason)
