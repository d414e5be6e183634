"""The spine: one request, from its key to its record. Read this first; every line of `serve` is a room.

Invariants that it makes visible: another worker is tried only before the first byte; whatever is entered is left,
on every ending, also when the client leaves; policies see values only; quota is settled and the record written
whatever happened, and nobody waits for either.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from gateway.database.usage_query import UsageReader
from gateway.dispatch.idempotency import repeatable
from gateway.dispatch.placement import Placed
from gateway.dispatch.preemption import Preempted
from gateway.dispatch.reservations import Reservations
from gateway.domain.context import RequestContext
from gateway.domain.errors import (
    Forbidden,
    GatewayError,
    InternalError,
    ModelNotFound,
    NoWorker,
    Overloaded,
    PromptTooLong,
    WorkerError,
)
from gateway.domain.exchange import Exchange
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request import Surface
from gateway.domain.tenant import Tenant
from gateway.fleet.fleet import Fleet
from gateway.ledger.attribution import attribution
from gateway.media.media_policy import MediaPolicy
from gateway.models.catalogue import Catalogue
from gateway.models.model_selection import ModelSelection
from gateway.models.service_classes import ServiceClasses
from gateway.relay.relay import relay
from gateway.relay.stream_aggregator import has_faithful_stream
from gateway.telemetry.record import CLIENT_CLOSED, Progress, RequestRecord
from gateway.telemetry.tracing import Tracing
from gateway.tenants.authentication import Authentication
from gateway.tokenization.prompt_hasher import PromptHasher
from workers.adapter import WorkerCall, WorkerUnreachable

log = logging.getLogger(__name__)

STATUS_CLIENT_CLOSED = 499

PATHS = {Surface.TOKENIZE: "tokenize", Surface.DETOKENIZE: "detokenize"}
"""Of workers, where it is not below /v1: vLLM has these two outside, SGLang has them there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the spine needs; filled in by app.py. `usage`: None without a database. `cache_salt` derives a group's
    salt for the engine. `assembles`: workers are asked for a stream also where the client wants no stream."""

    authentication: Authentication
    catalogue: Catalogue
    model_selection: ModelSelection
    media: MediaPolicy
    prompt_hasher: PromptHasher
    reservations: Reservations
    tracing: Tracing
    cache_salt: Callable[[str], str]
    observers: tuple[Callable[[RequestRecord], None], ...]
    usage: UsageReader | None
    first_byte_seconds_max: float
    whole_seconds_max: float
    idle_seconds_max: float
    repeats_max: int = 3
    assembles: bool = True
    classes: ServiceClasses = field(default_factory=ServiceClasses)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


async def serve(exchange: Exchange, at: Services) -> None:
    """One request, from its key to its record."""
    progress = Progress(exchange.id, exchange.surface.value, at.clock, at.wall)
    progress.trace = at.tracing.begin(exchange.traceparent)
    try:
        tenant = await authenticate(exchange, at, progress)
        ctx = await admit(exchange, tenant, at, progress)
        try:
            await answered(ctx, exchange, at, progress)
        except (NoWorker, WorkerError, Overloaded) as err:
            if not is_of_its_model(err) or not await instead(ctx, exchange, at, progress):
                raise
    except GatewayError as err:
        progress.fail(err.code, err.status)
        await exchange.fail(err)
    except (asyncio.CancelledError, ConnectionResetError):
        progress.fail(CLIENT_CLOSED, STATUS_CLIENT_CLOSED)
        raise
    except Exception:
        log.exception("request %s failed in the gateway", exchange.id)
        progress.fail(InternalError.code, InternalError.status)
        await exchange.fail(InternalError(exchange.id))
    finally:
        tell(at.observers, progress.record())


async def answered(ctx: RequestContext, exchange: Exchange, at: Services, progress: Progress) -> None:
    """By a worker of its model. Whoever fails before the first byte has failed for this model alone."""
    ctx = bounded(ctx, at.reservations.fleet)
    prompt = await at.prompt_hasher.blocks(ctx)
    ctx = shortened(ctx, prompt)
    progress.prompt_tokens = prompt.prompt_tokens
    exchange.set_prompt_tokens(prompt.prompt_tokens, prompt.output_tokens_max)
    progress.mark("tokenise")
    comments = partial(signs_of_life, exchange, ctx)
    async with at.reservations.hold(ctx, prompt, progress, comments) as held:
        while True:
            async with held.place():
                try:
                    async with held.answer(partial(call, ctx, prompt, at, progress)) as answer:
                        own = held.worker.adapter.isolates or not ctx.tenant.group
                        shapes = held.worker.shapes if at.assembles else None
                        return await relay(answer, exchange, ctx.request, progress, held.headers, own, shapes)
                except WorkerUnreachable as err:
                    held.failed(err)  # Nothing has been sent, so the next worker may try.
                except Preempted:
                    continue  # It waits again.


def bounded(ctx: RequestContext, fleet: Fleet) -> RequestContext:
    """With the context that its workers tell of, where it matters and the settings do not say."""
    if not ctx.request.shortens or ctx.model.context_length is not None:
        return ctx
    model = replace(ctx.model, context_length=fleet.context_length(ctx.model.name))
    return msgspec.structs.replace(ctx, model=model)


def shortened(ctx: RequestContext, prompt: PromptBlocks) -> RequestContext:
    """As what its prompt leaves: what is beyond that need not be reserved either."""
    if not ctx.request.shortens or prompt.output_tokens_max is None:
        return ctx
    request = msgspec.structs.replace(ctx.request, output_tokens_max=prompt.output_tokens_max)
    return msgspec.structs.replace(ctx, request=request)


async def instead(ctx: RequestContext, exchange: Exchange, at: Services, progress: Progress) -> bool:
    """By another model, where the settings name one that can; or not."""
    failed = progress.worker
    for other in at.model_selection.fallbacks(ctx):
        log.info("request %s: %s answers in place of %s", ctx.id, other.model.name, ctx.model.name)
        progress.switch_model(other.model.name)
        try:
            await answered(other, exchange, at, progress)
        except (NoWorker, WorkerError, Overloaded, PromptTooLong) as err:
            if not is_of_its_model(err):
                raise
            continue
        return True
    progress.switch_model(ctx.model.name, failed)
    return False


def is_of_its_model(err: GatewayError) -> bool:
    """Another model's workers may do better."""
    return err.by_workers if isinstance(err, Overloaded) else True


