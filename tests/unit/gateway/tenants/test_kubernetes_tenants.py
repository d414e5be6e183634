"""Reading a ConfigMap or Secret with tenants or a key: it is taken whole, or refused with a reason."""

import base64

import pytest

from gateway.kubernetes.objects import ConfigMap, ObjectIdentity, StoredSecret
from gateway.tenants.keys import HASH_PREFIX, key_digest, new_key
from gateway.tenants.kubernetes_tenants import ObjectProblem, read_key, read_tenants

PEPPER = b"pepper"
KEY = new_key(PEPPER)


def secret(name="acme-app", **texts):
    data = {entry: base64.b64encode(text.encode()).decode() for entry, text in texts.items()}
    return StoredSecret(ObjectIdentity(name=name), data)


def test_a_config_map_has_lists_as_in_the_settings():
    content = read_tenants(
        ConfigMap(
            data={
                "organisations": "[{id: big, concurrency: 8}]",
                "plans": "- {name: gold, limits: [{requests: 60, per: minute}]}",
                "tenants": f"- {{id: acme, plan: gold, keys: [{{id: {KEY.id}, hash: '{KEY.hash}'}}]}}\n- {{id: b}}",
            }
        )
    )
    assert content.names() == {
        "organisations": {"big"},
        "plans": {"gold"},
        "tenants": {"acme", "b"},
        "keys": {KEY.id},
    }
    assert read_tenants(ConfigMap(data=None)).names()["tenants"] == set()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"tenant": "x"}, "the entry tenant is none of organisations, plans, tenants"),
        ({"tenants": "[{id: a}, {id: a}]"}, "two of its tenants have the same name"),
        ({"tenants": "{id: a}"}, "$.tenants: expected"),
        ({"tenants": "[{id: a, planet: x}]"}, "$.tenants[0].planet: unknown setting (did you mean plan?)"),
        ({"plans": "[{name: a, concurrency: -1}]"}, "$.plans[0].concurrency"),
        ({"plans": "[{name: a"}, "plans: not valid YAML"),
        ({"tenants": "[{id: '${env:RADIXGATE_ADMIN_TOKEN}'}]"}, "$.tenants[0].id"),
    ],
)
def test_a_config_map_that_is_wrong_is_refused_whole(data, why):
    with pytest.raises(ObjectProblem) as refused:
        read_tenants(ConfigMap(data={"plans": "[{name: right}]", **data}))
    assert str(refused.value).startswith(why)
    assert "secret" not in str(refused.value)


def test_a_secret_has_the_key_itself_and_perhaps_more_of_its_settings():
    (entry,) = read_key(secret(tenant="acme", key=KEY.text + "\n", settings="{concurrency: 3}"), PEPPER).keys
    tenant, key = entry
    assert (tenant, key.id, key.hash, key.concurrency) == ("acme", KEY.id, KEY.hash, 3)
    foreign = "sk-" + "x" * 40
    ((_, key),) = read_key(secret(tenant="acme", key=foreign), PEPPER).keys
    assert (key.id, key.hash) == ("acme-app", HASH_PREFIX + key_digest(foreign, PEPPER).hex())


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"key": KEY.text}, "the entry tenant is missing"),
        ({"tenant": "acme"}, "the entry key is missing"),
        (
            {"tenant": "acme", "key": "sk-short"},
            "key: it is no key of `radixgate keys new`, and shorter than 32",
        ),
        ({"tenant": "acme", "key": " \n"}, "key: it is empty"),
        ({"tenant": "a b", "key": KEY.text}, "$.tenants[0].id"),
        ({"tenant": "acme", "key": KEY.text, "settings": "{limit: 1}"}, "settings.limit: unknown setting"),
        (
            {"tenant": "acme", "key": KEY.text, "settings": "{hash: x}"},
            "settings: expected settings of a key",
        ),
        (
            {"tenant": "acme", "key": KEY.text, "api-key": "x"},
            "the entry api-key is none of tenant, key, settings",
        ),
    ],
)
def test_a_secret_that_is_wrong_is_refused_without_its_key(texts, why):
    with pytest.raises(ObjectProblem) as refused:
        read_key(secret(**texts), PEPPER)
    assert str(refused.value).startswith(why)
    assert KEY.text not in str(refused.value)
    assert "sk-short" not in str(refused.value)


def test_a_secret_that_is_no_text_is_refused():
    with pytest.raises(ObjectProblem, match="tenant: it is not text"):
        read_key(StoredSecret(ObjectIdentity(name="a"), {"tenant": "!", "key": "!"}), PEPPER)
    assert "KEY" not in repr(StoredSecret(ObjectIdentity(name="a"), {"key": "KEY"}))
