"""`radixgate cells`: lists the cells that are alive, and names the cell of organisations."""

import asyncio
from typing import Annotated

import msgspec
import typer

from gateway.cells.living_cells import LivingCells
from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.deployment import find_deployment
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.settings.stores import CellSettings
from policies.cell_ownership import owner_of
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller


def cells(
    organisations: Annotated[
        list[str] | None,
        typer.Argument(help="Organisations to name the cell of; a tenant without one has its own name."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """List living cells, or name the cell of organisations.

    As in gateways, the cell of an organisation is the living cell with the largest XXH3-64 of: the name of the
    cell, a zero byte, and the name of the organisation.
    """
    settings = find_deployment(config, set_, ("cells",)).settings
    if settings.cells is None:
        raise CommandError("the settings name no cell (cells)", 2)
    living = asyncio.run(_living(settings.cells))
    if organisations and not living.cells:
        raise CommandError("no cell is alive")
    owners = {name: owner_of(name, living.cells) or "" for name in organisations or ()}
    if as_json:
        found = {"cells": living.cells, "organisations": owners}
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif owners:
        print("\n".join(format_columns([("organisation", "cell"), *owners.items()])))
    else:
        urls = [(cell, " ".join(urls)) for cell, urls in sorted(living.cells.items())]
        print("\n".join(format_columns([("cell", "gateways"), *urls])))


async def _living(settings: CellSettings) -> LivingCells:
    """Return the cells that are alive now. Raises CommandError."""
    scripts = ScriptCaller(settings.redis_url)
    living = LivingCells(
        scripts,
        prefix=settings.redis_prefix,
        cell=settings.name,
        url=settings.url,
        lease_seconds=settings.lease_seconds,
        serves=lambda: False,
    )
    try:
        await living.read()
    except RedisDown as err:
        raise CommandError(f"Redis (cells.redis_url): {err}") from err
    finally:
        await scripts.close()
    return living
