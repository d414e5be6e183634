"""`radixgate serve`: runs the gateway; the workers are separate processes."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.event_loop import run_loop
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.process import multiprocess
from gateway.process.children import ChildFailed
from gateway.process.embedded_valkey import ValkeyFailed
from gateway.process.multiprocess import GatewayProcess
from gateway.runtime import server
from gateway.runtime.reload import registered_for_reload
from gateway.settings.sources import load_settings
from gateway.settings.tree import Settings
from gateway.telemetry import logs

log = logging.getLogger(__name__)


def serve(
    config: ConfigFile = None,
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
) -> None:
    """Run the gateway. Settings come from the file, RADIXGATE__... variables and --set; the later one wins."""
    assignments = list(set_ or [])
    if redis_url is not None:
        assignments.append(f"redis.url={redis_url}")
    if processes is not None:
        assignments.append(f"listen.processes={processes}")
    loaded = load_settings(config, assignments=assignments)
    telemetry = loaded.settings.telemetry
    logs.configure_logging(telemetry.log_level, telemetry.log_format)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    one_of_several = None
    if process is not None and process_directory is not None:
        number, _, count = process.partition("/")
        one_of_several = GatewayProcess(number=int(number), count=int(count), directory=process_directory)
    run(
        loaded.settings,
        _options(config, assignments),
        one_of_several,
        lambda: load_settings(config, assignments=assignments).settings,
    )


def run(
    settings: Settings,
    options: Sequence[str] = (),
    process: GatewayProcess | None = None,
    read_settings: Callable[[], Settings] | None = None,
) -> None:
    """Serve until a signal arrives.

    Args:
        settings: the settings to serve with.
        options: command line options to start each process with, where there are several processes.
        process: which of several processes this one is; None for the only or the first one.
        read_settings: reads the settings again for a reload.

    Raises:
        CommandError: the gateway cannot listen, or a process that it needs does not start.
    """
    try:
        if settings.listen.processes > 1 and process is None:
            run_loop(multiprocess.run(settings, options, _print_ready, registered_for_reload))
        else:
            run_loop(server.run(settings, _print_addresses, process, read_settings))
    except (server.ListenAddressUnavailable, ValkeyFailed, ChildFailed) as err:
        raise CommandError(str(err)) from err


def _options(config: Path | None, assignments: Sequence[str]) -> list[str]:
    """Return the options as they would be typed, for the processes that this one starts."""
    file = ["--config", str(config)] if config is not None else []
    return file + [word for assignment in assignments for word in ("--set", assignment)]


def _print_ready(url: str) -> None:
    print(f"radixgate ready at {url}", flush=True)


def _print_addresses(gateway: server.ServingGateway) -> None:
    print(f"radixgate ready at {gateway.tenant_url}", flush=True)
    print(f"  operator page {gateway.admin_url}/ui/  metrics {gateway.admin_url}/metrics", flush=True)
