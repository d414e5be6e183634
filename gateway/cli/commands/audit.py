"""`radixgate audit`: shows the audit log of changes, and checks that the log is complete."""

from typing import Annotated

import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.database_access import (
    JsonOption,
    load_database_settings,
    open_tenant_store,
    run_async,
    to_json,
)
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database.audit_log import AuditEntry, AuditLog, AuditVerification, chain_key
from gateway.ledger.usage_query_parsing import moment_text
from gateway.process.secrets import deployment_secret

app = typer.Typer(help="The audit log: which operator changed what, and when.", rich_markup_mode=None)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Option(
            help="Only changes of this kind: organisations, plans, tenants, keys or operators.",
            show_default=False,
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Only changes of the subject with this name.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(help="Largest number of entries to show.", min=1, max=100_000)] = 100,
    json: JsonOption = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show changes, the latest first. With --json also the values before and after each change."""

    async def work() -> list[AuditEntry]:
        settings = load_database_settings(config, set_)
        async with open_tenant_store(settings) as store:
            log = AuditLog(store.database, chain_key(deployment_secret(settings)))
            return await log.page(limit=limit, kind=kind, subject=subject)

    found = run_async(work())
    if json:
        print("\n".join(to_json(entry) for entry in found))
        return
    rows = [(e.number, moment_text(e.at_ms), e.who, e.action, e.kind, e.subject) for e in found]
    print("\n".join(format_columns([("number", "at", "who", "action", "kind", "subject"), *rows])))


@app.command()
def verify(
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER:HASH",
            help="Number and hash of an entry as an earlier run printed them: check that the entry is unchanged.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> int:
    """Check the hash chain of the log; exit code 1 if it is broken.

    Keep the printed NUMBER:HASH elsewhere, to detect later with --expect that the end of the log was cut off.
    """

    async def work() -> tuple[AuditVerification, list[AuditEntry]]:
        settings = load_database_settings(config, set_)
        async with open_tenant_store(settings) as store:
            log = AuditLog(store.database, chain_key(deployment_secret(settings)))
            number = (expect or "").partition(":")[0]
            noted = int(number) if number.isascii() and number.isdigit() else 0
            return await log.verify(), await log.page(before=noted + 1, limit=1)

    found, last = run_async(work())
    if found.broken is not None:
        print(f"The chain is broken at entry {found.broken}: it was changed or inserted, or is missing.")
        return 1
    if expect is not None and not (last and f"{last[0].number}:{last[0].hash}" == expect):
        print(
            f"Entry {expect.partition(':')[0]} is not in the log as expected: the log was cut off or replaced."
        )
        return 1
    print(f"The chain is complete: {found.number} entries. {found.number}:{found.hash}")
    return 0
