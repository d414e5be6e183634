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

from gateway.cli.support.failure import Failure
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database import schema
from gateway.database.audit_log import chain_key
from gateway.database.database import Database, DatabaseConflict, DatabaseDown
from gateway.database.tables import REVISION
from gateway.database.tenant_store import TenantStore
from gateway.process.secrets import deployment_secret
from gateway.settings.database_address import NONE, database_url_problem
from gateway.settings.messages import explained
from gateway.settings.sources import load
from gateway.settings.tenants import LIMIT_UNITS, ContextLengthSettings, LimitSettings, ModelAccessSettings
from gateway.settings.tree import Settings
from gateway.settings.types import Moment, Network
from gateway.tenants.key_life import KeyProblem

Result = TypeVar("Result")
Value = TypeVar("Value")

Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="UNIT=AMOUNT[/PERIOD][,OPTION=VALUE...]",
        help="As requests=60/minute, spend=20/month,reset=calendar,alert_at=0.8, concurrency=4,models=llama-*, or "
        "total_tokens=200000/hour,until=2027-01-31. Options: reset, models (several with a space between), mode, "
        "alert_at, until. May be repeated; all together take the place of those there are.",
        show_default=False,
    ),
]
Clear = Annotated[
    list[str] | None,
    typer.Option(
        "--clear",
        metavar="NAME",
        help="Takes away what was set: limits, concurrency, models and so on, as settings call it.",
        show_default=False,
    ),
]
ContextLengthMax = Annotated[
    int | None, typer.Option(help="Longest prompt and answer together.", min=1, show_default=False)
]
ContextLengths = Annotated[
    list[str] | None,
    typer.Option(
        "--context-length",
        metavar="PATTERN=LENGTH",
        help="The same for some models, as llama-*=8192. May be repeated.",
        show_default=False,
    ),
]
Weight = Annotated[
    float | None,
    typer.Option(
        help="Share in the fair queue: twice the weight, twice the work when all wait.", show_default=False
    ),
]
Classes = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="CLASS",
        help="Service classes it may have (voice, code, chat, batch), the first by default; may be repeated.",
        show_default=False,
    ),
]
CacheBlocksMax = Annotated[
    int | None, typer.Option(help="Blocks of the prefix index it may have.", min=1, show_default=False)
]
WithoutRedis = Annotated[
    str | None,
    typer.Option(help="While Redis is away: open (each gateway's share) or closed.", show_default=False),
]
Overflow = Annotated[
    str | None,
    typer.Option(
        help="Prompts may go to providers outside where no worker takes them: allow or deny.",
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


def limits_of(texts: Sequence[str]) -> tuple[LimitSettings, ...]:
    """From --limit. Raises Failure."""
    found = []
    for text in texts:
        first, *options = text.split(",")
        unit, _, rest = first.partition("=")
        amount, _, period = rest.partition("/")
        fields: dict[str, Any] = dict(option.partition("=")[::2] for option in options)
        if "models" in fields:
            fields["models"] = fields["models"].split()
        try:
            if unit not in LIMIT_UNITS or bool(period) == (unit == "concurrency"):
                raise ValueError
            if fields.keys() - {"reset", "models", "mode", "alert_at", "until"}:
                raise ValueError
            given = {unit: amount, **({"per": period} if period else {}), **fields}
            found.append(
                msgspec.convert(given, LimitSettings, strict=False, dec_hook=lambda kind, text: kind(text))
            )
        except (ValueError, msgspec.ValidationError):
            raise Failure(
                f"--limit {text}: expected UNIT=AMOUNT/PERIOD and perhaps options, as in requests=60/minute or "
                "spend=20/month,reset=calendar",
                2,
            ) from None
    return tuple(found)


def context_lengths_of(texts: Sequence[str]) -> tuple[ContextLengthSettings, ...]:
    """From --context-length. Raises Failure."""
    found = []
    for text in texts:
        pattern, _, length = text.rpartition("=")
        try:
            found.append(ContextLengthSettings(models=(pattern,), max=int(length)))
        except ValueError:
            raise Failure(
                f"--context-length {text}: expected PATTERN=LENGTH, as in llama-*=8192", 2
            ) from None
    return tuple(found)


def without(value: Value, names: Sequence[str] | None, *, kept: Sequence[str]) -> Value:
    """The same with the defaults of these fields. `kept`: those that cannot be taken away. Raises Failure."""
    kind: Any = type(value)
    fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name not in kept}
    changes = {}
    for name in (name.replace("-", "_") for name in names or ()):
        field = fields.get(name)
        if field is None:
            raise Failure(f"--clear {name}: expected one of {', '.join(fields)}", 2)
        made = field.default_factory is not msgspec.NODEFAULT
        changes[name] = field.default_factory() if made else field.default
    changed: Value = msgspec.structs.replace(value, **changes)  # type: ignore[type-var]
    return changed


def models_of(
    now: ModelAccessSettings, allow: Sequence[str] | None, deny: Sequence[str] | None
) -> ModelAccessSettings:
    """What is given takes the place of what there is."""
    return ModelAccessSettings(
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
