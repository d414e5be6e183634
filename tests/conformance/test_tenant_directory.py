"""The contract of TenantDirectory. Single kinds of keys: tests/unit/gateway/tenants."""

from hashlib import sha256
from pathlib import Path

import pytest

from gateway.database.database import Database
from gateway.database.row_conversion import StoredKey
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import (
    ApiKeySettings,
    ContextLengthSettings,
    IsolationSettings,
    LimitSettings,
    ModelAccessSettings,
    OrganisationSettings,
    PlanSettings,
    TenantSettings,
)
from gateway.settings.tree import Settings
from gateway.settings.types import Moment, Network
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.tenant_register import TenantRegister
from gateway.tenants.yaml_directory import OpenUntilTenants, register_from_settings

PEPPER = pepper(b"secret")
NOW = 1_800_000_000.0
NAMES = ("acme", "globex", "ended", "off")
KEYS = {name: new_key(PEPPER) for name in NAMES}
ELSEWHERE = "sk-elsewhere"

ORGANISATION = OrganisationSettings(id="org", limits=(LimitSettings(requests=9, per="hour"),), concurrency=7)
PLAN = PlanSettings(
    name="p",
    limits=(
        LimitSettings(requests=60, per="minute"),
        LimitSettings(total_tokens=1000, per="day"),
        LimitSettings(
            spend=0.1, per="month", reset="calendar", models=("llama-*", "b"), mode="soft", alert_at=0.5
        ),
        LimitSettings(cached_tokens=7, per="week", reset="rolling", mode="shadow"),
    ),
    concurrency=3,
    context_lengths=(ContextLengthSettings(models=("llama-*",), max=100),),
    cache_blocks_max=1000,
    without_redis="closed",
    overflow="allow",
    models=ModelAccessSettings(allow=("llama-*",), deny=("*-70b",)),
    context_length_max=4096,
)
TENANTS = (
    TenantSettings(
        id="acme",
        organisation="org",
        plan="p",
        isolation=IsolationSettings(mode="group", group="friends"),
        limits=(
            LimitSettings(requests=600, per="minute", until=Moment.at(NOW + 60)),
            LimitSettings(concurrency=9),
        ),
        concurrency=4,
        context_length_max=50,
        context_lengths=(ContextLengthSettings(models=("x",), max=5),),
        cache_blocks_max=2000,
        without_redis="open",
        overflow="deny",
        models=ModelAccessSettings(deny=("llama-1",)),
        addresses=(Network("10.0.0.0/8"),),
        keys=(
            ApiKeySettings(
                id=KEYS["acme"].id,
                hash=KEYS["acme"].hash,
                name="the first",
                expires=Moment.at(NOW + 1),
                scopes=("usage",),
                models=ModelAccessSettings(allow=("llama-?",)),
                addresses=(Network("10.1.0.0/16"), Network("2001:db8::/32")),
                limits=(LimitSettings(total_tokens=5, per="second"),),
                concurrency=2,
                family="founders",
            ),
            ApiKeySettings(id=KEYS["ended"].id, hash=KEYS["ended"].hash, expires=Moment.at(NOW)),
            ApiKeySettings(id=KEYS["off"].id, hash=KEYS["off"].hash, disabled=True),
        ),
    ),
    TenantSettings(
        id="globex",
        keys=(
            ApiKeySettings(id=KEYS["globex"].id, hash=KEYS["globex"].hash),
            ApiKeySettings(id="elsewhere", hash=f"sha256:{sha256(ELSEWHERE.encode()).hexdigest()}"),
        ),
    ),
)
SETTINGS = Settings(organisations=(ORGANISATION,), plans=(PLAN,), tenants=TENANTS)


async def _in_database(url):
    database = Database(url, Path())
    store = TenantStore(database)
    async with store.change() as change:
        await change.put_organisation(ORGANISATION)
        await change.put_plan(PLAN)
        for tenant in TENANTS:
            await change.put_tenant(tenant)
            await change.add_keys([StoredKey(tenant=tenant.id, key=key, created=NOW) for key in tenant.keys])
    directory = SqlDirectory(
        TenantRegister(PEPPER, lambda: NOW), store, known_seconds_max=60.0, wall=lambda: NOW
    )
    await directory.refresh()
    return database, directory


