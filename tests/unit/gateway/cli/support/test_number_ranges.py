"""The ranges of numeric options in help texts."""

from typing import Annotated

import pytest
import typer
from typer.main import get_command

from gateway.cli.support.number_ranges import name_ranges


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"min": 1}, "<1 or more>"),
        ({"max": 1_000_000}, "<1000000 or less>"),
        ({"min": 0, "max": 20}, "<0 to 20>"),
        ({"min": 1, "metavar": "N"}, "N"),
    ],
)
def test_the_range_of_an_option_stands_in_plain_words(bounds, words):
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def serve(processes: Annotated[int, typer.Option(**bounds)] = 1) -> None:
        """Serve."""

    @app.command()
    def other() -> None:
        """Do another thing."""

    command = get_command(app)
    name_ranges(command)
    (option,) = [one for one in command.commands["serve"].params if one.name == "processes"]
    assert option.metavar == words
