"""What every TenantDirectory promises. (What single kinds of keys do is in tests/unit/gateway/test_keys.py.)"""

import pytest

from gateway.settings import ApiKey, Settings, TenantSettings
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.yaml_directory import YamlDirectory

PEPPER = pepper(b"secret")
KEYS = {tenant: new_key(PEPPER) for tenant in ("acme", "globex")}


@pytest.fixture(params=["yaml"])
def directory(request):
    tenants = tuple(
        TenantSettings(id=tenant, keys=(ApiKey(id=key.id, hash=key.hash),)) for tenant, key in KEYS.items()
    )
    return YamlDirectory(Settings(tenants=tenants), PEPPER)


@pytest.mark.parametrize("tenant", KEYS)
def test_a_key_names_its_tenant(directory, tenant):
    found = directory.by_key(KEYS[tenant].text)
    assert (found.id, found.organisation, found.key_id) == (tenant, tenant, KEYS[tenant].id)


@pytest.mark.parametrize(
    "presented", [None, "", "rg-x", new_key(PEPPER).text, KEYS["acme"].hash, "x" * 10_000, "rg-\udcff"]
)
def test_everything_else_is_unknown_in_the_same_way(directory, presented):
    with pytest.raises(UnknownKey) as unknown:
        directory.by_key(presented)
    assert str(unknown.value) == ""


def test_the_same_key_gives_the_same_tenant(directory):
    assert directory.by_key(KEYS["acme"].text) == directory.by_key(KEYS["acme"].text)


def test_tenants_are_apart_unless_they_say_otherwise(directory):
    assert directory.by_key(KEYS["acme"].text).group != directory.by_key(KEYS["globex"].text).group
