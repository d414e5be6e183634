"""`radixgate usage`: what was used, by whom, and what it cost; as a table, or exported."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import load_database_settings, open_tenant_store, run_async, to_json
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database.usage_query import GROUPS_MAX, UsageQuery, UsageReader
from gateway.ledger import usage_query_text
from gateway.ledger.export import FORMATS, ParquetMissing
from gateway.ledger.usage_query_text import QueryProblem, query_of

HEADS = {
    "requests": "requests",
    "failed": "failed",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "cost": "cost",
    "ttft_ms_mean": "ttft ms",
}
MILLION = 1_000_000

Only = Annotated[str | None, typer.Option(show_default=False, help="Only this one's.")]


def usage(
    by: Annotated[
        str,
        typer.Option(
            help="What sums are apart by, with commas: hour, day, organisation, tenant, key, model, user, worker, "
            "code, tag:NAME."
        ),
    ] = "tenant,model",
    since: Annotated[
        str | None, typer.Option(help="A day (its beginning) or a moment.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="A day (its end) or a moment.", show_default=False)
    ] = None,
    tenant: Only = None,
    organisation: Only = None,
    model: Only = None,
    key: Only = None,
    user: Only = None,
    worker: Only = None,
    code: Only = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of metadata; may be repeated.", show_default=False),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="Single requests instead of sums: csv, json (lines) or parquet.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file for --export.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show sums of what was used, or export single requests (--export). Costs are in your currency."""
    single = {
        "since": since,
        "until": until,
        "tenant": tenant,
        "organisation": organisation,
        "model": model,
        "key": key,
        "user": user,
        "worker": worker,
        "code": code,
        "by": by,
        "limit": str(GROUPS_MAX),
    }
    given = [(name, text) for name, text in single.items() if text is not None]
    try:
        asked = query_of([*given, *(("tag", text) for text in tag or ())])
    except QueryProblem as err:
        raise CommandError(f"--{err}", 2) from None
    if export is not None:
        _export(asked, export, output, config, set_)
        return

    async def work() -> list[dict[str, Any]]:
        async with open_tenant_store(load_database_settings(config, set_)) as store:
            return await UsageReader(store.database).sums(asked)

    found = [usage_query_text.shown(group) for group in run_async(work())]
    print("\n".join(to_json(group) for group in found) if json else _table(found, asked))


def _table(found: list[dict[str, Any]], asked: UsageQuery) -> str:
    head = [*asked.by, *HEADS.values()]
    rows = [
        [
            *(group[name] if group[name] not in (None, "") else "-" for name in asked.by),
            *map(_cell, _measures(group)),
        ]
        for group in found
    ]
    return "\n".join(format_columns([head, *rows]))


def _measures(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, group[name]) for name in HEADS]


def _cell(measure: tuple[str, Any]) -> str | int:
    name, value = measure
    if name == "cost":
        return f"{value / MILLION:.6f}"
    if value is None:
        return "-"
    return value if isinstance(value, int) else str(value)


def _export(
    asked: UsageQuery, form: str, output: Path | None, config: ConfigFile, assignments: Assignments
) -> None:
    if form not in FORMATS:
        raise CommandError(f"--export {form}: there are {', '.join(FORMATS)}", 2)
    if form == "parquet" and output is None:
        raise CommandError("--export parquet needs a file: --output FILE", 2)

    async def work() -> int:
        count = 0
        async with open_tenant_store(load_database_settings(config, assignments)) as store:
            with ExitStack() as stack:
                try:
                    file = stack.enter_context(output.open("wb")) if output is not None else sys.stdout.buffer
                    export = FORMATS[form](file)
                except ParquetMissing as err:
                    raise CommandError(str(err)) from err
                async for page in UsageReader(store.database).rows(asked):
                    export.write(page)
                    count += len(page)
                export.close()
        return count

    count = run_async(work())
    if output is not None:
        print(f"{count} request{'' if count == 1 else 's'} in {output}")
