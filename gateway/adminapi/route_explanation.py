"""The operation that explains a route: how each worker would rank for a request now, and why. Nothing is sent.

It is for operators only: it shows which worker holds how much of a tenant's prompt in its cache. All workers are
ranked, also of a large fleet, where a request looks at a shortlist; so the first worker may be another one than a
request would get, within the bound of gateway/routing/shortlist.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.dispatch.acquisition.filled_routes import allowed_routes
from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import prefill_worker_of
from gateway.domain.errors import GatewayError, ModelNotAllowed
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.request_context import RequestContext
from gateway.fleet.worker import Worker
from gateway.models.model_selection import session_key
from gateway.pipeline import Services
from gateway.routing.router import Decision
from gateway.settings.types import Identifier
from gateway.telemetry.progress import Progress
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey, tenant_named
from policies.admission.dispatch_window import DispatchWindow
from policies.latency_model import predicted_ttft_ms
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.protocol import Candidate, Ranking, Route

Decode = Callable[[Surface, bytes], InferenceRequest]
"""Decode the body of a request. Raises GatewayError."""


class RouteAsked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request to explain. `body`: as a client would send it. `tenant`: `default` where there are no tenants.

    `service_class`: as a client would name it in the header x-radixgate-class.
    """

    body: dict[str, Any]
    tenant: Identifier = "default"
    service_class: str | None = None
    api: Literal["chat/completions", "completions"] = "chat/completions"


class WorkerRanked(msgspec.Struct, kw_only=True):
    """A worker in the ranking.

    `rank`: from 1, the best; null for a worker that is no candidate, with the cause in `reason`. `prefill_worker`:
    the worker that computes the prompt, if it is another one; cache, load and room are those of that worker.
    `matched_tokens`: tokens of the prompt in its cache, also those about to be; of these, `host_tokens` and
    `disk_tokens` are not in GPU memory. `doubted_tokens`: further tokens that may be in the cache. `has_room`:
    whether the worker has room, so that the request would be sent at once; else `waits_because` says why not.
    `terms`: the parts of `cost_ms`; of a pair, those of the prefill worker.
    """

    worker: str
    prefill_worker: str | None = None
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
    has_room: bool = False
    waits_because: str = ""
    terms: dict[str, float] = {}


class RouteExplained(msgspec.Struct, kw_only=True):
    """The ranking of all workers for a request.

    `model`: the model that would answer, after aliases, splits and fallbacks. `waiting`: requests that wait for it.
    """

    tenant: str
    asked: str
    model: str
    service_class: str
    policy: str
    prompt_tokens: int
    exact: bool
    blocks: int
    output_tokens: int
    waiting: int
    workers: list[WorkerRanked]


