"""Which commands there are; each is imported when it is asked for, with all that it needs.

`radixgate check-config` needs no database and no server, and importing those takes longer than the check.
"""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

NAMES = (
    *("serve", "reload", "worker", "demo", "doctor", "ladder", "plan", "simulate", "bench", "check-config"),
    "explain-config",
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
        "route",
        "queue",
    ),
)


class Commands(TyperGroup):
    """All of them, by name; help lists them in the order of NAMES."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # For what is said of a misspelt name; nobody takes a command from here.
        self.commands = dict.fromkeys(NAMES)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in NAMES:
            return None
        command = _command(cmd_name)
        command.name = cmd_name
        return command


def _alone(function: Callable[..., Any], context: dict[str, Any] | None = None) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings=context)(function)
    return get_command(app)


def _command(name: str) -> Any:
    """A command, or a group of them."""
    match name:
        case "serve":
            from gateway.cli.commands.serve import serve

            return _alone(serve)
        case "reload":
            from gateway.cli.commands.reload import reload

            return _alone(reload)
        case "worker":
            from gateway.cli.commands.worker import CONTEXT as OTHERS_TOO
            from gateway.cli.commands.worker import worker

            return _alone(worker, OTHERS_TOO)
        case "demo":
            from gateway.cli.commands.demo import demo

            return _alone(demo)
        case "doctor":
            from gateway.cli.commands.doctor import doctor

            return _alone(doctor)
        case "ladder":
            from gateway.cli.commands.ladder import CONTEXT, ladder

            return _alone(ladder, CONTEXT)
        case "plan":
            from gateway.cli.commands.plan import plan

            return _alone(plan)
        case "simulate":
            from gateway.cli.commands.simulate import simulate

            return _alone(simulate)
        case "bench":
            from gateway.cli.commands.bench import bench

            return _alone(bench)
        case "check-config":
            from gateway.cli.commands.config import check_config

            return _alone(check_config)
        case "explain-config":
            from gateway.cli.commands.config import explain_config

            return _alone(explain_config)
        case "route":
            from gateway.cli.commands.route import route

            return _alone(route)
        case "queue":
            from gateway.cli.commands.queue import queue

            return _alone(queue)
        case "usage":
            from gateway.cli.commands.usage import usage

            return _alone(usage)
        case _:
            return get_group(_application(name))


def _application(name: str) -> typer.Typer:
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
        case _:
            from gateway.cli.commands.index import app
    return app