def tell(observers: Iterable[Callable[[RequestRecord], None]], record: RequestRecord) -> None:
    """Everybody who wants to know; one who fails keeps it from nobody else."""
    for observe in observers:
        try:
            observe(record)
        except Exception:
            log.exception("an observer of request %s failed", record.id)


async def authenticate(exchange: Exchange, at: Services, progress: Progress) -> Tenant:
    """Whose key is it? Raises what Authentication.admit and admit_again raise."""
    if exchange.caller is not None:
        tenant = at.authentication.admit_again(*exchange.caller)
    else:
        tenant = await at.authentication.admit(exchange.api_key, lambda: exchange.address)
    progress.tenant, progress.key_id = tenant.id, tenant.key_id
    progress.organisation = tenant.organisation
    progress.mark("authenticate")
    return tenant


async def admit(exchange: Exchange, tenant: Tenant, at: Services, progress: Progress) -> RequestContext:
    """What does it want, and may it? Raises ModelNotFound, NoWorker, Forbidden, BadRequest, what reading raises."""
    request = await exchange.request(tenant)
    progress.asked = request.model
    progress.user, progress.tags = attribution(request.fields)
    try:
        model = at.catalogue.find(request.model)
    except ModelNotFound:
        # A worker that has not spoken yet may have it; a client tries again after 503, and never after 404.
        if at.reservations.fleet.complete:
            raise
        raise NoWorker(request.model) from None
    progress.model, progress.stream = model.name, request.stream
    if not tenant.allows(model.name):
        raise Forbidden(request.model)
    model = at.model_selection.split(model, request, tenant)
    progress.model = model.name
    request = await at.media.apply(request)
    progress.mark("receive")
    queue_headers = exchange.queue_headers
    service_class = at.classes.find(queue_headers.service_class, request, tenant, model.name)
    if request.generates:
        progress.service_class = service_class
    return RequestContext(
        id=exchange.id,
        tenant=tenant,
        model=model,
        request=at.classes.without_own_tiers(request),
        received_at=progress.received_at,
        service_class=service_class,
        expires_at=(
            progress.received_at + queue_headers.patience_seconds if queue_headers.patience_seconds is not None else None
        ),
        once=repeatable(exchange.idempotency_key, tenant, request, at.repeats_max),
    )


def call(
    ctx: RequestContext, prompt: PromptBlocks, at: Services, progress: Progress, placed: Placed
) -> WorkerCall:
    """The request as this worker gets it."""
    fields, stream, worker = ctx.request.fields, ctx.request.stream, placed.worker
    # Of a pair the room that it meets in says which rank computes, and who answers chooses by itself.
    rank = placed.rank if placed.computes is worker and ctx.request.generates else None
    if (
        not stream
        and at.assembles
        and worker.adapter.streams_whole
        and worker.shapes.of(ctx.request.surface) is not None
        and has_faithful_stream(ctx.request)
    ):
        fields, stream = {**fields, "stream": msgspec.Raw(b"true")}, True
    seconds_max = at.first_byte_seconds_max
    if not stream and (ctx.request.generates or ctx.request.form is not None):
        seconds_max = max(seconds_max, at.whole_seconds_max)  # Its first byte comes after its last token.
    if prompt.output_tokens_max is not None:
        fields = {**fields, "max_tokens": msgspec.Raw(b"%d" % prompt.output_tokens_max)}
    return WorkerCall(
        id=ctx.id,
        path=PATHS.get(ctx.request.surface, f"v1/{ctx.request.surface.value}"),
        fields=fields,
        model=ctx.model.name,
        stream=stream,
        cache_salt=at.cache_salt(ctx.tenant.group),
        traceparent=progress.trace.to_worker() if progress.trace is not None else None,
        first_byte_seconds_max=seconds_max,
        idle_seconds_max=at.idle_seconds_max,
        priority=ctx.service_class.level if worker.priority else None,
        rank=rank.number if rank is not None else None,
        ids=prompt.ids,
        form=ctx.request.form,
        sent=progress.mark_dispatched,
    )


@asynccontextmanager
async def signs_of_life(exchange: Exchange, ctx: RequestContext) -> AsyncIterator[None]:
    """While a request waits for its turn, for a client that asked for them and streams: the stream begins."""
    every = exchange.queue_headers.comment_seconds
    if every is None or not ctx.request.stream:
        yield
        return

    async def comment() -> None:
        with suppress(ConnectionResetError):  # Its handler is cancelled, too.
            while True:
                await asyncio.sleep(every)
                await exchange.comment()

    task = asyncio.ensure_future(comment())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
