"""The names of all commands. Each command is imported when it runs, with all that it needs.

`radixgate check-config` needs no database and no server, and importing those would take longer than the check.
"""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from gateway.cli.support.number_ranges import name_ranges

NAMES = (
    *(
        "serve",
        "init",
        "reload",
        "worker",
        "demo",
        "doctor",
        "ladder",
        "fit-medusa",
        "plan",
        "plan-fleet",
        "simulate",
        "bench",
        "check-config",
    ),
    *("explain-config", "schema"),
    *(
        "keys",
        "organisations",
        "plans",
        "tenants",
        "operators",
        "usage",
        "audit",
        "database",
        "import",
        "index",
        "workers",
        "cells",
        "route",
        "queue",
        "requests",
        "top",
        "trace",
    ),
)


class CommandGroup(TyperGroup):
    """The group of all commands; the help text lists them in the order of NAMES."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Only for the suggestions on a misspelt name: commands come from get_command.
        self.commands = dict.fromkeys(NAMES)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(NAMES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None for an unknown name."""
        if cmd_name not in NAMES:
            return None
        command = _load_command(cmd_name)
        command.name = cmd_name
        name_ranges(command)
        return command


def _single_command(function: Callable[..., Any], context: dict[str, Any] | None = None) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings=context)(function)
    return get_command(app)


def _load_command(name: str) -> Any:
    """Import a command, or a group of commands."""
    match name:
        case "serve":
            from gateway.cli.commands.serve import serve

            return _single_command(serve)
        case "init":
            from gateway.cli.commands.init import init

            return _single_command(init)
        case "reload":
            from gateway.cli.commands.reload import reload

            return _single_command(reload)
        case "worker":
            from gateway.cli.commands.worker import CONTEXT as WORKER_CONTEXT
            from gateway.cli.commands.worker import worker

            return _single_command(worker, WORKER_CONTEXT)
        case "demo":
            from gateway.cli.commands.demo import demo

            return _single_command(demo)
        case "doctor":
            from gateway.cli.commands.doctor import doctor

            return _single_command(doctor)
        case "ladder":
            from gateway.cli.commands.engine.ladder import CONTEXT, ladder

            return _single_command(ladder, CONTEXT)
        case "fit-medusa":
            from gateway.cli.commands.engine.fit_medusa import fit_medusa

            return _single_command(fit_medusa)
        case "plan":
            from gateway.cli.planning.plan import plan

            return _single_command(plan)
        case "plan-fleet":
            from gateway.cli.planning.plan_fleet import plan_fleet

            return _single_command(plan_fleet)
        case "simulate":
            from gateway.cli.commands.simulate import simulate

            return _single_command(simulate)
        case "bench":
            from gateway.cli.commands.bench import bench

            return _single_command(bench)
        case "check-config":
            from gateway.cli.commands.config import check_config

            return _single_command(check_config)
        case "explain-config":
            from gateway.cli.commands.config import explain_config

            return _single_command(explain_config)
        case "schema":
            from gateway.cli.commands.config import schema

            return _single_command(schema)
        case "route":
            from gateway.cli.commands.route import route

            return _single_command(route)
        case "top":
            from gateway.cli.commands.top import top

            return _single_command(top)
        case "trace":
            from gateway.cli.commands.trace import trace

            return _single_command(trace)
        case "cells":
            from gateway.cli.commands.cells import cells

            return _single_command(cells)
        case "queue":
            from gateway.cli.commands.queue import queue

            return _single_command(queue)
        case "usage":
            from gateway.cli.commands.usage import usage

            return _single_command(usage)
        case _:
            return get_group(_load_group(name))


def _load_group(name: str) -> typer.Typer:
    match name:
        case "keys":
            from gateway.cli.commands.keys import app
        case "organisations":
            from gateway.cli.commands.tenants import organisations as app
        case "plans":
            from gateway.cli.commands.tenants import plans as app
        case "tenants":
            from gateway.cli.commands.tenants import tenants as app
        case "operators":
            from gateway.cli.commands.operators import app
        case "audit":
            from gateway.cli.commands.audit import app
        case "database":
            from gateway.cli.commands.database import app
        case "import":
            from gateway.cli.commands.import_ import app
        case "workers":
            from gateway.cli.commands.workers import app
        case "requests":
            from gateway.cli.commands.requests import app
        case _:
            from gateway.cli.commands.index import app
    return app
