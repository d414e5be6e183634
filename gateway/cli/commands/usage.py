"""`radixgate usage`: shows sums of usage and costs as a table, or exports single requests."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import load_database_settings, open_tenant_store, run_async, to_json
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database.usage_query import GROUPS_MAX, SAVED, UsageQuery, UsageReader
from gateway.ledger import usage_query_parsing
from gateway.ledger.export import FORMATS, ParquetMissing
from gateway.ledger.usage_query_parsing import QueryProblem, parse_query
from gateway.models.model_prices import prices_from
from gateway.quotas.prices import MILLION

HEADS = {
    "requests": "requests",
    "failed": "failed",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "cost": "cost",
    "saved": "saved",
    "ttft_ms_mean": "ttft ms",
}
MONEY = ("cost", SAVED)

Only = Annotated[str | None, typer.Option(show_default=False, help="Only requests with this value.")]


def usage(
    by: Annotated[
        str,
        typer.Option(
            help="Fields to group sums by, separated by commas: hour, day, organisation, tenant, key, model, user, "
            "worker, code, tag:NAME."
        ),
    ] = "tenant,model",
    since: Annotated[
        str | None,
        typer.Option(help="First day, or the time of the beginning.", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Last day, or the time of the end.", show_default=False)
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
        typer.Option(
            help="Only requests with this metadata, in the form NAME=VALUE. May be repeated.",
            show_default=False,
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="Export single requests instead of sums: csv, json (lines) or parquet.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File for --export; by default standard output.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show sums of usage, or export single requests (--export).

    Costs are in the currency of your prices; `saved` is how much more the cached tokens would have cost uncached.
    """
    filters = {
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
    given = [(name, text) for name, text in filters.items() if text is not None]
    try:
        query = parse_query([*given, *(("tag", text) for text in tag or ())])
    except QueryProblem as err:
        raise CommandError(f"--{err}", 2) from None
    if export is not None:
        _export(query, export, output, config, set_)
        return

    async def work() -> list[dict[str, Any]]:
        settings = load_database_settings(config, set_)
        prices = {model.name: prices_from(model.prices) for model in settings.models}
        discounts = {name: each.saving_per_cached_token for name, each in prices.items() if each is not None}
        async with open_tenant_store(settings) as store:
            return await UsageReader(store.database).sums(query, discounts)

    found = [usage_query_parsing.shown(group) for group in run_async(work())]
    print("\n".join(to_json(group) for group in found) if json else _table(found, query))


def _table(found: list[dict[str, Any]], query: UsageQuery) -> str:
    head = [*query.by, *HEADS.values()]
    rows = [
        [
            *(group[name] if group[name] not in (None, "") else "-" for name in query.by),
            *map(_cell, _measures(group)),
        ]
        for group in found
    ]
    return "\n".join(format_columns([head, *rows]))


def _measures(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, group[name]) for name in HEADS]


def _cell(measure: tuple[str, Any]) -> str | int:
    name, value = measure
    if name in MONEY:
        return f"{value / MILLION:.6f}"
    if value is None:
        return "-"
    return value if isinstance(value, int) else str(value)


def _export(
    query: UsageQuery, form: str, output: Path | None, config: ConfigFile, assignments: Assignments
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
                async for page in UsageReader(store.database).rows(query):
                    export.write(page)
                    count += len(page)
                export.close()
        return count

    count = run_async(work())
    if output is not None:
        print(f"{count} request{'' if count == 1 else 's'} in {output}")
