"""Operations on workers: list this gateway's workers; drain, resume, put to sleep, wake, register, remove.

Draining and registration apply to all gateways.
"""

from collections.abc import Awaitable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.adminapi.query_parameters import check_names, number
from gateway.discovery import worker_sleep
from gateway.discovery.discovery import Discovery
from gateway.discovery.file import parse_worker
from gateway.discovery.source import SourceUnavailable
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.settings.types import HttpUrl, Name
from radix_cache.match import WorkerId
from workers.adapter import SupportsSleep, WorkerFailed
from workers.worker import Health

QUERY_PARAMETERS = {
    "find": "Only workers with this text in their id, kind, state, or the name of a model.",
    "offset": "Workers to skip.",
    "limit": "Workers at most; with it or `offset`, those that do not serve come first, then by id.",
}
ORDER = {"down": 0, "suspect": 1, "draining": 2, "asleep": 3}


class WorkerShown(msgspec.Struct, kw_only=True):
    """The state of a worker at this gateway.

    `found`: where the worker is configured: the settings, or a discovery source. `state`: up, suspect, down,
    draining, asleep. `circuit`: open while its requests fail although its probes succeed, trial while one request
    is tried. `trouble`: why its last probe failed. `streams`, `tokens_queued` and `kv_tokens` are those of all
    gateways. `slots`: requests that its engine runs at a time, by the settings or its report. `load_feed_up`:
    whether a load feed of the worker is received.
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
    slots: int | None
    load_feed_up: bool
    failures: int
    prefill_tokens_per_second: float
    fixed_ms: float
    step_ms: float


class WorkerPage(msgspec.Struct, kw_only=True):
    """Workers that match. `total`: how many there are; `matching`: how many of them match."""

    data: list[WorkerShown]
    next: None = None
    total: int
    matching: int


class NewWorker(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A worker to register. `models`: by default those that the worker reports."""

    kind: str
    url: HttpUrl
    models: Annotated[list[Name], Meta(max_length=100)] = []


class WorkerStateChange(msgspec.Struct, kw_only=True):
    """The state of a worker after a change; all gateways apply it within a second or two."""

    id: str
    state: str


