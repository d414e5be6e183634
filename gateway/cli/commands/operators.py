"""`radixgate operators`: creates, lists and revokes the tokens of operators of the admin API."""

import time
from typing import Annotated, Any

import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import (
    JsonOption,
    load_database_settings,
    open_tenant_store,
    parse_moment,
    run_async,
    to_json,
)
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database.operators import ROLES, Operator
from gateway.process.secrets import deployment_secret
from gateway.settings.token_issuers import Role
from gateway.tenants.keys import NewKey, pepper
from gateway.tenants.operator_lifecycle import OperatorLifecycle

app = typer.Typer(help="Tokens with which operators use the admin API.", rich_markup_mode=None)

_ROLES: dict[str, Role] = {role: role for role in ROLES}


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the operator.", metavar="NAME")],
    role: Annotated[
        str,
        typer.Option(
            help="viewer (may read), operator (may change tenants, plans and keys) or owner (may change operators "
            "too)."
        ),
    ] = "viewer",
    expires: Annotated[
        str | None,
        typer.Option(
            help="End of validity: the last day in UTC, or a time with its time zone.", show_default=False
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the token.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Create an operator with a token. The token is shown once."""
    if role not in _ROLES:
        raise CommandError(f"--role {role}: there are {', '.join(ROLES)}", 2)
    if not 1 <= len(name) <= 200:
        raise CommandError("a name has 1 to 200 characters", 2)
    ends = parse_moment(expires).seconds if expires is not None else None

    async def work() -> NewKey:
        settings = load_database_settings(config, set_)
        async with open_tenant_store(settings) as store:
            life = OperatorLifecycle(store, pepper(deployment_secret(settings)))
            return await life.create(name, _ROLES[role], ends)

    made = run_async(work())
    print(
        made.text if quiet else f"The token, shown only now:\n\n    {made.text}\n\nIts public id: {made.id}"
    )


@app.command("list")
def list_(json: JsonOption = False, config: ConfigFile = None, set_: Assignments = None) -> None:
    """List the operators, without their tokens."""

    async def work() -> list[Operator]:
        async with open_tenant_store(load_database_settings(config, set_)) as store:
            return await store.operators()

    found = run_async(work())
    if json:
        print("\n".join(to_json(_without_hash(operator)) for operator in found))
        return
    now = time.time()
    rows = [(o.id, o.name, o.role, "active" if o.active(now) else "ended") for o in found]
    print("\n".join(format_columns([("operator", "name", "role", "state"), *rows])))


@app.command()
def revoke(
    identity: Annotated[str, typer.Argument(help="Public id of the token.", metavar="ID")],
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Revoke a token at once and for ever."""

    async def work() -> None:
        settings = load_database_settings(config, set_)
        async with open_tenant_store(settings) as store:
            await OperatorLifecycle(store, pepper(deployment_secret(settings))).revoke(identity)

    run_async(work())


def _without_hash(operator: Operator) -> dict[str, Any]:
    return {name: getattr(operator, name) for name in Operator.__struct_fields__ if name != "hash"}
