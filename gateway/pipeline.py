"""One request, from its API key to its record. Read this first: `serve` and `answer` name every stage.

What the code below guarantees: another worker is tried only before the first byte; every resource that is reserved
is freed, on every ending, also when the client leaves; policies see values only; quota is settled and the record
written whatever happened, and no client waits for either.

A client that disconnects cancels its handler (`connection_lost` of gateway/web/direct/connection.py; of requests
that aiohttp serves, `handler_cancellation` in gateway/runtime/listener_runner.py). Then in `answer` the innermost
`finally` closes the connection to the worker (`Attempts.close`; before the first byte `ask` of
workers/adapters/connection.py has done so), the next one frees its placement (`Attempts.end`),
and the outermost one settles the quota (`Reservations.settle`). A request that still waits leaves its place in
`WaitingRoom.wait` or, with several gateways, `TurnRequests.turn`.

Where an answer breaks off, `run` of gateway/relay/stream_relay.py (of whole answers relay.py beside it) decides
between another worker (WorkerFailed) and an error for the client (StreamInterrupted), which `Exchange.fail` writes.
Whether another worker is tried after WorkerFailed is decided in gateway/dispatch/retries.py.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from gateway.cells.living_cells import LivingCells
from gateway.database.usage_query import UsageReader
from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.idempotency import repeatable
from gateway.dispatch.preemption import Preempted
from gateway.domain.errors import (
    CLIENT_CLOSED_STATUS,
    GatewayError,
    InternalError,
    ModelNotAllowed,
    ModelNotFound,
    NoWorker,
    Overloaded,
    PromptTooLong,
    StreamInterrupted,
    WorkerError,
)
from gateway.domain.exchange import Exchange
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request import InferenceRequest
from gateway.domain.request_context import RequestContext
from gateway.domain.tenant import Tenant
from gateway.fleet.fleet import Fleet
from gateway.ledger.attribution import attribution
from gateway.media.media_policy import MediaPolicy
from gateway.models.catalogue import Catalogue
from gateway.models.model_selection import ModelSelection
from gateway.models.service_classes import ServiceClasses
from gateway.quotas.headers import openai_headers
from gateway.quotas.quota_store import Lease
from gateway.relay.relay import relay
from gateway.telemetry.progress import Progress
from gateway.telemetry.request_record import CLIENT_CLOSED, RequestRecord
from gateway.telemetry.tracing import Tracing
from gateway.tenants.authentication import Authentication
from gateway.tokenization.prompt_hasher import PromptHasher
from workers.adapter import WorkerFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a gateway that serve a request; filled in by app.py."""

    authentication: Authentication
    catalogue: Catalogue
    model_selection: ModelSelection
    media: MediaPolicy
    prompt_hasher: PromptHasher
    dispatch: Dispatch
    tracing: Tracing
    observers: tuple[Callable[[RequestRecord], None], ...]
    """Called with the record of each request at its end."""
    usage: UsageReader | None
    """The usage ledger; None without a database."""
    unread_seconds_max: float
    """How long a client may read nothing of its answer."""
    repeats_max: int = 3
    """Requests under one idempotency key."""
    classes: ServiceClasses = field(default_factory=ServiceClasses)
    cells: LivingCells | None = None
    """The cells that are alive; None where there are none."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


async def serve(exchange: Exchange, services: Services) -> None:
    """Serve one request, from its API key to its record."""
    progress = Progress(exchange.id, str(exchange.surface), services.clock, services.wall)
    traceparent = exchange.traceparent
    progress.trace = services.tracing.start_trace(
        traceparent, exchange.tracestate if traceparent is not None else None, exchange.batch
    )
    try:
        tenant = await authenticate(exchange, services, progress)
        if services.cells is not None and await exchange.move_to_cell(
            services.cells.owner_of(tenant.organisation), tenant
        ):
            return
        ctx = await read_request(exchange, tenant, services, progress)
        try:
            await answer(ctx, exchange, services, progress)
        except (NoWorker, WorkerError, Overloaded) as err:
            if not another_model_may_serve(err) or not await fall_back(ctx, exchange, services, progress):
                raise
    except GatewayError as err:
        progress.fail(err.code, err.status)
        await exchange.fail(err)
    except (asyncio.CancelledError, ConnectionResetError):
        progress.fail(CLIENT_CLOSED, CLIENT_CLOSED_STATUS)
        raise
    except Exception:
        log.exception("request %s failed in the gateway", exchange.id, extra=trace_of(progress))
        progress.fail(InternalError.code, InternalError.status)
        await exchange.fail(InternalError(exchange.id))
    finally:
        exchange.memory.release()
        if not exchange.moved:
            notify(services.observers, progress.record())


async def answer(ctx: RequestContext, exchange: Exchange, services: Services, progress: Progress) -> None:
    """Answer the request by a worker of its model.

    A failure before the first byte concerns this model only: `serve` may then let another model answer.
    """
    dispatch = services.dispatch
    reservations, attempts = dispatch.reservations, dispatch.attempts

    ctx, prompt = await encode(ctx, exchange, services, progress)

    # Reserve quota for the prompt and the longest answer.
    lease = await reservations.reserve(ctx, prompt, progress)

    pending = attempts.pending_request(ctx, prompt, progress)
    headers: dict[str, str] = {}
    prepare = partial(prepare_answer, exchange, ctx.request, lease, headers)
    keep_alive = None
    if ctx.request.stream and ctx.comment_seconds is not None:
        keep_alive = partial(send_comments, exchange, ctx.comment_seconds)
    try:
        # Each round is one attempt: it waits for a placement on a worker, and frees it at its end.
        while True:
            await attempts.begin(pending, keep_alive)
            try:
                # Send the request to the worker, and relay its answer. Every ending closes the worker's stream.
                try:
                    worker_answer = await attempts.open(pending, lease, prepare)
                    assert pending.attempt is not None
                    worker = pending.attempt.placement.worker
                    await relay(
                        worker_answer,
                        exchange,
                        ctx.request,
                        progress,
                        headers,
                        on_begun=partial(attempts.report_answer, pending),
                        reports_cached_tokens=worker.adapter.isolates or not ctx.tenant.group,
                        response_shapes=(
                            worker.response_shapes if dispatch.worker_calls.aggregates_streams else None
                        ),
                        running_usage=worker.adapter.reports_running_usage,
                    )
                finally:
                    await attempts.close(pending)
                attempts.reports.completed(pending)
                return
            except WorkerFailed as err:
                # Nothing of an answer has been sent, so the next worker may try.
                attempts.retries.raise_if_final(pending, err)
            except Preempted:
                continue  # The request waits for another turn.
            except StreamInterrupted:
                attempts.reports.broke_off(pending)
                raise
            finally:
                attempts.end(pending)
    finally:
        # Settle the quota: charge what was used, at the prices of the worker or provider that answered.
        reservations.settle(pending, lease)


async def encode(
    ctx: RequestContext, exchange: Exchange, services: Services, progress: Progress
) -> tuple[RequestContext, PromptBlocks]:
    """Encode the prompt: its tokens, and the blocks that are looked up in the index of caches.

    The context is returned with the answer's bound, where the client accepts a shorter answer than it asked for.
    """
    if ctx.request.accepts_shorter_answers:
        ctx = with_context_length(ctx, services.dispatch.fleet)
    prompt = await services.prompt_hasher.blocks(ctx)
    if ctx.request.accepts_shorter_answers:
        ctx = shortened(ctx, prompt)
    progress.prompt_tokens = prompt.prompt_tokens
    exchange.set_prompt_tokens(prompt.prompt_tokens, prompt.output_tokens_max)
    if progress.trace is not None:
        progress.mark("tokenise")
    return ctx, prompt


def prepare_answer(
    exchange: Exchange, request: InferenceRequest, lease: Lease, headers: dict[str, str]
) -> None:
    """Do what the answer needs of the gateway before it begins, while the worker computes; fill in `headers`."""
    headers.update(openai_headers(lease.limit_statuses))
    if request.stream:
        exchange.prepare_stream(headers)


def with_context_length(ctx: RequestContext, fleet: Fleet) -> RequestContext:
    """Return the context with its workers' context length, where the settings do not name one."""
    if ctx.model.context_length is not None:
        return ctx
    model = replace(ctx.model, context_length=fleet.context_length(ctx.model.name))
    return msgspec.structs.replace(ctx, model=model)