@pytest.fixture(params=["yaml", "until tenants", "sqlite", "postgres"])
async def directory(request):
    """The same tenants, wherever they come from."""
    of_file = register_from_settings(SETTINGS, PEPPER, lambda: NOW)
    if request.param in ("yaml", "until tenants"):
        yield OpenUntilTenants(of_file) if request.param == "until tenants" else of_file
        return
    database, directory = await _in_database(request.getfixturevalue(f"{request.param}_tables_url"))
    yield directory
    await database.close()


@pytest.mark.parametrize(("tenant", "organisation"), [("acme", "org"), ("globex", "globex")])
async def test_a_key_names_its_tenant(directory, tenant, organisation):
    found = directory.by_key(KEYS[tenant].text)
    assert (found.id, found.organisation, found.key_id) == (tenant, organisation, KEYS[tenant].id)


async def test_a_key_from_elsewhere_is_found_by_its_digest(directory):
    assert directory.by_key(ELSEWHERE).key_id == "elsewhere"


@pytest.mark.parametrize(
    "presented",
    [
        *(None, "", "rg-x", new_key(PEPPER).text, KEYS["acme"].hash, "x" * 10_000, "rg-\udcff", "elsewhere"),
        *(KEYS["ended"].text, KEYS["off"].text, sha256(ELSEWHERE.encode()).hexdigest(), ELSEWHERE[:-1]),
    ],
    ids=[
        *("none", "empty", "short", "unknown", "a hash", "long", "no text", "an id"),
        *("ended", "off", "a digest", "cut"),
    ],
)
async def test_everything_else_is_unknown_in_the_same_way(directory, presented):
    with pytest.raises(UnknownKey) as unknown:
        directory.by_key(presented)
    assert str(unknown.value) == ""


async def test_the_same_key_gives_the_same_tenant(directory):
    assert directory.by_key(KEYS["acme"].text) == directory.by_key(KEYS["acme"].text)


async def test_a_tenant_has_all_of_its_stored_fields(directory):
    assert directory.by_key(KEYS["acme"].text) == register_from_settings(
        SETTINGS, PEPPER, lambda: NOW
    ).by_key(KEYS["acme"].text)


async def test_tenants_share_no_cache_unless_their_settings_allow_it(directory):
    assert directory.by_key(KEYS["acme"].text).group != directory.by_key(KEYS["globex"].text).group


async def test_every_tenants_group_is_listed(directory):
    assert {"group:friends", "tenant:globex"} <= set(directory.groups())
    before = list(directory.groups())
    assert list(directory.groups()) == before


async def test_keys_are_required_where_there_are_tenants(directory):
    assert directory.requires_keys


async def test_a_client_with_a_token_in_place_of_a_key_gets_its_tenant_under_the_tokens_rules(directory):
    rules = ApiKeySettings(id="token-x", hash="", scopes=("inference",))
    found, by_key = directory.by_id("acme", rules), directory.by_key(KEYS["acme"].text)
    assert (found.id, found.organisation, found.plan, found.group) == (
        *("acme", "org", by_key.plan, by_key.group),
    )
    assert (found.key_id, found.key_scopes) == ("token-x", {"inference"})
    assert [scope.name for scope in found.scopes] == ["organisation:org", "tenant:acme"]
    with pytest.raises(UnknownKey):
        directory.by_id("nobody", rules)


async def test_a_key_that_was_presented_before_stands_for_the_same_tenant_until_it_ends(directory):
    assert directory.by_key_id("acme", KEYS["acme"].id) == directory.by_key(KEYS["acme"].text)
    for tenant, key in (("globex", "acme"), ("acme", "ended"), ("acme", "off")):
        with pytest.raises(UnknownKey):
            directory.by_key_id(tenant, KEYS[key].id)
    with pytest.raises(UnknownKey):
        directory.by_key_id("acme", "nobodys")
