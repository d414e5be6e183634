"""Files that a long run is to leave behind: looked at before it begins, so that nothing is measured in vain."""

import os
from pathlib import Path

from gateway.bench.simulated import CannotDraw, drawing
from gateway.cli.support.failure import Failure


def writable(option: str, file: Path | None, *, drawn: bool = False) -> None:
    """Raises Failure where it could not be written now, or has plots and nothing draws them."""
    if file is None:
        return
    place = file if file.exists() else file.parent
    if file.is_dir():
        raise Failure(f"{option}: {file} is a directory", 2)
    if place != file and not place.is_dir():
        raise Failure(f"{option}: there is no directory {place}", 2)
    if not os.access(place, os.W_OK):
        raise Failure(f"{option}: {place} may not be written", 2)
    if drawn:
        try:
            drawing()
        except CannotDraw as err:
            raise Failure(f"{option}: {err}", 2) from err
