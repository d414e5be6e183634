"""The entry point of `radixgate`, which turns every error of a command into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong use or wrong settings, 130 interrupted.
"""

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer

from gateway.cli.command_registry import CommandGroup
from gateway.cli.support.command_error import CommandError
from gateway.settings.types import SettingsProblem

UsageError: Any = typer.BadParameter.__bases__[0]
"""The base class of all errors of wrong use; typer exports only this one subclass of it."""

app = typer.Typer(
    name="radixgate",
    cls=CommandGroup,
    help="A multi-tenant inference gateway with prefix-cache routing.",
    invoke_without_command=True,
    add_completion=True,
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
    """Run the command of the command line, and exit with its exit code."""
    try:
        code = app(standalone_mode=False)
    except UsageError as err:
        where = err.ctx.command_path if err.ctx is not None else "radixgate"
        code = _print_error(f"{where}: {err.format_message()} (see {where} --help)", 2)
    except SettingsProblem as err:
        code = _print_error(f"radixgate: {err}", 2)
    except CommandError as err:
        code = _print_error(f"radixgate: {err}", err.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code or 0)


def _print_error(line: str, code: int) -> int:
    """Print one line to standard error, with unprintable characters escaped, and return the exit code."""
    print("".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=sys.stderr)
    return code
