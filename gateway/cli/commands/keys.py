"""`radixgate keys`: API keys for the settings file (`new`, `hash`), and API keys in the database (the rest)."""

import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.counts import counted
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
from gateway.cli.support.deployment import SECRET, find_deployment
from gateway.cli.support.names_in_file import names_in_file, note_others
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database.row_conversion import StoredKey
from gateway.process.secrets import deployment_secret, secret_file
from gateway.settings.tenants import ApiKeySettings, ModelAccessSettings
from gateway.settings.tree import Settings
from gateway.tenants.key_lifecycle import KEY_PLACEHOLDER, KeyLifecycle, KeySelection
from gateway.tenants.keys import HASH_PREFIX, NewKey, key_digest, key_id, new_key, pepper

Result = TypeVar("Result")

app = typer.Typer(help="Create, list, replace and revoke API keys.", rich_markup_mode=None)


@app.command()
def new(
    config: ConfigFile = None,
    set_: Assignments = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the key, its id and its hash, in one line.")
    ] = False,
) -> None:
    """Create a key for the settings file. The key is shown once; the settings keep its hash."""
    key = new_key(_key_pepper(config, set_))
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
        typer.Option(
            "--id", help="Public id, needed for a key that radixgate did not create.", show_default=False
        ),
    ] = None,
) -> None:
    """Read a key of any form from standard input and print its entry for the settings file."""
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
    print(f'- {{id: {identity}, hash: "{HASH_PREFIX}{key_digest(text, _key_pepper(config, set_)).hex()}"}}')


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Tenant that the key belongs to.", metavar="TENANT")],
    name: Annotated[str | None, typer.Option(help="Description of the key.", show_default=False)] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help="End of validity: the last day in UTC, or a time with its time zone.", show_default=False
        ),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Allowed use: inference, usage or admin. May be repeated.", show_default=False),
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
            help="Service class of requests that name none: voice, code, chat or batch.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the key.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Create a key of a tenant in the database. The key is shown once."""
    more: Any = {"scopes": tuple(scope)} if scope is not None else {}
    if class_ is not None:
        more["service_class"] = class_
    rules = ApiKeySettings(
        **KEY_PLACEHOLDER,
        name=name,
        expires=parse_moment(expires) if expires is not None else None,
        models=merge_model_access(ModelAccessSettings(), allow, deny),
        addresses=parse_networks(address or ()),
        limits=parse_limits(limit or ()),
        concurrency=concurrency,
        **more,
    )

    async def work() -> NewKey:
        settings = load_database_settings(config, set_)
        async with _key_lifecycle(settings) as life:
            if tenant in names_in_file(settings, "tenants"):
                raise CommandError(
                    f"the tenant {tenant} is in the settings file, and so are its keys: `radixgate keys new` "
                    "prints an entry for them"
                )
            return await life.create(tenant, validated(rules))

    _show(run_async(work()), quiet)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also expired and revoked keys.")] = False,
    json: JsonOption = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """List the keys of the database, without the keys' secrets."""
    settings = load_database_settings(config, set_)
    found = _with_keys(settings, lambda life: life.list_keys(tenant, active=not all_))
    note_others(settings, "keys")
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
        str, typer.Option(help="How long the old key stays valid, such as 90s, 30m, 24h or 7d.")
    ] = "24h",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the key.")] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Create a key that replaces another, which stays valid for a grace period. Both count for the same limits."""
    seconds = _seconds(grace)
    settings = _settings_for(config, set_, [identity])
    _show(_with_keys(settings, lambda life: life.rotate(identity, seconds)), quiet)


@app.command()
def expire(
    identity: Annotated[str, typer.Argument(help="Public id of the key.", metavar="ID")],
    when: Annotated[
        str,
        typer.Argument(
            help="End of validity: the last day in UTC, or a time with its time zone.", metavar="WHEN"
        ),
    ],
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Set the end of validity of a key."""
    at = parse_moment(when)
    _with_keys(_settings_for(config, set_, [identity]), lambda life: life.expire(identity, at))


@app.command()
def revoke(
    identities: Annotated[
        list[str] | None, typer.Argument(help="Public ids of keys.", metavar="ID...", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Revoke all keys of this tenant.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the keys that would be revoked.")
    ] = False,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Revoke keys at once and for ever. Either all given keys are revoked or none."""
    if (identities is None) == (tenant is None):
        raise CommandError("give ids of keys, or --tenant for all keys of a tenant", 2)

    async def work(life: KeyLifecycle) -> KeySelection:
        chosen = await life.select(identities, tenant)
        if not dry_run:
            await life.revoke(chosen.ids)
        return chosen

    chosen = _with_keys(_settings_for(config, set_, identities or (), tenant), work)
    for key in chosen.ids:
        print(f"{key}{' (is already invalid)' if key in chosen.already else ''}")
    print(f"{'Would revoke' if dry_run else 'Revoked'} {counted(len(chosen.ids), 'key')}.")


def _settings_for(
    config: ConfigFile, assignments: Assignments, identities: Sequence[str], tenant: str | None = None
) -> Settings:
    """Return the settings of a command that changes these keys, or all of a tenant.

    Raises CommandError for keys of the settings file.
    """
    settings = load_database_settings(config, assignments)
    there = "change them there, then run `radixgate reload`"
    if tenant in names_in_file(settings, "tenants"):
        raise CommandError(f"the tenant {tenant} is in the settings file, and so are its keys: {there}")
    if in_file := sorted(set(names_in_file(settings, "keys")).intersection(identities)):
        raise CommandError(f"the settings file has the keys {', '.join(in_file)}: {there}")
    return settings


def _with_keys(settings: Settings, work: Callable[[KeyLifecycle], Awaitable[Result]]) -> Result:
    """Run work on the keys of the database and return its result. Raises CommandError."""

    async def inside() -> Result:
        async with _key_lifecycle(settings) as life:
            return await work(life)

    return run_async(inside())


@asynccontextmanager
async def _key_lifecycle(settings: Settings) -> AsyncIterator[KeyLifecycle]:
    async with open_tenant_store(settings) as store:
        yield KeyLifecycle(store, pepper(deployment_secret(settings)))


def _show(made: NewKey, quiet: bool) -> None:
    print(made.text if quiet else f"The key, shown only now:\n\n    {made.text}\n\nIts public id: {made.id}")


def _row(stored: StoredKey) -> tuple[str, ...]:
    key = stored.key
    ends = key.expires.text if key.expires is not None else "-"
    return key.id, stored.tenant, key.name or "-", " ".join(key.scopes), ends, stored.state(time.time())


def _without_hash(key: ApiKeySettings) -> ApiKeySettings:
    return msgspec.structs.replace(key, hash=key.hash.partition(":")[0])


def _seconds(text: str) -> float:
    """Parse a duration such as 90s, 30m, 24h or 7d into seconds. Raises CommandError."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise CommandError(f"--grace {text}: expected a duration such as 90s, 30m, 24h or 7d", 2)
    return int(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[found[2]]


def _key_pepper(config: ConfigFile, assignments: Assignments) -> bytes:
    """Return the pepper of key hashes of the deployment; the settings need not be complete yet."""
    settings = find_deployment(config, assignments, SECRET).settings
    file = secret_file(settings)
    is_new = file is not None and not file.exists()
    secret = deployment_secret(settings)
    if file is not None:
        where = f"The deployment secret {'was generated' if is_new else 'is'} in {file.absolute()}"
        print(f"{where}; this key is only valid with that secret.", file=sys.stderr)
    return pepper(secret)