def shortened(ctx: RequestContext, prompt: PromptBlocks) -> RequestContext:
    """Return the request with its answer bounded to what the prompt leaves; quota is reserved for no more."""
    if prompt.output_tokens_max is None:
        return ctx
    request = msgspec.structs.replace(ctx.request, output_tokens_max=prompt.output_tokens_max)
    return msgspec.structs.replace(ctx, request=request)


async def fall_back(ctx: RequestContext, exchange: Exchange, services: Services, progress: Progress) -> bool:
    """Answer by a model that the settings name in place of this one; False if none can."""
    failed = progress.worker
    for other in services.model_selection.fallbacks(ctx):
        log.info(
            "request %s: %s answers in place of %s",
            *(ctx.id, other.model.name, ctx.model.name),
            extra=trace_of(progress),
        )
        progress.switch_model(other.model.name)
        try:
            await answer(other, exchange, services, progress)
        except (NoWorker, WorkerError, Overloaded, PromptTooLong) as err:
            if not another_model_may_serve(err):
                raise
            continue
        return True
    progress.switch_model(ctx.model.name, failed)
    return False


def another_model_may_serve(err: GatewayError) -> bool:
    """Return whether the workers of another model may do better."""
    return err.reported_by_workers if isinstance(err, Overloaded) else True


