"""`radixgate database`: creates, changes and checks the tables of the database, backs them up and restores them."""

import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, TypeVar

import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import load_database_settings, open_database, run_async
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.cli.support.output_files import check_writable
from gateway.database import backup as backups
from gateway.database import schema
from gateway.database.database import MAINTENANCE_SECONDS_MAX, Database, DatabaseDown
from gateway.database.tables import REVISION

STANDARD_STREAM = Path("-")

Result = TypeVar("Result")

app = typer.Typer(
    help="Tables of the database that keeps tenants, keys and usage: upgrade, backup, restore.",
    rich_markup_mode=None,
)


@app.command()
def upgrade(
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for a database that does not answer yet.", min=0)
    ] = 0.0,
    if_reachable: Annotated[
        bool, typer.Option("--if-reachable", help="Succeed without an upgrade if it does not answer in time.")
    ] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Create the tables, or upgrade them to the version of this radixgate.

    Tables of a later version on which it can serve are not changed.
    """

    async def work(database: Database) -> str:
        try:
            await schema.wait_until_reachable(database, wait)
        except DatabaseDown as err:
            if not if_reachable:
                raise
            return f"The database does not answer, and is not upgraded: {err}"
        await schema.upgrade(database)
        return f"The tables have version {await schema.current_revision(database)}."

    print(_with_database(config, set_, work))


@app.command()
def downgrade(
    to: Annotated[
        str,
        typer.Option(
            help="Version of the tables, as `radixgate database check` of the older release prints it."
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Downgrade the tables to those of an older radixgate. Data that only later tables have is deleted.

    Going back by one release does not need this: each release serves on the tables of the next.
    """
    _confirm(f"Delete what tables later than {to} have added?", yes)

    async def work(database: Database) -> str:
        return await schema.downgrade(database, to)

    found = _with_database(config, set_, work)
    print(f"The tables have version {to}; they had {found}.")


@app.command()
def check(config: ConfigFile = None, set_: Assignments = None) -> int:
    """Check that this radixgate serves on the tables. Exit code 1 if not."""
    found = _with_database(config, set_, schema.tables_version)
    print(f"The tables have version {found.revision or 'none'}; this radixgate needs {REVISION}.")
    if found.serves and found.revision != REVISION:
        print("It serves on these later tables.")
    return 0 if found.serves else 1


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; - is standard output.")],
    stored: Annotated[
        bool, typer.Option("--stored", help="Also write what clients have stored: responses, files, batches.")
    ] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Write tenants, keys, operators, audit log and usage to a file, while gateways serve.

    The file contains no secrets; with --stored it contains prompts. After a restore keys are valid only with
    the same deployment secret, which is not in the file.
    """

    async def work(database: Database) -> dict[str, int]:
        with _output(file) as opened:
            return await backups.write_backup(database, opened, stored=stored)

    _report("Backed up", _with_database(config, set_, work))


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="File of `radixgate database backup`; - is standard input.")],
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Restore a backup into an empty database, SQLite or PostgreSQL, and upgrade its tables.

    Stop the gateways first.
    """

    async def work(database: Database) -> dict[str, int]:
        with _input(file) as opened:
            return await backups.restore_backup(database, opened)

    _report("Restored", _with_database(config, set_, work))


def _with_database(
    config: ConfigFile, set_: Assignments, work: Callable[[Database], Awaitable[Result]]
) -> Result:
    """Return the result of `work` on the database of the settings. Raises CommandError."""

    async def opened() -> Result:
        settings = load_database_settings(config, set_)
        async with open_database(settings, statement_seconds_max=MAINTENANCE_SECONDS_MAX) as database:
            return await work(database)

    return run_async(opened())


def _report(done: str, counts: dict[str, int]) -> None:
    filled = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    # Standard output may be the backup.
    print(f"{done} {sum(counts.values())} rows ({filled}).", file=sys.stderr)


def _confirm(question: str, yes: bool) -> None:
    """Ask the user unless `yes`. Raises CommandError without a terminal, and Abort on a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("downgrade: there is no terminal to ask for confirmation; give --yes", 2)
    typer.confirm(question, abort=True)


@contextmanager
def _output(file: Path) -> Iterator[IO[bytes]]:
    """Open a file that only this user may read; a file of that name is replaced once all is written."""
    if file == STANDARD_STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    check_writable("FILE", file)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _input(file: Path) -> Iterator[IO[bytes]]:
    if file == STANDARD_STREAM:
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as err:
        raise CommandError(f"{file} cannot be read: {err.strerror}", 2) from err
    with opened:
        yield opened
