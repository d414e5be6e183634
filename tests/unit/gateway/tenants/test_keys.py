"""API keys: their shape, their hashes, and what a directory makes of them."""

import hmac
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.tenant import ModelAccess, Plan
from gateway.settings.tenants import (
    ApiKeySettings,
    IsolationSettings,
    LimitSettings,
    PlanSettings,
    TenantSettings,
)
from gateway.settings.tree import Settings
from gateway.settings.types import Moment
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import HASH_PREFIX, KeyDigests, key_digest, key_id, new_key, pepper
from gateway.tenants.yaml_directory import OpenDirectory, register_from_settings

PEPPER = pepper(b"secret")
NEW_YEAR = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
DAY = 86400.0
KEY, OTHER = new_key(PEPPER), new_key(PEPPER)


def directory(now=NEW_YEAR, **tenant):
    settings = Settings(
        plans=(PlanSettings(name="p", limits=(LimitSettings(requests=60, per="minute"),), concurrency=3),),
        tenants=(
            TenantSettings(
                **{
                    "id": "acme",
                    "plan": "p",
                    "keys": (ApiKeySettings(id=KEY.id, hash=KEY.hash, expires=Moment("2026-01-01")),),
                    **tenant,
                }
            ),
            TenantSettings(id="globex", keys=(ApiKeySettings(id=OTHER.id, hash=OTHER.hash),)),
        ),
    )
    return register_from_settings(settings, PEPPER, lambda: now)


def test_a_key_has_a_public_id_a_long_secret_and_a_checksum():
    prefix, public, rest = KEY.text.split("-")
    assert (prefix, public, len(rest)) == ("rg", KEY.id, 49)
    assert key_id(KEY.text) == KEY.id


def test_keys_are_never_the_same():
    assert len({new_key(PEPPER).text for _ in range(200)}) == 200


def test_only_the_hash_is_kept_and_it_depends_on_the_pepper():
    assert KEY.hash == HASH_PREFIX + key_digest(KEY.text, PEPPER).hex()
    assert key_digest(KEY.text, PEPPER) != key_digest(KEY.text, pepper(b"other"))
    assert key_digest("\udcff", PEPPER) == hmac.digest(PEPPER, b"\xed\xb3\xbf", "sha256")
    assert KEY.text not in KEY.hash


@given(st.text(max_size=120))
def test_whatever_is_presented_is_a_key_or_is_not(text):
    assert key_id(text) is None or text.startswith("rg-")


@pytest.mark.parametrize("secret", [b"", PEPPER, b"p" * 64, b"p" * 65])
def test_digests_of_many_keys_are_those_of_a_general_hmac(secret):
    digests = KeyDigests(secret)
    for text in ("", KEY.text, "\ud800 x", "k" * 200):
        assert digests.of(text) == digests.of(text) == key_digest(text, secret)


def test_one_wrong_character_is_caught_by_the_checksum():
    for at in range(len(KEY.text)):
        wrong = KEY.text[:at] + ("x" if KEY.text[at] != "x" else "y") + KEY.text[at + 1 :]
        assert key_id(wrong) is None


def test_a_key_opens_its_tenant_and_no_other():
    found = directory()
    assert (found.by_key(KEY.text).id, found.by_key(KEY.text).key_id) == ("acme", KEY.id)
    assert found.by_key(OTHER.text).id == "globex"


@pytest.mark.parametrize(
    "presented",
    [
        None,
        "",
        "rg-",
        "sk-something",
        KEY.id,
        KEY.text[:-1],
        KEY.text + "x",
        KEY.text.upper(),
        " " + KEY.text,
        "rg-é-é",
    ],
    ids=["none", "empty", "no more", "other", "id alone", "cut", "longer", "capitals", "space", "accents"],
)
def test_anything_else_opens_nothing(presented):
    with pytest.raises(UnknownKey):
        directory().by_key(presented)


def test_a_well_formed_key_without_a_tenant_opens_nothing():
    with pytest.raises(UnknownKey):
        directory().by_key(new_key(PEPPER).text)


def test_a_forged_secret_with_a_known_id_opens_nothing():
    stranger = new_key(pepper(b"other"))
    settings = Settings(
        tenants=(TenantSettings(id="acme", keys=(ApiKeySettings(id=stranger.id, hash=KEY.hash),)),),
    )
    with pytest.raises(UnknownKey):
        register_from_settings(settings, PEPPER).by_key(stranger.text)


def test_a_key_works_on_its_last_day_and_not_on_the_next():
    assert directory(now=NEW_YEAR + DAY / 2 - 1).by_key(KEY.text).id == "acme"
    with pytest.raises(UnknownKey):
        directory(now=NEW_YEAR + DAY / 2).by_key(KEY.text)


def test_a_tenant_has_its_plan():
    plan = directory().by_key(KEY.text).plan
    assert (plan.name, [(limit.name, limit.amount) for limit in plan.limits]) == (
        "p",
        [("requests/minute", 60), ("concurrency", 3)],
    )
    assert directory().by_key(OTHER.text).plan == Plan()


def test_isolation_groups_cannot_be_taken_for_tenants():
    groups = {
        directory().by_key(KEY.text).group,
        directory(id="x", isolation=IsolationSettings(mode="group", group="acme")).by_key(KEY.text).group,
        directory(isolation=IsolationSettings(mode="shared")).by_key(KEY.text).group,
    }
    assert groups == {"tenant:acme", "group:acme", ""}


def test_access_to_models_is_by_pattern_and_deny_wins():
    plan = ModelAccess(allow=("llama-*", "gpt"), deny=("*-70b",))
    assert [plan.allows(m) for m in ("llama-8b", "llama-70b", "gpt", "gpt-4")] == [True, False, True, False]


def test_an_open_directory_lets_every_client_in_as_one_tenant():
    assert OpenDirectory().by_key(None).id == OpenDirectory().by_key("anything").id == "default"
