"""Access of commands to the database of tenants, and the options that describe plans, tenants and keys."""

import asyncio
import getpass
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.deployment import STATE, find_deployment, print_deployment
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database import schema
from gateway.database.audit_log import chain_key
from gateway.database.backup import BackupInvalid
from gateway.database.database import STATEMENT_SECONDS_MAX, Database, DatabaseConflict, DatabaseDown
from gateway.database.tenant_store import TenantStore
from gateway.process.secrets import deployment_secret
from gateway.settings.database_address import NONE, database_url_problem
from gateway.settings.error_messages import explain_error
from gateway.settings.tenants import LIMIT_UNITS, ContextLengthSettings, LimitSettings, ModelAccessSettings
from gateway.settings.tree import Settings
from gateway.settings.types import Moment, Network
from gateway.tenants.key_lifecycle import KeyProblem

Result = TypeVar("Result")
Value = TypeVar("Value")

LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="UNIT=AMOUNT[/PERIOD][,OPTION=VALUE...]",
        help="A limit, such as requests=60/minute, spend=20/month,reset=calendar,alert_at=0.8, "
        "concurrency=4,models=llama-*, or total_tokens=200000/hour,until=2027-01-31. Options: reset, models "
        "(several separated by spaces), mode, alert_at, until. May be repeated; replaces all present limits.",
        show_default=False,
    ),
]
ClearOption = Annotated[
    list[str] | None,
    typer.Option(
        "--clear",
        metavar="NAME",
        help="Reset a field to its default: limits, concurrency, models or another name of the settings. May be "
        "repeated.",
        show_default=False,
    ),
]
ContextLengthMaxOption = Annotated[
    int | None,
    typer.Option(help="Largest number of tokens of prompt and answer together.", min=1, show_default=False),
]
ContextLengthOption = Annotated[
    list[str] | None,
    typer.Option(
        "--context-length",
        metavar="PATTERN=LENGTH",
        help="Largest context for some models, such as llama-*=8192. May be repeated.",
        show_default=False,
    ),
]
WeightOption = Annotated[
    float | None,
    typer.Option(
        help="Weight in the fair queue: a tenant with twice the weight gets twice the work while all wait.",
        show_default=False,
    ),
]
ClassOption = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="CLASS",
        help="Allowed service classes (voice, code, chat, batch); the first is the default. May be repeated.",
        show_default=False,
    ),
]
CacheBlocksMaxOption = Annotated[
    int | None, typer.Option(help="Largest number of blocks in the prefix index.", min=1, show_default=False)
]
WithoutRedisOption = Annotated[
    str | None,
    typer.Option(
        help="While Redis is unreachable: open (each gateway allows its share) or closed (refuse).",
        show_default=False,
    ),
]
OverflowOption = Annotated[
    str | None,
    typer.Option(
        help="Whether prompts may go to external providers where no worker takes them: allow or deny.",
        show_default=False,
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="PATTERN", help="Pattern of allowed models. May be repeated.", show_default=False
    ),
]
DenyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--deny",
        metavar="PATTERN",
        help="Pattern of refused models; wins over --allow. May be repeated.",
        show_default=False,
    ),
]
AddressOption = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="CIDR",
        help="Range of client addresses from which requests are accepted. May be repeated.",
        show_default=False,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option("--concurrency", help="Largest number of requests at one time.", min=1, show_default=False),
]
DisabledOption = Annotated[
    bool | None,
    typer.Option(
        "--disable/--enable", help="Refuse all its requests, or accept them again.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def load_database_settings(config: ConfigFile, assignments: Assignments) -> Settings:
    """Return the settings of the deployment, which need not be complete, and print which deployment it is.

    Raises:
        SettingsProblem: the settings are wrong.
        CommandError: there is no deployment or no database, or its address is wrong.
    """
    deployment = find_deployment(config, assignments, STATE)
    settings = deployment.settings
    if settings.database.url == NONE:
        raise CommandError("tenants and keys come from the settings file only (database.url: none)", 2)
    if (problem := database_url_problem(settings.database.url)) is not None:
        raise CommandError(f"$.database.url: {problem}", 2)
    print_deployment(deployment)
    return settings


@asynccontextmanager
async def open_database(
    settings: Settings, *, statement_seconds_max: float = STATEMENT_SECONDS_MAX
) -> AsyncIterator[Database]:
    """Open the database for as long as the context is open, whatever version its tables have.

    Raises:
        CommandError: the database does not answer, or refuses a change.
    """
    try:
        database = Database(settings.database.url, Path(settings.state_directory), statement_seconds_max)
        try:
            yield database
        finally:
            await database.close()
    except (DatabaseDown, OSError) as err:
        raise CommandError(f"the database (database.url): {err}") from err
    except (DatabaseConflict, KeyProblem) as err:
        raise CommandError(str(err)) from err
    except BackupInvalid as err:
        raise CommandError(f"the backup: {err}") from err
    except msgspec.MsgspecError as err:
        raise CommandError(f"a row of the database cannot be read: {err}") from err


@asynccontextmanager
async def open_tenant_store(settings: Settings) -> AsyncIterator[TenantStore]:
    """Open the tenants of the database, with tables of the current version.

    A SQLite file is created or upgraded, unless the settings forbid that.

    Raises:
        CommandError: the database does not answer, its tables are of another version, or it refuses a change.
    """
    async with open_database(settings) as database:
        upgrade = settings.database.upgrade
        if upgrade == "always" or (upgrade == "auto" and database.file is not None):
            await schema.upgrade(database)
        elif not (found := await schema.tables_version(database)).serves:
            raise CommandError(f"the database (database.url): {found.problem()}")
        yield TenantStore(database, chain_key(deployment_secret(settings)), f"cli:{_user_name()}")


def _user_name() -> str:
    """Return the name of the operating system's user that runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a new event loop and return its result."""
    return asyncio.run(work)


def parse_limits(texts: Sequence[str]) -> tuple[LimitSettings, ...]:
    """Parse the values of --limit. Raises CommandError."""
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
            raise CommandError(
                f"--limit {text}: expected UNIT=AMOUNT/PERIOD and perhaps options, as in requests=60/minute or "
                "spend=20/month,reset=calendar",
                2,
            ) from None
    return tuple(found)


def parse_context_lengths(texts: Sequence[str]) -> tuple[ContextLengthSettings, ...]:
    """Parse the values of --context-length. Raises CommandError."""
    found = []
    for text in texts:
        pattern, _, length = text.rpartition("=")
        try:
            found.append(ContextLengthSettings(models=(pattern,), max=int(length)))
        except ValueError:
            raise CommandError(
                f"--context-length {text}: expected PATTERN=LENGTH, as in llama-*=8192", 2
            ) from None
    return tuple(found)


def clear_fields(value: Value, names: Sequence[str] | None, *, kept: Sequence[str]) -> Value:
    """Return the value with these fields reset to their defaults.

    Raises:
        CommandError: a name is not a field, or a field of `kept`.
    """
    kind: Any = type(value)
    fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name not in kept}
    changes = {}
    for name in (name.replace("-", "_") for name in names or ()):
        field = fields.get(name)
        if field is None:
            raise CommandError(f"--clear {name}: expected one of {', '.join(fields)}", 2)
        made = field.default_factory is not msgspec.NODEFAULT
        changes[name] = field.default_factory() if made else field.default
    changed: Value = msgspec.structs.replace(value, **changes)  # type: ignore[type-var]
    return changed


def merge_model_access(
    present: ModelAccessSettings, allow: Sequence[str] | None, deny: Sequence[str] | None
) -> ModelAccessSettings:
    """Return the model access in which given patterns replace the present ones."""
    return ModelAccessSettings(
        allow=tuple(allow) if allow is not None else present.allow,
        deny=tuple(deny) if deny is not None else present.deny,
    )


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse the values of --address. Raises CommandError."""
    try:
        return tuple(Network(text) for text in texts)
    except ValueError as err:
        raise CommandError(f"--address: {err}", 2) from None


def parse_moment(text: str) -> Moment:
    """Parse a day or a time. Raises CommandError."""
    try:
        return Moment(text)
    except ValueError as err:
        raise CommandError(f"{text}: {err}", 2) from None


def validated(value: Value) -> Value:
    """Return the same value after a check against the rules of the settings. Raises CommandError."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=str)
        return msgspec.convert(plain, type(value), dec_hook=lambda kind, given: kind(given))
    except msgspec.ValidationError as err:
        raise CommandError(explain_error(str(err), type(value), {}), 2) from None


def to_json(value: Any) -> str:
    """Return the value as JSON in one line."""
    return msgspec.json.encode(value, enc_hook=str).decode()
