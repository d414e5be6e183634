"""Options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated

import typer

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
