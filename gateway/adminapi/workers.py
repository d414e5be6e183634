"""Workers: who serves and how they fare, here; who gets no new requests and who is registered, in all gateways."""

from collections.abc import Awaitable
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.adminapi.resources import AdminPage
from gateway.discovery import worker_sleep
from gateway.discovery.discovery import Discovery
from gateway.discovery.file import parse_worker
from gateway.discovery.source import SourceUnavailable
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.settings.types import HttpUrl, Name
from radix_cache.match import WorkerId
from workers.adapter import SupportsSleep, WorkerUnreachable
from workers.worker import Health


class WorkerShown(msgspec.Struct, kw_only=True):
    """One worker, as this gateway knows it.

    `found`: in the settings, or in which source. `state`: up, suspect, down, draining, asleep; `circuit`: open
    where its requests fail though its probes do not, trial where it is tried again. `trouble`: why its last probe
    failed.
    `streams`, `tokens_queued`, `kv_tokens`: of all gateways. `load_heard`: its load feed says how busy it is.
    """

    id: str
    kind: str
    url: str | None
    found: str
    models: list[str]
    state: str
    circuit: str
    trouble: str
    streams: int
    tokens_queued: int
    kv_tokens: int
    kv_tokens_max: int | None
    load_heard: bool
    failures: int
    prefill_tokens_per_second: float
    fixed_ms: float
    step_ms: float


