"""`radixgate import`: models, tenants and keys of other gateways."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import load_database_settings, open_tenant_store, run_async
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.litellm.config import read_config
from gateway.litellm.import_result import ImportResult, LitellmFormatError
from gateway.litellm.tables import TABLES, export_statement, read_tables
from gateway.settings.yaml import parse_yaml

EVERY_MODEL = {"allow": ["*"], "deny": []}

app = typer.Typer(help="Take over models, tenants and keys of other gateways.", rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Take over models, tenants and keys of other gateways."""


@app.command()
def litellm(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="LiteLLM's config.yaml, and its tables as JSON (see --sql).", show_default=False),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL that exports its tables.")] = False,
    into_database: Annotated[
        bool, typer.Option("--into-database", help="Put tenants and keys into the database.")
    ] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Take over LiteLLM's models, organisations, teams, budgets and keys; every client keeps its key.

    Prints entries for the settings file. What has no place here is listed on standard error.
    """
    if sql:
        print(export_statement())
        return
    if not files:
        raise CommandError("name LiteLLM's config.yaml, its exported tables, or both", 2)
    moved = ImportResult()
    trees = sorted(((file, _read(file)) for file in files), key=lambda read: _is_tables(read[1]))
    for file, tree in trees:
        try:
            # Models first: what tables say of models is said in their names.
            (read_tables if _is_tables(tree) else read_config)(tree, moved)
        except LitellmFormatError as err:
            raise CommandError(f"{file}: {err}") from err
        except (TypeError, ValueError) as err:
            raise CommandError(f"{file}: is not as LiteLLM writes it: {err}") from err
    for line in moved.left:
        print(f"not carried over: {line}", file=sys.stderr)
    if into_database:
        run_async(_put(moved, config, set_))
    tree = _settings(moved, tenants=not into_database)
    if tree:
        print(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), end="")
    counts = f"{len(moved.tenants)} tenants and {len(moved.keys)} keys"
    print(f"{counts}, {len(moved.left)} things not carried over", file=sys.stderr)


async def _put(moved: ImportResult, config: ConfigFile, assignments: Assignments) -> None:
    """All of it in one change, or nothing."""
    async with (
        open_tenant_store(load_database_settings(config, assignments)) as store,
        store.change() as change,
    ):
        for organisation in moved.organisations.values():
            await change.put_organisation(organisation)
        for plan in moved.plans.values():
            await change.put_plan(plan)
        for tenant in moved.tenants.values():
            await change.put_tenant(tenant)
        for stored in moved.keys:
            await change.put_key(stored)


def _read(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as err:
        raise CommandError(f"{file}: cannot be read: {err}") from err
    try:
        return msgspec.json.decode(text) if text.lstrip().startswith("{") else parse_yaml(text, str(file))
    except msgspec.DecodeError as err:
        raise CommandError(f"{file}: not JSON: {err}") from err


def _is_tables(tree: Any) -> bool:
    return isinstance(tree, dict) and any(name in tree for name in TABLES)


def _settings(moved: ImportResult, *, tenants: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"models": moved.models, "workers": moved.workers}
    if tenants:
        found["organisations"] = [*moved.organisations.values()]
        found["plans"] = [*moved.plans.values()]
        found["tenants"] = [
            msgspec.structs.replace(
                tenant, keys=tuple(stored.key for stored in moved.keys if stored.tenant == tenant.id)
            )
            for tenant in moved.tenants.values()
        ]
    plain: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)
    return {name: [_short(each) for each in entries] for name, entries in plain.items() if entries}


def _short(value: Any) -> Any:
    """Without what is empty, and so is by default."""
    if isinstance(value, dict):
        # `allow: []` is not the default: it allows nothing.
        return {
            name: _short(inner)
            for name, inner in value.items()
            if name == "allow" or inner not in (None, [], {}, False, EVERY_MODEL)
        }
    return [_short(each) for each in value] if isinstance(value, list) else value
