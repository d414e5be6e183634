"""`radixgate workers`: lists, adds, removes, drains and puts to sleep workers, in all gateways at once."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gateway.cli.support.columns import Row, format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import JsonOption, to_json
from gateway.cli.support.deployment import REDIS, find_deployment
from gateway.cli.support.index_access import open_index
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.cli.support.reported_workers import reported_workers
from gateway.discovery import worker_sleep
from gateway.discovery.file import parse_worker
from gateway.discovery.source import SourceUnavailable
from gateway.discovery.worker_kinds import WorkerKinds
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.settings.checks.worker_checks import kind_problem
from gateway.settings.tree import Settings
from gateway.settings.urls import credentials_problem, url_problem
from gateway.settings.workers import AUTO_KIND, WorkerSettings
from gateway.wiring.fleet import target_of, worker_of
from workers.adapter import SupportsSleep, WorkerFailed

app = typer.Typer(
    help="List, add, remove and drain workers. Shown are the workers of the settings and those "
    "registered in Redis. Changes take effect in all gateways within two seconds; with `redis.url: "
    "embedded` a gateway has to run.",
    rich_markup_mode=None,
)

Result = TypeVar("Result")
Workers = Annotated[list[str], typer.Argument(help="Ids of the workers.")]


@app.command("list")
def list_(config: ConfigFile = None, set_: Assignments = None, json: JsonOption = False) -> None:
    """List the workers of the settings, the registered workers, and all drained workers.

    Slots are the requests that an engine runs at a time: by `workers[].slots`, or by the engine's report to the
    gateway that runs here. That gateway also reports the state of each worker, and why its last probe failed.
    """
    settings = _settings(config, set_)
    reported = reported_workers(config, set_)

    async def look(registry: WorkerRegistry) -> tuple[list[WorkerSettings], dict[str, str], frozenset[str]]:
        return *await registry.workers(), await registry.draining()

    registered, refused, draining = _with_registry(settings, look)
    head = ("worker", "kind", "url", "slots", "from", "state")
    rows: list[Row] = [
        (
            *(worker.id, worker.kind, worker.url),
            worker.slots or reported.get((worker.id, worker.url), {}).get("slots") or "",
            source,
            "draining" if worker.id in draining else _state(reported.get((worker.id, worker.url))),
        )
        for source, workers in (("settings", settings.workers), ("registered", registered))
        for worker in workers
    ]
    named = {row[0] for row in rows}
    rows += [
        (worker, "", "", "", "elsewhere", "draining") for worker in sorted(draining - named - refused.keys())
    ]
    rows += [(worker, "", "", "", "registered", f"invalid: {why}") for worker, why in refused.items()]
    if json:
        shown = (dict(zip(head, row, strict=True)) for row in rows)
        print("\n".join(to_json({**row, "slots": row["slots"] or None}) for row in shown))
    else:
        print("\n".join(format_columns([head, *rows])))


def _state(reported: dict[str, Any] | None) -> str:
    """Return the state of a worker with the cause, as a gateway reports it; empty without a report."""
    if reported is None:
        return ""
    return ": ".join(part for part in (reported["state"], reported["trouble"]) if part)


@app.command()
def add(
    worker: Annotated[str, typer.Argument(help="Id of the worker.")],
    url: Annotated[str, typer.Argument(help="http:// or https:// address of the worker.")],
    kind: Annotated[
        str,
        typer.Option(
            help="Kind of the worker: sglang, vllm, openai, embedded, llamacpp, lmdeploy, ollama, tgi, trtllm, "
            "or the kind of a plug-in; auto: the kind "
            "that its answers show."
        ),
    ] = AUTO_KIND,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model that the worker serves. May be repeated.", show_default="what the worker reports"
        ),
    ] = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Register a worker. Gateways with `discovery: [{kind: redis}]` use it within two seconds."""
    settings = _settings(config, set_)
    if worker in {one.id for one in settings.workers}:
        raise CommandError(f"worker {worker} is in the settings already", 2)
    if (problem := kind_problem(kind)) is not None:
        raise CommandError(f"--kind: {problem}", 2)
    given: dict[str, Any] = {"id": worker, "kind": kind, "url": url, "models": model or []}
    try:
        parse_worker(given)
    except SourceUnavailable as err:
        raise CommandError(str(err), 2) from err
    if problem := url_problem(url) or credentials_problem(url):
        raise CommandError(f"{url}: {problem}", 2)
    _with_registry(settings, lambda registry: registry.put(given, lease_seconds=None))
    if not any(source.kind == "redis" for source in settings.discovery):
        raise CommandError(
            f"worker {worker} is registered, but will not be used: discovery has no {{kind: redis}}"
        )