class _WorkerHandlers:
    """Handlers of the requests on workers."""

    def __init__(self, fleet: Fleet, discovery: Discovery, registry: WorkerRegistry) -> None:
        self._fleet = fleet
        self._discovery = discovery
        self._registry = registry

    async def list_(self, request: OperationRequest) -> OperationResponse:
        return OperationResponse(value=worker_page(self._fleet, self._discovery, request.http.query))

    async def drain(self, request: OperationRequest) -> OperationResponse:
        return await self._change_state(request, "drain", Health.DRAINING)

    async def resume(self, request: OperationRequest) -> OperationResponse:
        return await self._change_state(request, "resume", Health.SUSPECT)

    async def _change_state(self, request: OperationRequest, action: str, state: Health) -> OperationResponse:
        request.query_parameters()
        identity = self._known_worker(request)
        async with request.store.change() as change:
            change.action = action
            await change.note("workers", identity, {"id": identity})
            await (self._registry.drain if action == "drain" else self._registry.resume)([identity])
        return OperationResponse(value=WorkerStateChange(id=identity, state=state.value), status=202)

    async def sleep(self, request: OperationRequest) -> OperationResponse:
        engine, identity = self._sleeping_adapter(request), request.path_parameter("id")
        load = self._fleet[WorkerId(identity)].load

        def streams() -> int:
            return load.streams + load.others.streams + load.external.streams

        if streams():
            raise self._requests_under_way(streams())
        await self._record(request, "sleep", identity)
        return await self._finished(
            identity, worker_sleep.put_to_sleep(self._registry, identity, engine, streams), "asleep"
        )

    def _requests_under_way(self, streams: int) -> Problem:
        # No engine handles running requests well when it releases its memory.
        return Problem(409, f"The worker has {streams} requests under way. Drain it, and let them end first.")

    async def wake(self, request: OperationRequest) -> OperationResponse:
        engine, identity = self._sleeping_adapter(request), request.path_parameter("id")
        await self._record(request, "wake", identity)
        return await self._finished(
            identity, worker_sleep.wake_up(self._registry, identity, engine), Health.SUSPECT.value
        )

    def _sleeping_adapter(self, request: OperationRequest) -> SupportsSleep:
        request.query_parameters()
        worker = self._fleet[WorkerId(self._known_worker(request))]
        if not isinstance(worker.adapter, SupportsSleep):
            raise Problem(409, f"Workers of the kind {worker.kind} cannot sleep.")
        return worker.adapter

    async def _record(self, request: OperationRequest, action: str, identity: str) -> None:
        """Record an action before it is done, because the transaction must not last as long as the action."""
        async with request.store.change() as change:
            change.action = action
            await change.note("workers", identity, {"id": identity})

    async def _finished(self, identity: str, doing: Awaitable[None], state: str) -> OperationResponse:
        try:
            await doing
        except WorkerFailed as err:
            raise Problem(503, f"The engine does not carry out the command: {err}.") from err
        except worker_sleep.WorkerBusy as err:
            raise self._requests_under_way(err.streams) from err
        return OperationResponse(value=WorkerStateChange(id=identity, state=state))

    async def put(self, request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        identity = request.path_parameter("id")
        body = await request.body(NewWorker)
        if self._discovery.is_static(WorkerId(identity)):
            raise Problem(409, f"Worker {identity[:200]!r} is defined in the settings.")
        if not self._discovery.uses_registry:
            raise Problem(409, "No gateway would find it: discovery has no {kind: redis}.")
        given = {"id": identity, **msgspec.to_builtins(body)}
        try:
            parse_worker(given)
        except SourceUnavailable as err:
            raise Problem(400, f"{err}.") from err
        async with request.store.change() as change:
            await change.note("workers", identity, given)
            await self._registry.put(given, lease_seconds=None)
        return OperationResponse(value=WorkerStateChange(id=identity, state="registered"), status=202)

    async def remove(self, request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        identity = request.path_parameter("id")
        async with request.store.change() as change:
            change.action = "remove"
            if not await self._registry.remove(identity):
                raise Problem(404, f"Worker {identity[:200]!r} is not registered.")
            await change.note("workers", identity, {"id": identity})
        return OperationResponse(value=WorkerStateChange(id=identity, state="leaving"), status=202)

    def _known_worker(self, request: OperationRequest) -> str:
        identity = request.path_parameter("id")
        if WorkerId(identity) not in self._fleet:
            raise Problem(404, f"There is no worker {identity[:200]!r}.")
        return identity


def operations(fleet: Fleet, discovery: Discovery, registry: WorkerRegistry) -> list[Operation]:
    """Return the operations on workers."""
    workers = _WorkerHandlers(fleet, discovery, registry)
    return [
        Operation(
            method="GET",
            path="/workers",
            role="viewer",
            summary="List workers, with their health and load.",
            handle=workers.list_,
            response_type=WorkerPage,
            query_parameters=QUERY_PARAMETERS,
        ),
        Operation(
            method="PUT",
            path="/workers/{id}",
            role="operator",
            summary="Register a worker, for all gateways that discover workers in Redis.",
            handle=workers.put,
            response_type=WorkerStateChange,
            request_type=NewWorker,
            status=202,
        ),
        Operation(
            method="DELETE",
            path="/workers/{id}",
            role="operator",
            summary="Remove a registered worker. Its streams run to their end.",
            handle=workers.remove,
            response_type=WorkerStateChange,
            status=202,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/drain",
            role="operator",
            summary="Drain a worker: it gets no new requests from any gateway, its streams run to their end.",
            handle=workers.drain,
            response_type=WorkerStateChange,
            status=202,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/resume",
            role="operator",
            summary="Resume a drained worker.",
            handle=workers.resume,
            response_type=WorkerStateChange,
            status=202,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/sleep",
            role="operator",
            summary="Drain an idle worker and put its engine to sleep, to free its memory; answer when done.",
            handle=workers.sleep,
            response_type=WorkerStateChange,
        ),
        Operation(
            method="POST",
            path="/workers/{id}/wake",
            role="operator",
            summary="Wake a sleeping worker's engine, and send it requests again.",
            handle=workers.wake,
            response_type=WorkerStateChange,
        ),
    ]


def worker_page(fleet: Fleet, discovery: Discovery, parameters: Mapping[str, str]) -> WorkerPage:
    """Return the workers that match the query parameters. Raises Problem."""
    check_names(parameters, QUERY_PARAMETERS)
    text, workers = parameters.get("find", ""), [*fleet]
    matching = [worker for worker in workers if not text or any(text in name for name in _names(worker))]
    if "limit" in parameters or "offset" in parameters:
        matching.sort(key=lambda worker: (ORDER.get(_state(worker), len(ORDER)), worker.id))
    offset = number(parameters, "offset", 0, 10**6)
    limit = number(parameters, "limit", len(matching), 10**6)
    return WorkerPage(
        data=[shown(worker, discovery) for worker in matching[offset : offset + limit]],
        total=len(workers),
        matching=len(matching),
    )


def _names(worker: Worker) -> tuple[str, ...]:
    return (worker.id, worker.kind, _state(worker), *worker.models)


def _state(worker: Worker) -> str:
    return "asleep" if worker.report.asleep else worker.health.state.value


def shown(worker: Worker, discovery: Discovery) -> WorkerShown:
    """Return a worker as the API shows it."""
    load, settings = worker.load, discovery.settings_of(worker.id)
    return WorkerShown(
        id=worker.id,
        kind=worker.kind,
        url=settings.url if settings is not None else None,
        found=discovery.source_name(worker.id),
        models=sorted(worker.models),
        state=_state(worker),
        circuit="open" if worker.health.circuit_open else "trial" if worker.health.on_trial else "closed",
        trouble=worker.trouble,
        streams=load.streams + load.others.streams,
        tokens_queued=load.all_tokens_queued,
        kv_tokens=load.kv_tokens + load.others.kv_tokens,
        kv_tokens_max=worker.report.kv_tokens_max,
        slots=worker.slots,
        load_feed_up=load.has_load_feed,
        failures=worker.failures,
        prefill_tokens_per_second=1000 / worker.speed.ms_per_token,
        fixed_ms=worker.speed.fixed_ms,
        step_ms=worker.speed.step_ms,
    )
