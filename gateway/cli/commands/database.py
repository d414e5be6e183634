"""`radixgate database`: the tables of the database of tenants."""

import typer

from gateway.cli.support.options import Assignments, ConfigFile
from gateway.cli.support.store_access import opened, run, settings_of
from gateway.database import schema
from gateway.database.tables import REVISION

app = typer.Typer(help="The tables of tenants and keys.", rich_markup_mode=None)


@app.command()
def upgrade(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Bring the tables up to date; they are made where there are none."""

    async def work() -> None:
        async with opened(settings_of(config, set_)) as database:
            await schema.upgrade(database)

    run(work())
    print(f"The tables are of version {REVISION}.")


@app.command()
def check(config: ConfigFile = None, set_: Assignments = None) -> int:
    """Are the tables up to date? Exit code 1 if not."""

    async def work() -> str | None:
        async with opened(settings_of(config, set_)) as database:
            return await schema.revision(database)

    found = run(work())
    print(f"The tables are of version {found or 'none'}; this radixgate has {REVISION}.")
    return 0 if found == REVISION else 1
