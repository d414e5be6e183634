"""Command line options that several commands share, with their help texts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.support.command_error import CommandError

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file with the settings.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set one setting, as in --set listen.port=9000. May be repeated.",
        show_default=False,
    ),
]


def set_again(assignments: Iterable[str]) -> str:
    """Return in words which values of --set have to be given again; no values, which may be secrets."""
    names = ", ".join(assignment.partition("=")[0] for assignment in assignments)
    return f", with the same --set of {names}" if names else ""


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether this option was given on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_options(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise CommandError if one of these options was given on the command line."""
    for name in names:
        if is_given(context, name):
            raise CommandError(f"--{name.strip('_').replace('_', '-')} is {reason}", 2)
