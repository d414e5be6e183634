"""Commands on the settings alone: check them, show where values come from, print their JSON schema."""

import sys
from typing import Annotated

import msgspec
import typer

from gateway.cli.support.counts import counted
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.settings.json_schema import settings_schema
from gateway.settings.sources import load_settings


def check_config(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Check the settings. Exit code 0 if they are valid, else 2 and one line that names the wrong setting."""
    loaded = load_settings(config, assignments=set_ or ())
    for warning in loaded.warnings:
        print(f"radixgate: warning: {warning}", file=sys.stderr)
    settings = loaded.settings
    workers, tenants = counted(len(settings.workers), "worker"), counted(len(settings.tenants), "tenant")
    print(f"The settings are valid: {workers}, {tenants}, policy {settings.routing.policy}.")


def explain_config(
    config: ConfigFile = None,
    set_: Assignments = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print every setting with its value and its source. Secrets are masked."""
    leaves = list(load_settings(config, assignments=set_ or ()).leaves())
    if json:
        for path, value, source in leaves:
            print(msgspec.json.encode({"setting": path, "value": value, "source": source}).decode())
        return
    widths = [max(len(leaf[column]) for leaf in leaves) for column in (0, 1)]
    for path, value, source in leaves:
        print(f"{path:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {source}")


def schema() -> None:
    """Print the JSON schema of the settings file, with which editors complete and check it."""
    print(msgspec.json.format(msgspec.json.encode(settings_schema()), indent=2).decode())