def trace_of(progress: Progress) -> dict[str, str]:
    """Return the fields that name the trace of a request in log lines."""
    trace = progress.trace
    return {"trace_id": f"{trace.trace_id:032x}"} if trace is not None else {}


def notify(observers: Iterable[Callable[[RequestRecord], None]], record: RequestRecord) -> None:
    """Hand the record to all observers; one that fails does not keep it from the others."""
    for observe in observers:
        try:
            observe(record)
        except Exception:
            log.exception("an observer of request %s failed", record.id)


async def authenticate(exchange: Exchange, services: Services, progress: Progress) -> Tenant:
    """Return the tenant that the request's key belongs to. Raises what Authentication raises.

    This is the only look at the key: a request that was accepted before its key was revoked runs to its end, and is
    charged.
    """
    if exchange.caller is not None:
        tenant = services.authentication.reauthenticate(*exchange.caller)
    else:
        tenant = await services.authentication.authenticate(exchange.api_key, lambda: exchange.address)
    progress.tenant, progress.key_id = tenant.id, tenant.key_id
    progress.organisation = tenant.organisation
    if progress.trace is not None:
        progress.mark("authenticate")
    return tenant


async def read_request(
    exchange: Exchange, tenant: Tenant, services: Services, progress: Progress
) -> RequestContext:
    """Read the request, and check what the tenant may ask for.

    Raises ModelNotFound, NoWorker, ModelNotAllowed, ClassNotAllowed, BadRequest, and what reading the body raises.
    """
    exchange.memory.belong_to(tenant.id)
    request = await exchange.read_request(tenant)
    progress.asked = request.model
    progress.user, progress.tags = attribution(request.fields)
    try:
        model = services.catalogue.find(request.model, tenant.id)
    except ModelNotFound:
        # A worker that has not reported yet may serve it; clients try again after 503, and never after 404.
        if services.dispatch.fleet.complete:
            raise ModelNotFound(request.model, services.catalogue.names_for(tenant)) from None
        raise NoWorker(request.model) from None
    progress.model, progress.stream = model.name, request.stream
    if not tenant.allows(model.name):
        raise ModelNotAllowed(request.model)
    if model.splits:
        model = services.model_selection.split(model, request, tenant)
        progress.model = model.name
    request = await services.media.apply(request, tenant, exchange.memory)
    if progress.trace is not None:
        progress.mark("receive")
    asked = exchange.queue_headers
    service_class = services.classes.find(asked.service_class, request, tenant, model.name)
    if request.generates:
        progress.service_class = service_class
    key = exchange.idempotency_key
    return RequestContext(
        id=exchange.id,
        tenant=tenant,
        model=model,
        request=services.classes.without_own_tiers(request),
        received_at=progress.received_at,
        service_class=service_class,
        expires_at=(
            progress.received_at + asked.timeout_seconds if asked.timeout_seconds is not None else None
        ),
        comment_seconds=asked.comment_seconds,
        idempotency_key=repeatable(key, tenant, request, services.repeats_max) if key is not None else None,
        carrier=exchange.carrier,
    )


@asynccontextmanager
async def send_comments(exchange: Exchange, every_seconds: float) -> AsyncIterator[None]:
    """Begin the stream and send comments in it while a request waits, for a client that asked for comments."""

    async def comment() -> None:
        with suppress(ConnectionResetError):  # The handler is cancelled, too.
            while True:
                await asyncio.sleep(every_seconds)
                await exchange.comment()

    task = asyncio.ensure_future(comment())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
