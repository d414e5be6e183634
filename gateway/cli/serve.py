"""`radixgate serve`: the gateway alone, against any workers."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from gateway import server
from gateway.cli.failure import Failure
from gateway.cli.options import Assignments, ConfigFile
from gateway.embedded_valkey import ValkeyFailed
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
) -> None:
    """Run the gateway. Settings come from the file, RADIXGATE__... variables and --set, in this order."""
    assignments = list(set_ or [])
    if redis_url is not None:
        assignments.append(f"redis.url={redis_url}")
    loaded = load(config, assignments=assignments)
    logs.set_up(loaded.settings.telemetry.log_level)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    run(loaded.settings)


def run(settings: Settings) -> None:
    """Serves until a signal comes. Raises Failure."""
    try:
        run_loop(server.run(settings, _announce))
    except (server.CannotListen, ValkeyFailed) as err:
        raise Failure(str(err)) from err


T = TypeVar("T")


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """On uvloop where it is installed, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    else:
        return uvloop.run(work)


def _announce(here: server.Serving) -> None:
    print(f"radixgate ready at {here.tenants}", flush=True)
    print(f"  operator page {here.admin}/ui/  metrics {here.admin}/metrics", flush=True)