def operations(services: Services, decode: Decode) -> list[Operation]:
    """Return the operation that explains a route."""

    async def explain(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        asked = await request.body(RouteAsked)
        try:
            return OperationResponse(value=await explain_route(services, decode, asked))
        except GatewayError as err:
            raise Problem(err.status if err.status in (400, 403, 404, 413) else 503, err.message) from err
        except PolicyContractBroken as err:
            raise Problem(500, f"The {err}.") from err
        except UnknownKey:
            raise Problem(404, f"There is no tenant {asked.tenant!r}.") from None
        except DirectoryUnavailable:
            raise Problem(503, "Tenants are not known at present.", {"retry-after": "1"}) from None

    return [
        Operation(
            method="POST",
            path="/route",
            role="viewer",
            summary="Rank the workers for a request, with the reasons. The request is not sent.",
            handle=explain,
            response_type=RouteExplained,
            request_type=RouteAsked,
        )
    ]


async def explain_route(services: Services, decode: Decode, asked: RouteAsked) -> RouteExplained:
    """Return the ranking of the workers for a request. Raises GatewayError, UnknownKey, DirectoryUnavailable."""
    dispatch = services.dispatch
    ctx = _context(services, decode, asked)
    prompt = await services.prompt_hasher.blocks(ctx)
    pending = PendingRequest(
        ctx,
        prompt,
        Progress(ctx.id, asked.api, services.clock, services.wall),
        dispatch.acquisition.limits,
        sequence=dispatch.router.next_number(ctx.model.name),
        output_tokens=dispatch.estimates.expected(ctx),
        session=session_key(ctx.request, ctx.tenant),
        by_shadow=False,
    )
    decision = dispatch.router.rank(pending, all_workers=True)

    # First the candidates, best first; then the providers; then the workers that cannot serve the request.
    ranked = [
        _ranked(rank, route, decision, prompt.prompt_tokens, why)
        for rank, (route, why) in enumerate(_waits_because(dispatch, pending, decision.routes), start=1)
    ]
    provider_routes = _provider_routes(dispatch, pending)
    for route in provider_routes:
        ranked.append(_provider(len(ranked) + 1, dispatch.fleet[route.worker], route))
    shown = {route.worker for route in provider_routes}
    for route in decision.routes:
        shown |= {route.worker, prefill_worker_of(route)}
    ranked += [_out(worker, ctx, dispatch.fleet.now()) for worker in dispatch.fleet if worker.id not in shown]

    rooms = dispatch.rooms.all()
    return RouteExplained(
        tenant=ctx.tenant.id,
        asked=ctx.request.model,
        model=ctx.model.name,
        service_class=ctx.service_class.name,
        policy=dispatch.router.policy_name,
        prompt_tokens=prompt.prompt_tokens,
        exact=prompt.exact,
        blocks=len(prompt.hashes),
        output_tokens=pending.output_tokens,
        waiting=len(rooms[ctx.model.name]) if ctx.model.name in rooms else 0,
        workers=ranked,
    )


def _context(services: Services, decode: Decode, asked: RouteAsked) -> RequestContext:
    """Return the request as the pipeline would dispatch it: with the model that would answer."""
    tenant = tenant_named(services.authentication.directory, asked.tenant)
    request = decode(Surface(asked.api), msgspec.json.encode(asked.body))
    model = services.catalogue.find(request.model, tenant.id)
    if not tenant.allows(model.name):
        raise ModelNotAllowed(request.model)
    model = services.model_selection.split(model, request, tenant)
    ctx = RequestContext(
        id="explain",
        tenant=tenant,
        model=model,
        request=services.classes.without_own_tiers(request),
        received_at=services.clock(),
        service_class=services.classes.find(asked.service_class, request, tenant, model.name),
    )
    if not services.model_selection.is_served(model.name, tenant):
        ctx = next(services.model_selection.fallbacks(ctx), ctx)
    return ctx


def _provider_routes(dispatch: Dispatch, pending: PendingRequest) -> Sequence[Route]:
    """Return the routes to providers that would be asked once no worker takes the request."""
    overflow = dispatch.provider_overflow
    waits = overflow.waits_seconds(pending)
    why = f"asked if no worker here takes the request within {(waits or 0) * 1000:.0f} ms"
    return overflow.routes(pending, why)


def _waits_because(
    dispatch: Dispatch, pending: PendingRequest, routes: Ranking
) -> Iterator[tuple[Route, str]]:
    """Yield the routes, best first, each with why the request would not be sent on it at once, or an empty text.

    Routes that the request's class leaves out, since they would be late and others would not, come last.
    """
    preferred = dispatch.acquisition.targets.preferred(pending, routes)
    model, service_class = pending.ctx.model.name, pending.service_class
    window, room = dispatch.window.of(model), dispatch.rooms.all().get(pending.queue_name)
    # As `_look` of own_turn_placements.py has it of a request that waits; this one would come beside those.
    crowds = window.contended and room is not None and room.waiting_of(pending.ctx.tenant.id) > 0
    is_narrow = service_class.background or crowds
    work_share = dispatch.window.of_all_gateways.work_share(
        model, pending.ctx.tenant.id, service_class.ttft_seconds
    )
    patient = window.is_patient(service_class.ttft_seconds, is_narrow=is_narrow, work_share=work_share)
    allowed = allowed_routes(preferred, pending.prompt.prompt_tokens, window, patient=patient)
    own_turns = dispatch.acquisition.own_turns
    for route in preferred:
        if route not in allowed:
            yield route, _kept_because(window, patient=patient)
            continue
        has_room = own_turns.has_room(
            prefill_worker_of(route),
            route,
            pending,
            preferred,
            window,
            is_narrow=is_narrow,
            patient=patient,
        )
        yield route, "" if has_room else "full, the request would wait"
    if len(preferred) < len(routes):
        for route in routes:
            if route not in preferred:
                yield route, "its first token would be late, and another worker's would not"


def _kept_because(window: DispatchWindow, *, patient: bool) -> str:
    """Return why a request may not wait for a worker that is open, or filled, for others."""
    if window.filled is not None and window.filled.open_tokens is not None:
        return "kept for other tenants" if patient else "kept for shorter prompts"
    return "kept for more urgent requests" if patient else "filled by less urgent requests"


def _ranked(
    rank: int, route: Route, decision: Decision, prompt_tokens: int, waits_because: str
) -> WorkerRanked:
    """Return the entry of a route; cache, load and room are those of the worker that computes the prompt."""
    prefill_worker = prefill_worker_of(route)
    candidate: Candidate = next(one for one in decision.candidates if one.worker.id == prefill_worker)
    worker, uncached = candidate.worker, max(1, prompt_tokens - route.matched_tokens)
    ahead = worker.tokens_queued - worker.tokens_computed
    return WorkerRanked(
        worker=route.worker,
        prefill_worker=route.prefill_worker,
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
        has_room=not waits_because,
        waits_because=waits_because,
        terms=route.terms._asdict() if route.terms is not None else {},
    )


def _provider(rank: int, worker: Worker, route: Route) -> WorkerRanked:
    """Return the entry of a provider, which is asked after all workers. Its latency is unknown."""
    return WorkerRanked(
        worker=worker.id,
        rank=rank,
        state=worker.health.state.value,
        reason=route.reason,
        streams=worker.load.streams,
        has_room=True,
    )


def _out(worker: Worker, ctx: RequestContext, now: float) -> WorkerRanked:
    """Return the entry of a worker that is no candidate."""
    state = worker.health.state.value
    if ctx.model.name not in worker.models:
        reason = f"does not serve {ctx.model.name}"
    elif worker.provider is not None and not ctx.tenant.may_overflow:
        reason = f"a provider, and {ctx.tenant.id} has not consented to providers (overflow: deny)"
    elif worker.able and (seconds := worker.rests_until - now) > 0:
        reason = f"a provider that asks for no requests for another {seconds:.0f} seconds (retry-after)"
    elif worker.health.on_trial:
        reason = "its circuit is half open, and its one trial request is under way"
    elif worker.health.circuit_open:
        reason = "its circuit is open: too many of its requests failed"
    else:
        reason = f"{state}{f': {worker.trouble}' if worker.trouble else ''}"
    return WorkerRanked(worker=worker.id, rank=None, state=state, reason=reason)
