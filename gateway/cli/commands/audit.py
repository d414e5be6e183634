"""`radixgate audit`: who changed what, and whether the log is whole."""

from typing import Annotated

import typer

from gateway.cli.support.columns import columns
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.cli.support.store_access import AsJson, opened_store, run, settings_of, shown
from gateway.database.audit_log import AuditEntry, AuditLog, Verified, chain_key
from gateway.ledger.usage_query_text import moment_text
from gateway.process.secrets import deployment_secret

app = typer.Typer(help="Who changed what.", rich_markup_mode=None)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Option(help="organisations, plans, tenants, keys or operators.", show_default=False),
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Name of what was changed.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="Entries at most.", min=1, max=100_000)] = 100,
    json: AsJson = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show changes, the latest first. With --json also what was there before and after."""

    async def work() -> list[AuditEntry]:
        settings = settings_of(config, set_)
        async with opened_store(settings) as store:
            log = AuditLog(store.database, chain_key(deployment_secret(settings)))
            return await log.page(limit=limit, kind=kind, subject=subject)

    found = run(work())
    if json:
        print("\n".join(shown(entry) for entry in found))
        return
    rows = [(e.number, moment_text(e.at_ms), e.who, e.action, e.kind, e.subject) for e in found]
    print("\n".join(columns([("number", "at", "who", "action", "kind", "subject"), *rows])))


@app.command()
def verify(
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER:HASH",
            help="As it was printed once: is that entry still there?",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> int:
    """Is the chain whole? Exit code 1 if not. Note NUMBER:HASH elsewhere to notice an end that is cut off."""

    async def work() -> tuple[Verified, list[AuditEntry]]:
        settings = settings_of(config, set_)
        async with opened_store(settings) as store:
            log = AuditLog(store.database, chain_key(deployment_secret(settings)))
            number = (expect or "").partition(":")[0]
            noted = int(number) if number.isascii() and number.isdigit() else 0
            return await log.verify(), await log.page(before=noted + 1, limit=1)

    found, last = run(work())
    if found.broken is not None:
        print(f"The chain breaks at {found.broken}: that entry was changed, put in, or is missing.")
        return 1
    if expect is not None and not (last and f"{last[0].number}:{last[0].hash}" == expect):
        print(f"{expect.partition(':')[0]} is not there as it was: the log was cut off, or made anew.")
        return 1
    print(f"Whole: {found.number} entries. {found.number}:{found.hash}")
    return 0