class NewWorker(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A worker to be registered. `models`: by default those that it reports."""

    kind: str
    url: HttpUrl
    models: Annotated[list[Name], Meta(max_length=100)] = []


class WorkerStateChange(msgspec.Struct, kw_only=True):
    """What all gateways do within a second or two."""

    id: str
    state: str


def operations(fleet: Fleet, discovery: Discovery, registry: WorkerRegistry) -> list[Operation]:
    async def list_(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        return OperationResponse(value=AdminPage(data=[shown(worker, discovery) for worker in fleet]))

    async def drain(request: OperationRequest) -> OperationResponse:
        return await told(request, "drain", Health.DRAINING)

    async def resume(request: OperationRequest) -> OperationResponse:
        return await told(request, "resume", Health.SUSPECT)

    async def told(request: OperationRequest, action: str, state: Health) -> OperationResponse:
        request.query_parameters()
        identity = known(request)
        async with request.store.change() as change:
            change.action = action
            await change.note("workers", identity, {"id": identity})
            await (registry.drain if action == "drain" else registry.resume)([identity])
        return OperationResponse(value=WorkerStateChange(id=identity, state=state.value), status=202)

    async def sleep(request: OperationRequest) -> OperationResponse:
        engine, identity = sleeper(request), request.path_parameter("id")
        load = fleet[WorkerId(identity)].load

        def streams() -> int:
            return load.streams + load.others.streams + load.external.streams

        if streams():
            raise at_work(streams())
        await noted(request, "sleep", identity)
        return await done(identity, worker_sleep.put_to_sleep(registry, identity, engine, streams), "asleep")

    def at_work(streams: int) -> Problem:
        # What an engine makes of them when its memory goes differs, and none of it is good.
        return Problem(409, f"Requests under way there: {streams}. Drain it, and let them end first.")

    async def wake(request: OperationRequest) -> OperationResponse:
        engine, identity = sleeper(request), request.path_parameter("id")
        await noted(request, "wake", identity)
        return await done(identity, worker_sleep.wake_up(registry, identity, engine), Health.SUSPECT.value)

    def sleeper(request: OperationRequest) -> SupportsSleep:
        request.query_parameters()
        worker = fleet[WorkerId(known(request))]
        if not isinstance(worker.adapter, SupportsSleep):
            raise Problem(409, f"It is of a kind that does not sleep: {worker.kind}.")
        return worker.adapter

    async def noted(request: OperationRequest, action: str, identity: str) -> None:
        """Before it is done: that takes as long as an engine copies weights, and others would wait."""
        async with request.store.change() as change:
            change.action = action
            await change.note("workers", identity, {"id": identity})

    async def done(identity: str, doing: Awaitable[None], state: str) -> OperationResponse:
        try:
            await doing
        except WorkerUnreachable as err:
            raise Problem(503, f"The engine does not do as it is told: {err}.") from err
        except worker_sleep.WorkerBusy as err:
            raise at_work(err.streams) from err
        return OperationResponse(value=WorkerStateChange(id=identity, state=state))

    async def put(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        identity = request.path_parameter("id")
        asked = await request.body(NewWorker)
        if discovery.is_static(WorkerId(identity)):
            raise Problem(409, f"Worker {identity[:200]!r} stands in the settings.")
        if not discovery.uses_registry:
            raise Problem(409, "Nobody would ask for it: discovery has no {kind: redis}.")
        given = {"id": identity, **msgspec.to_builtins(asked)}
        try:
            parse_worker(given)
        except SourceUnavailable as err:
            raise Problem(400, f"{err}.") from err
        async with request.store.change() as change:
            await change.note("workers", identity, given)
            await registry.put(given, lease_seconds=None)
        return OperationResponse(value=WorkerStateChange(id=identity, state="registered"), status=202)

    async def remove(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        identity = request.path_parameter("id")
        async with request.store.change() as change:
            change.action = "remove"
            if not await registry.remove(identity):
                raise Problem(404, f"Worker {identity[:200]!r} is not registered.")
            await change.note("workers", identity, {"id": identity})
        return OperationResponse(value=WorkerStateChange(id=identity, state="leaving"), status=202)

    def known(request: OperationRequest) -> str:
        identity = request.path_parameter("id")
        if WorkerId(identity) not in fleet:
            raise Problem(404, f"There is no worker {identity[:200]!r}.")
        return identity

    return [
        Operation(
            method="GET",
            path="/workers",
            role="viewer",
            summary="List workers, and how they fare.",
            handle=list_,
            response_type=AdminPage,
        ),
        Operation(
            method="PUT",
            path="/workers/{id}",
            role="operator",
            summary="Register a worker, in all gateways that ask Redis for some.",
            handle=put,
            response_type=WorkerStateChange,
            request_type=NewWorker,
            status=202,
        ),
        Operation(
            method="DELETE",
            path="/workers/{id}",
            role="operator",
            summary="Take a registered worker out. Its streams run to their end.",
            handle=remove,
            response_type=WorkerStateChange,
            status=202,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/drain",
            role="operator",
            summary="Send it no new requests, from any gateway. Its streams run to their end.",
            handle=drain,
            response_type=WorkerStateChange,
            status=202,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/resume",
            role="operator",
            summary="Take draining back.",
            handle=resume,
            response_type=WorkerStateChange,
            status=202,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/sleep",
            role="operator",
            summary="Drain an idle worker and have its engine give its memory away. Answers once that is done.",
            handle=sleep,
            response_type=WorkerStateChange,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/wake",
            role="operator",
            summary="Have its engine take its memory back, and send it requests again.",
            handle=wake,
            response_type=WorkerStateChange,
        ),
    ]


def shown(worker: Worker, discovery: Discovery) -> WorkerShown:
    """As operators see it."""
    load, settings = worker.load, discovery.settings_of(worker.id)
    return WorkerShown(
        id=worker.id,
        kind=worker.kind,
        url=settings.url if settings is not None else None,
        found=discovery.source_name(worker.id),
        models=sorted(worker.models),
        state="asleep" if worker.report.asleep else worker.health.health.value,
        circuit="open" if worker.health.open else "trial" if worker.health.trial else "closed",
        trouble=worker.trouble,
        streams=load.streams + load.others.streams,
        tokens_queued=load.all_tokens_queued,
        kv_tokens=load.kv_tokens + load.others.kv_tokens,
        kv_tokens_max=worker.report.kv_tokens_max,
        load_heard=load.is_heard,
        failures=worker.failures,
        prefill_tokens_per_second=1000 / worker.speed.ms_per_token,
        fixed_ms=worker.speed.fixed_ms,
        step_ms=worker.speed.step_ms,
    )
