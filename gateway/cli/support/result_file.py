"""The file of figures that `--json` names, in the same shape for all commands that measure or calculate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.bench.machine import machine, versions
from gateway.cli.support.command_error import CommandError

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", help="Write the figures as JSON to this file.", show_default=False),
]


def write_results(file: Path, settings: object, runs: Mapping[str, object]) -> None:
    """Write the figures of all runs, with the machine and the versions. Raises CommandError.

    `settings`: all that is needed to repeat the runs.
    """
    results = {"machine": machine(), "versions": versions(), "settings": settings, "runs": runs}
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    except OSError as err:
        raise CommandError(f"--json: {file} cannot be written: {err.strerror}", 2) from err
