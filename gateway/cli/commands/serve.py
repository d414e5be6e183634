"""`radixgate serve`: the gateway alone, against any workers."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gateway.cli.support.failure import Failure
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.process import multiprocess
from gateway.process.children import ChildFailed
from gateway.process.embedded_valkey import ValkeyFailed
from gateway.process.multiprocess import GatewayProcess
from gateway.runtime import server
from gateway.runtime.reload import registered_for_reload
from gateway.settings.sources import load
from gateway.settings.tree import Settings
from gateway.telemetry import logs

log = logging.getLogger(__name__)


def serve(
    config: ConfigFile = None,
    set_: Assignments = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            help="Shorthand for --set redis.url=URL; `embedded` starts a private Valkey.", show_default=False
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Shorthand for --set listen.processes=N.", min=1, show_default=False),
    ] = None,
    process: Annotated[str | None, typer.Option(hidden=True)] = None,
    process_directory: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the gateway. Settings come from the file, RADIXGATE__... variables and --set, in this order."""
    assignments = list(set_ or [])
    if redis_url is not None:
        assignments.append(f"redis.url={redis_url}")
    if processes is not None:
        assignments.append(f"listen.processes={processes}")
    loaded = load(config, assignments=assignments)
    logs.set_up(loaded.settings.telemetry.log_level)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    one = None
    if process is not None and process_directory is not None:
        number, _, count = process.partition("/")
        one = GatewayProcess(number=int(number), count=int(count), directory=process_directory)
    run(
        loaded.settings,
        _options(config, assignments),
        one,
        lambda: load(config, assignments=assignments).settings,
    )


def run(
    settings: Settings,
    given: Sequence[str] = (),
    one: GatewayProcess | None = None,
    read: Callable[[], Settings] | None = None,
) -> None:
    """Serves until a signal comes. `given`: options for the processes, where there are several; `read`: reads the
    settings again. Raises Failure.
    """
    try:
        if settings.listen.processes > 1 and one is None:
            run_loop(multiprocess.run(settings, given, _ready, registered_for_reload))
        else:
            run_loop(server.run(settings, _announce, one, read))
    except (server.ListenAddressUnavailable, ValkeyFailed, ChildFailed) as err:
        raise Failure(str(err)) from err


def _options(config: Path | None, assignments: Sequence[str]) -> list[str]:
    """As they are typed."""
    file = ["--config", str(config)] if config is not None else []
    return file + [word for assignment in assignments for word in ("--set", assignment)]


def _ready(url: str) -> None:
    print(f"radixgate ready at {url}", flush=True)


T = TypeVar("T")


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """On uvloop where it is installed, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    else:
        return uvloop.run(work)


def _announce(here: server.ServingGateway) -> None:
    print(f"radixgate ready at {here.tenants}", flush=True)
    print(f"  operator page {here.admin}/ui/  metrics {here.admin}/metrics", flush=True)
