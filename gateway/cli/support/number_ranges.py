"""Names the range of a numeric option in plain words, in place of its type: `--processes <1 or more>`."""

from collections.abc import Iterator
from typing import Any


def name_ranges(command: Any) -> None:
    """Set the placeholder of each numeric option of a command, and of its commands, that has none of its own."""
    for parameter in command.params:
        # Of typer before 0.27 the type has the bounds.
        bounds = next(_bounds(parameter, getattr(parameter, "type", None)), None)
        if bounds is not None and parameter.param_type_name == "option" and parameter.metavar is None:
            parameter.metavar = f"<{_in_words(*bounds)}>"
    for inner in getattr(command, "commands", {}).values():
        name_ranges(inner)


def _bounds(*holders: Any) -> Iterator[tuple[float | None, float | None]]:
    for holder in holders:
        least, most = getattr(holder, "min", None), getattr(holder, "max", None)
        if least is not None or most is not None:
            yield least, most


def _in_words(least: float | None, most: float | None) -> str:
    if least is None:
        return f"{most:.12g} or less"
    return f"{least:.12g} or more" if most is None else f"{least:.12g} to {most:.12g}"