@app.command()
def remove(
    worker: Annotated[str, typer.Argument(help="Id of the worker.")],
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Remove a registered worker: its streams run to their end, and it gets no new requests."""
    if not _with_registry(_settings(config, set_), lambda registry: registry.remove(worker)):
        raise CommandError(f"worker {worker} is not registered")


@app.command()
def drain(workers: Workers, config: ConfigFile = None, set_: Assignments = None) -> None:
    """Send no new requests to these workers, from any gateway, until `radixgate workers resume`."""
    settings = _settings(config, set_)

    async def do(registry: WorkerRegistry) -> set[str]:
        await registry.drain(workers)
        registered = {str(one.get("id")) for one in await registry.registered()}
        return set(workers) - registered - {one.id for one in settings.workers}

    for worker in sorted(_with_registry(settings, do)):
        # Gateways may find the worker elsewhere or have it in other settings; or the id is misspelt.
        print(f"radixgate: worker {worker} is neither in these settings nor in the registry", file=sys.stderr)


@app.command()
def resume(workers: Workers, config: ConfigFile = None, set_: Assignments = None) -> None:
    """Send requests to these workers again."""
    _with_registry(_settings(config, set_), lambda registry: registry.resume(workers))


@app.command()
def sleep(
    worker: Annotated[str, typer.Argument(help="Id of the worker.")],
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Drain a worker and make its engine free its GPU memory (vLLM, SGLang), until `radixgate workers wake`."""
    settings = _settings(config, set_)

    async def do(registry: WorkerRegistry) -> None:
        async with _sleeping_engine(settings, registry, worker) as engine:
            await worker_sleep.put_to_sleep(registry, worker, engine)

    _with_registry(settings, do)


@app.command()
def wake(
    worker: Annotated[str, typer.Argument(help="Id of the worker.")],
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Make the engine of a sleeping worker allocate its GPU memory again, and send requests to the worker again."""
    settings = _settings(config, set_)

    async def do(registry: WorkerRegistry) -> None:
        async with _sleeping_engine(settings, registry, worker) as engine:
            await worker_sleep.wake_up(registry, worker, engine)

    _with_registry(settings, do)


@asynccontextmanager
async def _sleeping_engine(
    settings: Settings, registry: WorkerRegistry, worker: str
) -> AsyncIterator[SupportsSleep]:
    """Connect to the engine of a worker. Raises CommandError if the engine cannot sleep or a call to it fails."""
    known = {one.id: one for one in (*(await registry.workers())[0], *settings.workers)}
    if worker not in known:
        raise CommandError(f"there is no worker {worker} in the settings or in Redis")
    kinds = WorkerKinds(target_of)
    resolved = kinds.resolved(known[worker])
    if resolved is None:
        await kinds.ask([known[worker]])
        resolved = kinds.resolved(known[worker])
    if resolved is None:
        raise CommandError(f"worker {worker} does not answer, and its kind is not in the settings")
    adapter = worker_of(resolved).adapter
    try:
        if not isinstance(adapter, SupportsSleep):
            raise CommandError(f"worker {worker} is of a kind that does not sleep: {resolved.kind}")
        yield adapter
    except WorkerFailed as err:
        raise CommandError(f"worker {worker}: {err}") from err
    finally:
        adapter.close()


def _settings(config: Path | None, set_: list[str] | None) -> Settings:
    return find_deployment(config, set_, REDIS).settings


def _with_registry(settings: Settings, do: Callable[[WorkerRegistry], Awaitable[Result]]) -> Result:
    """Run work on the registry of workers and return its result. Raises CommandError if Redis does not answer."""

    async def work() -> Result:
        async with open_index(settings) as access:
            return await do(WorkerRegistry(access.redis, settings.redis.prefix))

    return asyncio.run(work())
