"""`radixgate import`: imports models, tenants and keys from another gateway (LiteLLM)."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.counts import counted
from gateway.cli.support.database_access import load_database_settings, open_tenant_store, run_async
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.litellm.config import read_config
from gateway.litellm.import_result import ImportResult, LitellmFormatError
from gateway.litellm.tables import TABLES, export_statement, read_tables
from gateway.settings.yaml import parse_yaml

EVERY_MODEL = {"allow": ["*"], "deny": []}

app = typer.Typer(help="Import models, tenants and keys from other gateways.", rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Import models, tenants and keys from other gateways."""


@app.command()
def litellm(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="LiteLLM's config.yaml, its tables as JSON (see --sql), or both.", show_default=False
        ),
    ] = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL statement that exports LiteLLM's tables as JSON.")
    ] = False,
    into_database: Annotated[
        bool,
        typer.Option(
            "--into-database", help="Write tenants and keys to the database instead of printing them."
        ),
    ] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Import LiteLLM's models, organisations, teams, budgets and keys; every client keeps its key.

    Prints entries for the settings file. What cannot be imported is listed on standard error.
    """
    if sql:
        print(export_statement())
        return
    if not files:
        raise CommandError("name LiteLLM's config.yaml, its exported tables, or both", 2)
    imported = ImportResult()
    trees = sorted(((file, _read_file(file)) for file in files), key=lambda read: _is_tables(read[1]))
    for file, tree in trees:
        try:
            # The config comes first: the tables refer to models by its names.
            (read_tables if _is_tables(tree) else read_config)(tree, imported)
        except LitellmFormatError as err:
            raise CommandError(f"{file}: {err}") from err
        except (TypeError, ValueError) as err:
            raise CommandError(f"{file}: is not in the format of LiteLLM: {err}") from err
    for line in imported.not_imported:
        print(f"not imported: {line}", file=sys.stderr)
    if into_database:
        run_async(_store(imported, config, set_))
    tree = _settings_entries(imported, tenants=not into_database)
    if tree:
        print(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), end="")
    tenants, keys = counted(len(imported.tenants), "tenant"), counted(len(imported.keys), "key")
    left = counted(len(imported.not_imported), "thing")
    print(f"{tenants} and {keys}, {left} not imported", file=sys.stderr)


async def _store(imported: ImportResult, config: ConfigFile, assignments: Assignments) -> None:
    """Write all of the import to the database in one transaction."""
    async with (
        open_tenant_store(load_database_settings(config, assignments)) as store,
        store.change() as change,
    ):
        for organisation in imported.organisations.values():
            await change.put_organisation(organisation)
        for plan in imported.plans.values():
            await change.put_plan(plan)
        for tenant in imported.tenants.values():
            await change.put_tenant(tenant)
        for stored in imported.keys:
            await change.put_key(stored)


def _read_file(file: Path) -> Any:
    """Return the content of a JSON or YAML file. Raises CommandError."""
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


def _settings_entries(imported: ImportResult, *, tenants: bool) -> dict[str, Any]:
    """Return the entries of a settings file; without `tenants` only models and workers."""
    found: dict[str, Any] = {"models": imported.models, "workers": imported.workers}
    if tenants:
        found["organisations"] = [*imported.organisations.values()]
        found["plans"] = [*imported.plans.values()]
        found["tenants"] = [
            msgspec.structs.replace(
                tenant, keys=tuple(stored.key for stored in imported.keys if stored.tenant == tenant.id)
            )
            for tenant in imported.tenants.values()
        ]
    plain: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)
    return {name: [_without_defaults(each) for each in entries] for name, entries in plain.items() if entries}


def _without_defaults(value: Any) -> Any:
    """Return the value without the fields that are empty, which is their default."""
    if isinstance(value, dict):
        # `allow: []` is not the default: it allows no model.
        return {
            name: _without_defaults(inner)
            for name, inner in value.items()
            if name == "allow" or inner not in (None, [], {}, False, EVERY_MODEL)
        }
    return [_without_defaults(each) for each in value] if isinstance(value, list) else value
