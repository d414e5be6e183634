"""The tenant of a key, put together from organisation, plan, tenant and key."""

from hashlib import sha256

import pytest

from gateway.quotas.limit import Limit, concurrency
from gateway.settings.tenants import (
    ApiKeySettings,
    LimitSettings,
    ModelAccessSettings,
    OrganisationSettings,
    PlanSettings,
    TenantSettings,
)
from gateway.settings.types import Moment, Network, address_of
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import HASH_PREFIX, key_digest, new_key, pepper
from gateway.tenants.tenant_register import TenantRegister
from policies.admission.limit_windows import Window

PEPPER = pepper(b"secret")
KEY = new_key(PEPPER)
A_MINUTE = (LimitSettings(requests=5, per="minute"),)


def register(*, key=None, now=1000.0, plan=None, organisation=None, **tenant):
    made = TenantRegister(PEPPER, lambda: now)
    made.put_plan(PlanSettings(name="p", **(plan or {})))
    if organisation is not None:
        made.put_organisation(OrganisationSettings(id="org", **organisation))
    made.put_tenant(TenantSettings(id="acme", organisation="org", plan="p", **tenant))
    made.put_key("acme", ApiKeySettings(**{"id": KEY.id, "hash": KEY.hash, **(key or {})}))
    return made


def found(**given):
    return register(**given).by_key(KEY.text)


@pytest.mark.parametrize("text", ["sk-1234", "sk-" + "x" * 300, "Grüße", "a.b.c", "rg-abc"])
@pytest.mark.parametrize("kind", ["plain", "peppered"])
def test_a_key_of_any_shape_is_found_by_its_digest(text, kind):
    digest = sha256(text.encode()) if kind == "plain" else None
    stored = f"sha256:{digest.hexdigest()}" if digest else HASH_PREFIX + key_digest(text, PEPPER).hex()
    made = register(key={"id": "moved", "hash": stored})
    assert made.by_key(text).key_id == "moved"
    for wrong in (text[:-1], text + "x", stored, stored.partition(":")[2], "moved"):
        with pytest.raises(UnknownKey):
            made.by_key(wrong)


def test_a_key_ends_at_its_moment_and_not_before():
    end = Moment.at(1000.0)
    assert found(now=999.9, key={"expires": end}).id == "acme"
    with pytest.raises(UnknownKey):
        found(now=1000.0, key={"expires": end})


def test_a_disabled_key_is_as_unknown_as_any():
    with pytest.raises(UnknownKey):
        found(key={"disabled": True})


def test_a_disabled_tenant_or_organisation_is_found_as_disabled():
    assert found(disabled=True).disabled
    assert found(organisation={"disabled": True}).disabled
    assert not found(organisation={}).disabled


def test_limits_of_organisation_plan_and_key_are_separate_accounts():
    tenant = found(
        organisation={"limits": A_MINUTE, "concurrency": 9}, plan={"concurrency": 4}, key={"limits": A_MINUTE}
    )
    limit = Limit(unit="requests", amount=5, window=Window.of("minute"))
    assert [(s.name, s.limits) for s in tenant.scopes] == [
        ("organisation:org", (limit, concurrency(9))),
        ("tenant:acme", (concurrency(4),)),
        (f"key:{KEY.id}", (limit,)),
    ]


def test_where_only_the_plan_has_limits_only_the_tenant_is_an_account():
    assert [s.name for s in found(organisation={}, plan={"limits": A_MINUTE}).scopes] == ["tenant:acme"]


def test_a_key_that_replaces_another_goes_on_with_its_limits():
    tenant = found(key={"family": "first", "limits": A_MINUTE})
    assert tenant.scopes[-1].name == "key:first"


@pytest.mark.parametrize("level", ["plan", "models", "key"])
def test_a_model_has_to_be_allowed_on_every_level_and_deny_wins(level):
    rule = ModelAccessSettings(allow=("llama-*",), deny=("*-70b",))
    given = {"plan": {"plan": {"models": rule}}, "models": {"models": rule}, "key": {"key": {"models": rule}}}
    tenant = found(**given[level])
    assert [tenant.allows(model) for model in ("llama-8b", "llama-70b", "gpt")] == [True, False, False]


def test_addresses_of_tenant_and_key_hold_both():
    tenant = found(addresses=(Network("10.0.0.0/8"),), key={"addresses": (Network("10.1.0.0/16"),)})
    asked = ["10.1.2.3", "10.2.2.3", "11.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"]
    assert [tenant.allows_from(address_of(text)) for text in asked] == [True, False, False, True, False]
    assert not tenant.allows_from(None)
    assert found().allows_from(None)


def test_a_plan_that_is_missing_allows_nothing():
    made = register()
    made.put_tenant(TenantSettings(id="acme", plan="lost"))
    assert not made.by_key(KEY.text).allows("m")


def test_what_changes_shows_at_once():
    made = register()
    assert made.by_key(KEY.text).allows("m")
    made.put_plan(PlanSettings(name="p", models=ModelAccessSettings(deny=("m",))))
    assert not made.by_key(KEY.text).allows("m")
    made.put_tenant(TenantSettings(id="acme", disabled=True))
    assert made.by_key(KEY.text).disabled
    made.drop_key(KEY.id)
    made.drop_key(KEY.id)
    with pytest.raises(UnknownKey):
        made.by_key(KEY.text)
    assert len(made) == 0


def test_a_key_of_no_tenant_opens_nothing():
    made = TenantRegister(PEPPER)
    made.put_key("nobody", ApiKeySettings(id=KEY.id, hash=KEY.hash))
    with pytest.raises(UnknownKey):
        made.by_key(KEY.text)


def test_a_key_with_a_replaced_secret_drops_the_old_one():
    made, other = register(), new_key(PEPPER)
    made.put_key("acme", ApiKeySettings(id=KEY.id, hash=other.hash))
    with pytest.raises(UnknownKey):
        made.by_key(KEY.text)
    assert made.by_key(other.text).key_id == KEY.id
