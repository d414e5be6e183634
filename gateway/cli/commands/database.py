"""`radixgate database`: creates, upgrades and checks the tables of the database."""

import typer

from gateway.cli.support.database_access import load_database_settings, open_database, run_async
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database import schema
from gateway.database.tables import REVISION

app = typer.Typer(help="Tables of the database that keeps tenants, keys and usage.", rich_markup_mode=None)


@app.command()
def upgrade(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Create the tables, or upgrade them to the version of this radixgate."""

    async def work() -> None:
        async with open_database(load_database_settings(config, set_)) as database:
            await schema.upgrade(database)

    run_async(work())
    print(f"The tables have version {REVISION}.")


@app.command()
def check(config: ConfigFile = None, set_: Assignments = None) -> int:
    """Check that the tables have the version of this radixgate. Exit code 1 if not."""

    async def work() -> str | None:
        async with open_database(load_database_settings(config, set_)) as database:
            return await schema.current_revision(database)

    found = run_async(work())
    print(f"The tables have version {found or 'none'}; this radixgate needs {REVISION}.")
    return 0 if found == REVISION else 1
