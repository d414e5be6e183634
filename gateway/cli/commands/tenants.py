"""`radixgate organisations`, `plans` and `tenants`: change and list what the database has of each."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import typer

from gateway.cli.support.columns import format_columns
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.database_access import (
    AddressOption,
    AllowOption,
    CacheBlocksMaxOption,
    ClassOption,
    ClearOption,
    ConcurrencyOption,
    ContextLengthMaxOption,
    ContextLengthOption,
    DenyOption,
    DisabledOption,
    JsonOption,
    LimitOption,
    OverflowOption,
    WeightOption,
    WithoutRedisOption,
    clear_fields,
    load_database_settings,
    merge_model_access,
    open_tenant_store,
    parse_context_lengths,
    parse_limits,
    parse_networks,
    run_async,
    to_json,
    validated,
)
from gateway.cli.support.names_in_file import Kind, note_hidden, note_others
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import (
    IsolationSettings,
    LimitSettings,
    ModelAccessSettings,
    OrganisationSettings,
    PlanSettings,
    TenantSettings,
)

Value = TypeVar("Value")

ORGANISATION = ("organisation", "limits", "concurrency", "state")
PLAN = ("plan", "limits", "concurrency", "weight", "classes", "models")
TENANT = ("tenant", "organisation", "plan", "limits", "models", "state")

MODES: dict[str, Literal["isolated", "group", "shared"]] = {
    "isolated": "isolated",
    "group": "group",
    "shared": "shared",
}

organisations = typer.Typer(
    help="Organisations, which pay for one or several tenants.", rich_markup_mode=None
)
plans = typer.Typer(help="Plans, which define what tenants may use.", rich_markup_mode=None)
tenants = typer.Typer(help="Tenants, which are the projects of organisations.", rich_markup_mode=None)


@organisations.command("set")
def set_organisation(
    identity: Annotated[str, typer.Argument(metavar="ID")],
    limit: LimitOption = None,
    concurrency: ConcurrencyOption = None,
    disabled: DisabledOption = None,
    clear: ClearOption = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Create an organisation, or change the given fields of one."""

    async def work() -> None:
        settings = load_database_settings(config, set_)
        async with open_tenant_store(settings) as store, store.change() as change:
            known = await change.organisation(identity)
            present = clear_fields(known or OrganisationSettings(id=identity), clear, kept=("id",))
            changed = _changed(present, limits=limit, concurrency=concurrency, disabled=disabled)
            await change.put_organisation(changed)
        _print_change(ORGANISATION, _organisation(changed), is_new=known is None)
        note_hidden(settings, "organisations", identity)

    run_async(work())


@organisations.command("list")
def list_organisations(config: ConfigFile = None, set_: Assignments = None, json: JsonOption = False) -> None:
    """List the organisations."""
    found = _read(config, set_, "organisations", TenantStore.stored_organisations)
    _print(found, ORGANISATION, [_organisation(each) for each in found], json)


