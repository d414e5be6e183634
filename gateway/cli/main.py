"""`radixgate`: joins the commands, and turns every refusal into one line and an exit code.

0 done, 1 failed, 2 wrong use or settings.
"""

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer

from gateway.cli.registered_commands import Commands
from gateway.cli.support.failure import Failure
from gateway.settings.types import SettingsProblem

UsageError: Any = typer.BadParameter.__bases__[0]
"""Every kind of wrong use. typer exports this one child of it only."""

app = typer.Typer(
    name="radixgate",
    cls=Commands,
    help="A multi-tenant inference gateway with prefix-cache routing.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"radixgate {version('radixgate')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """The entry point."""
    try:
        code = app(standalone_mode=False)
    except UsageError as err:
        where = err.ctx.command_path if err.ctx is not None else "radixgate"
        code = _refuse(f"{where}: {err.format_message()} (see {where} --help)", 2)
    except SettingsProblem as err:
        code = _refuse(f"radixgate: {err}", 2)
    except Failure as err:
        code = _refuse(f"radixgate: {err}", err.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code or 0)


def _refuse(line: str, code: int) -> int:
    """Says so in one line, whatever is quoted in it."""
    print("".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=sys.stderr)
    return code
