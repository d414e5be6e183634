"""Options that several commands share, with their help."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.support.failure import Failure

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file with settings.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set one value, as in --set listen.port=9000. May be repeated.",
        show_default=False,
    ),
]


def is_given(context: typer.Context, name: str) -> bool:
    """Was this option on the command line?"""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raises Failure if one of these options was given."""
    for name in names:
        if is_given(context, name):
            raise Failure(f"--{name.strip('_').replace('_', '-')} is {reason}", 2)