@plans.command("set")
def set_plan(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    limit: LimitOption = None,
    concurrency: ConcurrencyOption = None,
    weight: WeightOption = None,
    class_: ClassOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    context_length_max: ContextLengthMaxOption = None,
    context_length: ContextLengthOption = None,
    cache_blocks_max: CacheBlocksMaxOption = None,
    without_redis: WithoutRedisOption = None,
    overflow: OverflowOption = None,
    clear: ClearOption = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Create a plan, or change the given fields of one."""

    async def work() -> None:
        settings = load_database_settings(config, set_)
        async with open_tenant_store(settings) as store, store.change() as change:
            known = await change.plan(name)
            present = clear_fields(known or PlanSettings(name=name), clear, kept=("name",))
            changed = _changed(
                present,
                limits=limit,
                concurrency=concurrency,
                weight=weight,
                classes=class_,
                models=merge_model_access(present.models, allow, deny),
                context_length_max=context_length_max,
                context_lengths=context_length,
                cache_blocks_max=cache_blocks_max,
                without_redis=without_redis,
                overflow=overflow,
            )
            await change.put_plan(changed)
        _print_change(PLAN, _plan(changed), is_new=known is None)
        note_hidden(settings, "plans", name)

    run_async(work())


@plans.command("list")
def list_plans(config: ConfigFile = None, set_: Assignments = None, json: JsonOption = False) -> None:
    """List the plans."""
    found = _read(config, set_, "plans", TenantStore.stored_plans)
    _print(found, PLAN, [_plan(each) for each in found], json)


@tenants.command("set")
def set_tenant(
    identity: Annotated[str, typer.Argument(metavar="ID")],
    organisation: Annotated[
        str | None,
        typer.Option(help="Organisation that pays; by default the tenant itself.", show_default=False),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Name of a plan, in the database or in the settings file.", show_default=False),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            help="Isolation of the prefix cache: isolated, shared, or group:NAME.", show_default=False
        ),
    ] = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    address: AddressOption = None,
    disabled: DisabledOption = None,
    limit: LimitOption = None,
    concurrency: ConcurrencyOption = None,
    context_length_max: ContextLengthMaxOption = None,
    context_length: ContextLengthOption = None,
    cache_blocks_max: CacheBlocksMaxOption = None,
    without_redis: WithoutRedisOption = None,
    overflow: OverflowOption = None,
    clear: ClearOption = None,
    config: ConfigFile = None,
    set_: Assignments = None,
) -> None:
    """Create a tenant, or change the given fields of one."""

    async def work() -> None:
        settings = load_database_settings(config, set_)
        file_plans = {plan.name for plan in settings.plans}
        async with open_tenant_store(settings) as store, store.change() as change:
            known = await change.tenant(identity)
            present = clear_fields(known or TenantSettings(id=identity), clear, kept=("id", "keys"))
            changed = _changed(
                present,
                organisation=organisation,
                plan=plan,
                isolation=isolation,
                models=merge_model_access(present.models, allow, deny),
                addresses=address,
                disabled=disabled,
                limits=limit,
                concurrency=concurrency,
                context_length_max=context_length_max,
                context_lengths=context_length,
                cache_blocks_max=cache_blocks_max,
                without_redis=without_redis,
                overflow=overflow,
            )
            if changed.plan is not None and not await change.has_plan(changed.plan, file_plans):
                raise CommandError(
                    f"there is no plan {changed.plan!r}, neither in the database nor in the settings file"
                )
            await change.put_tenant(changed)
        _print_change(TENANT, _tenant(changed), is_new=known is None)
        note_hidden(settings, "tenants", identity)

    run_async(work())


@tenants.command("list")
def list_tenants(config: ConfigFile = None, set_: Assignments = None, json: JsonOption = False) -> None:
    """List the tenants."""

    async def every(store: TenantStore) -> list[TenantSettings]:
        return [tenant async for tenant in store.stored_tenants()]

    found = _read(config, set_, "tenants", every)
    _print(found, TENANT, [_tenant(each) for each in found], json)


def _organisation(one: OrganisationSettings) -> tuple[str, ...]:
    return one.id, _limits(one.limits), str(one.concurrency or "-"), _state(one.disabled)


def _plan(one: PlanSettings) -> tuple[str, ...]:
    classes = " ".join(one.classes) or "-"
    return (
        *(one.name, _limits(one.limits), str(one.concurrency or "-")),
        *(f"{one.weight:g}", classes, _models(one.models)),
    )


def _tenant(one: TenantSettings) -> tuple[str, ...]:
    payer, limits = one.organisation or one.id, _limits(one.limits)
    return one.id, payer, one.plan or "-", limits, _models(one.models), _state(one.disabled)


def _print_change(head: Sequence[str], row: Sequence[str], *, is_new: bool) -> None:
    """Print what was created or changed, with the fields that have a value."""
    fields = ", ".join(f"{name} {cell}" for name, cell in zip(head[1:], row[1:], strict=True) if cell != "-")
    print(f"{head[0]} {row[0]} {'created' if is_new else 'changed'}: {fields}")


def _read(
    config: ConfigFile, assignments: Assignments, kind: Kind, read: Callable[[TenantStore], Awaitable[Value]]
) -> Value:
    async def work() -> Value:
        settings = load_database_settings(config, assignments)
        async with open_tenant_store(settings) as store:
            found = await read(store)
        note_others(settings, kind)
        return found

    return run_async(work())


def _changed(value: Value, **given: Any) -> Value:
    """Return the value with the given options, parsed where an option is text. Raises CommandError."""
    parsed = {
        name: PARSERS[name](new) if name in PARSERS else new for name, new in given.items() if new is not None
    }
    changed: Value = msgspec.structs.replace(value, **parsed)  # type: ignore[type-var]
    return validated(changed)


def _parse_isolation(text: str) -> IsolationSettings:
    mode, _, group = text.partition(":")
    if mode not in MODES or (mode == "group") != bool(group):
        raise CommandError(f"--isolation {text}: expected isolated, shared or group:NAME", 2)
    return IsolationSettings(mode=MODES[mode], group=group or None)


PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "limits": parse_limits,
    "context_lengths": parse_context_lengths,
    "addresses": parse_networks,
    "classes": tuple,
    "isolation": _parse_isolation,
}


def _limits(limits: Sequence[LimitSettings]) -> str:
    return ", ".join(map(_limit, limits)) or "-"


def _limit(limit: LimitSettings) -> str:
    amount = f"{limit.spend:g}" if limit.spend is not None else str(limit.amount)
    text = f"{amount} {limit.unit.removeprefix('total_')}"
    if limit.unit != "concurrency":
        text += f"/{limit.per if limit.reset == 'smooth' else f'{limit.reset} {limit.per}'}"
    for more in (" ".join(limit.models), limit.mode if limit.mode != "enforce" else ""):
        text += f" ({more})" if more else ""
    return text + (f" until {limit.until}" if limit.until is not None else "")


def _models(models: ModelAccessSettings) -> str:
    return " ".join((*models.allow, *(f"!{pattern}" for pattern in models.deny)))


def _state(disabled: bool) -> str:
    return "disabled" if disabled else "enabled"


def _print(found: Sequence[Any], head: Sequence[str], rows: Sequence[Sequence[Any]], json: bool) -> None:
    if json:
        print("\n".join(to_json(each) for each in found))
    else:
        print("\n".join(format_columns([head, *rows])))
