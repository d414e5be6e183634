"""Checks of output files before a long run begins, so that no measurement is lost at the end."""

import os
from pathlib import Path

from gateway.bench.simulation_report import PlotError, figure_class
from gateway.cli.support.command_error import CommandError


def check_writable(option: str, file: Path | None, *, has_plots: bool = False) -> None:
    """Raise CommandError if the file could not be written now, or if it has plots and matplotlib is missing."""
    if file is None:
        return
    place = file if file.exists() else file.parent
    if file.is_dir():
        raise CommandError(f"{option}: {file} is a directory", 2)
    if place != file and not place.is_dir():
        raise CommandError(f"{option}: there is no directory {place}", 2)
    if not os.access(place, os.W_OK):
        raise CommandError(f"{option}: {place} may not be written", 2)
    if has_plots:
        try:
            figure_class()
        except PlotError as err:
            raise CommandError(f"{option}: {err}", 2) from err
