"""A command's way into the database of tenants, and the options that describe who may use what."""

import asyncio
import getpass
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from gateway.cli.failure import Failure
from gateway.cli.options import Assignments, ConfigFile
from gateway.database import schema
from gateway.database.audit_log import chain_key
from gateway.database.database import Database, DatabaseConflict, DatabaseDown
from gateway.database.tables import REVISION
from gateway.database.tenant_store import TenantStore
from gateway.database_address import NONE, database_url_problem
from gateway.secret_store import deployment_secret
from gateway.settings import Settings
from gateway.settings_messages import explained
from gateway.settings_sources import load
from gateway.settings_tenants import Limit, ModelAccess
from gateway.settings_types import Moment, Network
from gateway.tenants.key_life import KeyProblem

Result = TypeVar("Result")
Value = TypeVar("Value")

Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="UNIT=AMOUNT/PERIOD",
        help="As requests=60/minute or total_tokens=100000/hour. May be repeated.",
        show_default=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="PATTERN", help="Models it may use; may be repeated.", show_default=False
    ),
]
Deny = Annotated[
    list[str] | None,
    typer.Option("--deny", metavar="PATTERN", help="Models it may not use; wins.", show_default=False),
]
Addresses = Annotated[
    list[str] | None,
    typer.Option("--address", metavar="CIDR", help="Where it may be used from.", show_default=False),
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", help="Requests at one time.", min=1, show_default=False)
]
Disabled = Annotated[
    bool | None, typer.Option("--disable/--enable", help="Refuse it, or do not.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def settings_of(config: ConfigFile, assignments: Assignments) -> Settings:
    """They need not be complete. Raises SettingsProblem, and Failure where there is no database."""
    settings = load(config, assignments=assignments or (), complete=False).settings
    if settings.database.url == NONE:
        raise Failure("tenants and keys come from the settings file only (database.url: none)", 2)
    if (problem := database_url_problem(settings.database.url)) is not None:
        raise Failure(f"$.database.url: {problem}", 2)
    return settings


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """Whatever its tables are. Raises Failure, now and while it is open."""
    try:
        database = Database(settings.database.url, Path(settings.state_directory))
        try:
            yield database
        finally:
            await database.close()
    except (DatabaseDown, OSError) as err:
        raise Failure(f"the database (database.url): {err}") from err
    except (DatabaseConflict, KeyProblem) as err:
        raise Failure(str(err)) from err
    except msgspec.MsgspecError as err:
        raise Failure(f"a row of the database cannot be read: {err}") from err


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[TenantStore]:
    """Its tables are right: a SQLite file is made, or brought up to date, unless the settings forbid it."""
    async with opened(settings) as database:
        upgrade = settings.database.upgrade
        if upgrade == "always" or (upgrade == "auto" and database.file is not None):
            await schema.upgrade(database)
        elif (found := await schema.revision(database)) != REVISION:
            raise Failure(
                f"the database's tables are of version {found or 'none'}, not {REVISION}: "
                "run `radixgate database upgrade`"
            )
        yield TenantStore(database, chain_key(deployment_secret(settings)), f"cli:{_user()}")


def _user() -> str:
    """Who has typed the command, as the system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def limits_of(texts: Sequence[str]) -> tuple[Limit, ...]:
    """From --limit. Raises Failure."""
    found = []
    for text in texts:
        unit, equals, rest = text.partition("=")
        amount, slash, period = rest.partition("/")
        try:
            if not equals or not slash or unit not in ("requests", "total_tokens"):
                raise ValueError
            found.append(msgspec.convert({unit: int(amount), "per": period}, Limit))
        except (ValueError, msgspec.ValidationError):
            raise Failure(
                f"--limit {text}: expected UNIT=AMOUNT/PERIOD, as in requests=60/minute", 2
            ) from None
    return tuple(found)


def models_of(now: ModelAccess, allow: Sequence[str] | None, deny: Sequence[str] | None) -> ModelAccess:
    """What is given takes the place of what there is."""
    return ModelAccess(
        allow=tuple(allow) if allow is not None else now.allow,
        deny=tuple(deny) if deny is not None else now.deny,
    )


def networks_of(texts: Sequence[str]) -> tuple[Network, ...]:
    """From --address. Raises Failure."""
    try:
        return tuple(Network(text) for text in texts)
    except ValueError as err:
        raise Failure(f"--address: {err}", 2) from None


def moment_of(text: str) -> Moment:
    """Raises Failure."""
    try:
        return Moment(text)
    except ValueError as err:
        raise Failure(f"{text}: {err}", 2) from None


def checked(value: Value) -> Value:
    """The same value, held against the rules that settings have. Raises Failure."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=str)
        return msgspec.convert(plain, type(value), dec_hook=lambda kind, given: kind(given))
    except msgspec.ValidationError as err:
        raise Failure(explained(str(err), type(value), {}), 2) from None


def shown(value: Any) -> str:
    """As JSON, in one line."""
    return msgspec.json.encode(value, enc_hook=str).decode()
