"""`radixgate keys`: API keys for the settings file (`new`, `hash`), and those in the database (all else)."""

import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import (
    AddressOption,
    AllowOption,
    ConcurrencyOption,
    DenyOption,
    JsonOption,
    LimitOption,
    load_database_settings,
    merge_model_access,
    open_tenant_store,
    parse_limits,
    parse_moment,
    parse_networks,
    run_async,
    to_json,
    validated,
)
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database.rows import StoredKey
from gateway.process.secrets import deployment_secret, secret_file
from gateway.settings.sources import load_settings
from gateway.settings.tenants import ApiKeySettings, ModelAccessSettings
from gateway.tenants.key_life import UNMADE, Chosen, KeyLife
from gateway.tenants.keys import HASH_PREFIX, NewKey, key_digest, key_id, new_key, pepper

Result = TypeVar("Result")

app = typer.Typer(help="Make, show, replace and end API keys.", rich_markup_mode=None)


@app.command()
def new(
    config: ConfigFile = None,
    set_: Assignments = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the key alone, then id and hash.")
    ] = False,
) -> None:
    """Make a key. It is shown once; the settings keep its hash."""
    key = new_key(_pepper(config, set_))
    if quiet:
        print(key.text, key.id, key.hash)
        return
    print(f"The key, shown only now:\n\n    {key.text}\n")
    print("Its entry under tenants[].keys in the settings:\n")
    print(f'    - {{id: {key.id}, hash: "{key.hash}"}}')


@app.command("hash")
def hash_(
    config: ConfigFile = None,
    set_: Assignments = None,
    identity: Annotated[
        str | None,
        typer.Option("--id", help="Its public name, for a key that is not of our form.", show_default=False),
    ] = None,
) -> None:
    """Read a key from standard input and print its entry for the settings. It may have any form."""
    text = sys.stdin.readline().strip()
    identity = identity or key_id(text)
    if identity is None:
        raise CommandError(
            "this is not a key of the form rg-<id>-<secret><checksum>, or its checksum is wrong; "
            "a key of another form needs --id",
            2,
        )
    if not text or not text.isascii() or not text.isprintable():
        raise CommandError("a key has printable ASCII characters only, and at least one", 2)
    print(f'- {{id: {identity}, hash: "{HASH_PREFIX}{key_digest(text, _pepper(config, set_)).hex()}"}}')


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Whose key it is.", metavar="TENANT")],
    name: Annotated[str | None, typer.Option(help="What it is for.", show_default=False)] = None,
    expires: Annotated[
        str | None, typer.Option(help="Last day, or a moment with its zone.", show_default=False)
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="inference, usage, admin; may be repeated.", show_default=False),
    ] = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    address: AddressOption = None,
    limit: LimitOption = None,
    concurrency: ConcurrencyOption = None,
    class_: Annotated[
        str | None,
        typer.Option(
            "--class",
            metavar="CLASS",
            help="Service class of its requests that name none: voice, code, chat or batch.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the key alone.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Make a key of a tenant in the database. It is shown once."""
    more: Any = {"scopes": tuple(scope)} if scope is not None else {}
    if class_ is not None:
        more["service_class"] = class_
    rules = ApiKeySettings(
        **UNMADE,
        name=name,
        expires=parse_moment(expires) if expires is not None else None,
        models=merge_model_access(ModelAccessSettings(), allow, deny),
        addresses=parse_networks(address or ()),
        limits=parse_limits(limit or ()),
        concurrency=concurrency,
        **more,
    )
    made = _living(config, set_, lambda life: life.create(tenant, validated(rules)))
    _show(made, quiet)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    json: JsonOption = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Show keys of the database; never what they are."""
    found = _living(config, set_, lambda life: life.of(tenant, active=not all_))
    if json:
        print(
            "\n".join(to_json(msgspec.structs.replace(each, key=_without_hash(each.key))) for each in found)
        )
        return
    print(
        "\n".join(format_columns([("key", "tenant", "name", "scopes", "ends", "state"), *map(_row, found)]))
    )


@app.command()
def rotate(
    identity: Annotated[str, typer.Argument(help="Public id of the key.", metavar="ID")],
    grace: Annotated[
        str, typer.Option(help="How long the old one stays good, as 90s, 30m, 24h, 7d.")
    ] = "24h",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the key alone.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Make a key in place of another, which stays good for a grace period. Limits go on."""
    seconds = _seconds(grace)
    _show(_living(config, set_, lambda life: life.rotate(identity, seconds)), quiet)


@app.command()
def expire(
    identity: Annotated[str, typer.Argument(help="Public id of the key.", metavar="ID")],
    when: Annotated[str, typer.Argument(help="Last day, or a moment with its zone.", metavar="WHEN")],
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Let a key end at a moment."""
    at = parse_moment(when)
    _living(config, set_, lambda life: life.expire(identity, at))


@app.command()
def revoke(
    identities: Annotated[
        list[str] | None, typer.Argument(help="Public ids of keys.", metavar="ID...", show_default=False)
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="All keys of this tenant.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """End keys at once, and for ever. All that are named, or none."""
    if (identities is None) == (tenant is None):
        raise CommandError("name keys, or all keys of one tenant with --tenant", 2)

    async def work(life: KeyLife) -> Chosen:
        chosen = await life.chosen(identities, tenant)
        if not dry_run:
            await life.revoke(chosen.ids)
        return chosen

    chosen = _living(config, set_, work)
    for key in chosen.ids:
        print(f"{key}{' (is of no use already)' if key in chosen.already else ''}")
    many = "" if len(chosen.ids) == 1 else "s"
    print(f"{'Would revoke' if dry_run else 'Revoked'} {len(chosen.ids)} key{many}.")


def _living(
    config: ConfigFile, assignments: Assignments, work: Callable[[KeyLife], Awaitable[Result]]
) -> Result:
    """Work on the keys of the database. Raises CommandError."""

    async def inside() -> Result:
        settings = load_database_settings(config, assignments)
        async with open_tenant_store(settings) as store:
            return await work(KeyLife(store, pepper(deployment_secret(settings))))

    return run_async(inside())


def _show(made: NewKey, quiet: bool) -> None:
    print(made.text if quiet else f"The key, shown only now:\n\n    {made.text}\n\nIts public id: {made.id}")


def _row(stored: StoredKey) -> tuple[str, ...]:
    key = stored.key
    ends = key.expires.text if key.expires is not None else "-"
    return key.id, stored.tenant, key.name or "-", " ".join(key.scopes), ends, stored.state(time.time())


def _without_hash(key: ApiKeySettings) -> ApiKeySettings:
    return msgspec.structs.replace(key, hash=key.hash.partition(":")[0])


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise CommandError(f"--grace {text}: expected a duration, as 90s, 30m, 24h or 7d", 2)
    return int(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[found[2]]


def _pepper(config: ConfigFile, assignments: Assignments) -> bytes:
    """Of the deployment that the settings describe; they need not be complete yet."""
    settings = load_settings(config, assignments=assignments or (), complete=False).settings
    file = secret_file(settings)
    is_new = file is not None and not file.exists()
    secret = deployment_secret(settings)
    if file is not None:
        said = f"The deployment secret {'was generated' if is_new else 'is'} in {file.absolute()}"
        print(f"{said}; this key is worth nothing without it.", file=sys.stderr)
    return pepper(secret)
