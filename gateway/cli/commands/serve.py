"""`radixgate serve`: runs the gateway; the workers are separate processes."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import typer
from msgspec.structs import replace

from gateway.cli.support.admin_access import admin_url
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.event_loop import run_loop
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.cli.support.quick_start import QuickStart
from gateway.process import multiprocess
from gateway.process.children import ChildFailed
from gateway.process.embedded_valkey import ValkeyFailed
from gateway.process.multiprocess import GatewayProcess
from gateway.process.running_gateways import GatewayInfo, announced
from gateway.runtime import server
from gateway.runtime.listen_error import ListenAddressUnavailable
from gateway.runtime.reload import registered_for_reload
from gateway.runtime.serving_gateway import ServingGateway
from gateway.settings.sources import ENVIRONMENT_SOURCE, LoadedSettings, load_settings
from gateway.telemetry import logs

log = logging.getLogger(__name__)


def serve(
    config: ConfigFile = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Address of a worker, instead of a settings file. The gateway reads the worker's kind, models and "
            "block size from its answers. May be repeated.",
            show_default=False,
        ),
    ] = None,
    worker_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with the key that the workers of --worker require.",
            show_default=False,
        ),
    ] = None,
    wait_seconds: Annotated[
        float, typer.Option(help="Longest wait for a worker of --worker that does not answer yet.", min=0)
    ] = 60.0,
    write_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what was found about the workers of --worker to a new settings file, and serve with it.",
            show_default=False,
        ),
    ] = None,
    set_: Assignments = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            help="Redis to use, short for --set redis.url=URL; `embedded` starts a private Valkey server.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of gateway processes that share the port, short for --set listen.processes=N.",
            min=1,
            show_default=False,
        ),
    ] = None,
    process: Annotated[str | None, typer.Option(hidden=True)] = None,
    process_directory: Annotated[Path | None, typer.Option(hidden=True)] = None,
    process_index: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the gateway. Settings come from the file, RADIXGATE__... variables and --set; the later one wins."""
    assignments = [
        *(set_ or ()),
        *([f"redis.url={redis_url}"] if redis_url is not None else ()),
        *([f"listen.processes={processes}"] if processes is not None else ()),
    ]
    start = None
    if worker:
        if config is not None:
            raise CommandError(
                "--worker is for a start without a file: add the worker to the file instead", 2
            )
        start = QuickStart.find(worker, worker_key_env, wait_seconds, assignments)
        if write_config is not None:
            start.write(write_config)
            config = write_config
        else:
            assignments = [*start.assignments, *assignments]
    elif write_config is not None or worker_key_env is not None:
        raise CommandError("--write-config and --worker-key-env need --worker URL", 2)
    loaded = load_settings(config, assignments=assignments)
    telemetry = loaded.settings.telemetry
    logs.configure_logging(telemetry.log_level, telemetry.log_format)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    one_of_several = None
    if process is not None and process_directory is not None:
        number, _, count = process.partition("/")
        one_of_several = GatewayProcess(
            number=int(number),
            count=int(count),
            directory=process_directory,
            index_segments=[int(segment) for segment in (process_index or "").split(",") if segment],
        )
    known = _description(loaded, config, assignments)
    with ExitStack() as stack:

        def ready(url: str, admin_url: str, *, needs_key: bool) -> None:
            if one_of_several is None:
                stack.enter_context(announced(replace(known, admin_url=admin_url)))
            print(f"radixgate ready at {url}", flush=True)
            print(f"  console {admin_url}/ui/  metrics {admin_url}/metrics", flush=True)
            if start is not None:
                print("\n".join(start.next_steps(url, write_config, needs_key=needs_key)), flush=True)

        read_settings = partial(_read_settings, config, assignments)
        _run(loaded, _options(config, assignments), one_of_several, read_settings, ready)


class OnReady(Protocol):
    """The function that is called when the gateway serves."""

    def __call__(self, url: str, admin_url: str, *, needs_key: bool) -> None:
        """Take the URLs of both listeners, and whether requests need a key."""
        ...


def _run(
    loaded: LoadedSettings,
    options: Sequence[str],
    process: GatewayProcess | None,
    read_settings: Callable[[], LoadedSettings],
    on_ready: OnReady,
) -> None:
    """Serve until a signal arrives.

    Args:
        loaded: the settings to serve with.
        options: command line options to start each process with, where there are several processes.
        process: which of several processes this one is; None for the only or the first one.
        read_settings: reads the settings again for a reload.
        on_ready: called when the gateway serves.

    Raises:
        CommandError: the gateway cannot listen, or a process that it needs does not start.
    """
    settings = loaded.settings

    def one_ready(here: ServingGateway) -> None:
        needs_key = here.gateway.services.authentication.directory.requires_keys
        on_ready(here.tenant_url, here.admin_url, needs_key=needs_key)

    def all_ready(url: str) -> None:
        on_ready(url, admin_url(settings), needs_key=bool(settings.tenants))

    try:
        if settings.listen.processes > 1 and process is None:
            run_loop(multiprocess.run(settings, options, all_ready, registered_for_reload))
        else:
            run_loop(server.run(loaded, one_ready, process, read_settings))
    except (ListenAddressUnavailable, ValkeyFailed, ChildFailed) as err:
        raise CommandError(str(err)) from err


def _read_settings(config: Path | None, assignments: Sequence[str]) -> LoadedSettings:
    return load_settings(config, assignments=assignments)


def _options(config: Path | None, assignments: Sequence[str]) -> list[str]:
    """Return the options as they would be typed, for the processes that this one starts."""
    file = ["--config", str(config)] if config is not None else []
    return file + [word for assignment in assignments for word in ("--set", assignment)]


def _description(loaded: LoadedSettings, config: Path | None, assignments: Sequence[str]) -> GatewayInfo:
    """Return how other commands can read the settings of this gateway."""
    sources = set(loaded.sources.values())
    variables = [
        source.removeprefix(ENVIRONMENT_SOURCE) for source in sources if source.startswith(ENVIRONMENT_SOURCE)
    ]
    return GatewayInfo(
        pid=os.getpid(),
        config=str(config.absolute()) if config is not None else None,
        assignments=list(assignments),
        variables=sorted(variables),
        state_directory=str(Path(loaded.settings.state_directory).absolute()),
        admin_url=admin_url(loaded.settings),
    )
