"""Tenants in ConfigMaps and Secrets of a cluster: in force, changed, refused, deleted, found by a restart."""

import asyncio
import base64
import logging

import pytest

from gateway.kubernetes import watched_objects
from gateway.kubernetes.api import KubernetesApi as Client
from gateway.settings.tenants import PlanSettings, TenantObjectsSettings, TenantSettings
from gateway.tenants.directory import UnknownKey
from gateway.tenants.keys import new_key
from gateway.tenants.kubernetes_directory import KubernetesDirectory
from gateway.tenants.tenant_register import TenantRegister
from tests.fakes.kubernetes_api import KubernetesApi

PEPPER = b"pepper"
KEY, OTHER = new_key(PEPPER), new_key(PEPPER)


@pytest.fixture
async def api(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS_MAX", 0.05)
    async with KubernetesApi(tmp_path) as server:
        yield server


@pytest.fixture
async def begin(api):
    """Return a function that starts a gateway's part, and gives the directory and the part."""
    tasks = []

    def start(file=None, **settings):
        file = file if file is not None else TenantRegister(PEPPER)
        inner = TenantRegister(PEPPER)
        inner.put_all(file)
        objects = KubernetesDirectory(
            TenantObjectsSettings(**settings), Client(api.url, api.account), inner, file, PEPPER
        )
        tasks.append(asyncio.ensure_future(objects.run()))
        return inner, objects

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def true(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def put_tenants(api, name="acme", **data):
    api.put_object("configmaps", name, {"metadata": {"labels": {"radixgate/tenants": "true"}}, "data": data})


def put_key(api, name="acme-app", **texts):
    data = {entry: base64.b64encode(text.encode()).decode() for entry, text in texts.items()}
    api.put_object("secrets", name, {"metadata": {"labels": {"radixgate/key": "true"}}, "data": data})


def knows(directory, text):
    try:
        return directory.by_key(text).id
    except UnknownKey:
        return None


def events(api, name):
    return [
        (content["type"], content["reason"], content["message"])
        for plural, _, content in api.changes
        if plural == "events" and content["involvedObject"]["name"] == name
    ]


TENANT = f"[{{id: acme, plan: gold, keys: [{{id: {KEY.id}, hash: '{KEY.hash}'}}]}}]"
PLANS = "[{name: gold, concurrency: 2}]"


async def test_tenants_and_keys_come_and_go_with_their_objects(api, begin):
    put_tenants(api, plans=PLANS, tenants=TENANT)
    directory, objects = begin()
    await true(lambda: objects.loaded)
    assert directory.by_key(KEY.text).plan.name == "gold"
    put_key(api, tenant="acme", key=OTHER.text)
    await true(lambda: knows(directory, OTHER.text) == "acme")
    put_tenants(api, plans="[{name: gold, concurrency: 9}]", tenants=TENANT)
    await true(lambda: directory.by_key(KEY.text).plan.limits[0].amount == 9)
    api.delete("acme-app", "secrets")
    await true(lambda: knows(directory, OTHER.text) is None)
    assert knows(directory, KEY.text) == "acme"
    api.delete("acme", "configmaps")
    await true(lambda: knows(directory, KEY.text) is None)
    assert events(api, "acme") == [("Normal", "InForce", "in force")] * 2
    assert events(api, "acme-app") == [("Normal", "InForce", "in force")]
    assert api.asked == {"configmaps", "secrets"}


async def test_what_a_restart_misses_counts_all_the_same(api, begin):
    put_tenants(api, tenants="[{id: acme}, {id: other}]")
    put_key(api, "one", tenant="acme", key=KEY.text)
    put_key(api, "two", tenant="other", key=OTHER.text)
    first, objects = begin()
    await true(lambda: knows(first, OTHER.text))
    api.delete("two", "secrets")
    second, objects = begin()
    await true(lambda: objects.loaded)
    assert (knows(second, KEY.text), knows(second, OTHER.text)) == ("acme", None)


async def test_a_wrong_object_is_refused_by_an_event_and_its_last_version_stays(api, begin, caplog):
    put_tenants(api, tenants="[{id: acme}]")
    put_tenants(api, "broken", tenants="[{id: b, planet: x}]")
    put_key(api, tenant="acme", key=KEY.text)
    directory, objects = begin()
    await true(lambda: objects.counts() == {"in force": 2, "refused": 1})
    why = "$.tenants[0].planet: unknown setting (did you mean plan?)"
    await true(lambda: events(api, "broken") == [("Warning", "Refused", why)])
    put_key(api, tenant="acme", key="too short")
    await true(lambda: len(events(api, "acme-app")) == 2)
    kind, reason, message = events(api, "acme-app")[-1]
    assert (kind, reason) == ("Warning", "Refused")
    assert message.endswith("; the version before stays in force while this gateway runs")
    assert knows(directory, KEY.text) == "acme"
    put_tenants(api, "broken", tenants="[{id: b}]")
    await true(lambda: objects.counts()["refused"] == 1)
    await true(lambda: events(api, "broken")[-1] == ("Normal", "InForce", "in force"))
    assert "ConfigMap broken is refused" in caplog.text
    assert "too short" not in caplog.text
    # After a restart there is no version before.
    later, objects = begin()
    await true(lambda: objects.loaded)
    assert knows(later, KEY.text) is None


async def test_a_name_of_the_settings_or_of_another_object_is_taken(api, begin):
    file = TenantRegister(PEPPER)
    file.put_plan(PlanSettings(name="gold"))
    file.put_tenant(TenantSettings(id="acme"))
    put_tenants(api, "a", tenants="[{id: acme}]")
    put_tenants(api, "b", tenants="[{id: new, plan: gold}]")
    put_tenants(api, "c", tenants="[{id: new}]")
    directory, objects = begin(file)
    await true(lambda: objects.loaded and objects.counts()["refused"] == 2)
    await true(lambda: events(api, "a") and events(api, "c"))
    assert "have tenants named acme already" in events(api, "a")[0][2]
    assert "have tenants named new already" in events(api, "c")[0][2]
    # The settings give the name up, and the object takes it.
    objects.reconfigure(TenantRegister(PEPPER))
    assert objects.counts()["refused"] == 1
    assert directory.names()["tenants"] == {"acme", "new"}
    api.delete("b", "configmaps")
    await true(lambda: objects.counts()["refused"] == 0)


async def test_a_reload_of_the_settings_keeps_the_tenants_of_objects(api, begin):
    put_tenants(api, tenants=TENANT, plans=PLANS)
    directory, objects = begin()
    await true(lambda: knows(directory, KEY.text))
    file = TenantRegister(PEPPER)
    file.put_tenant(TenantSettings(id="of-file"))
    objects.reconfigure(file)
    assert directory.names()["tenants"] == {"acme", "of-file"}


async def test_while_the_cluster_is_away_its_last_objects_stay(api, begin, caplog):
    caplog.set_level(logging.INFO)
    put_tenants(api, tenants=TENANT, plans=PLANS)
    directory, objects = begin()
    await true(lambda: objects.loaded and api.open_watches == 2)
    await api.stop()
    await true(lambda: objects.away)
    assert knows(directory, KEY.text) == "acme"
    await api.start()
    await true(lambda: not objects.away)
    api.delete("acme", "configmaps")
    await true(lambda: knows(directory, KEY.text) is None)


async def test_a_gateway_has_not_loaded_before_the_cluster_has_answered(api, begin):
    api.tokens.clear()
    _, objects = begin()
    await true(lambda: objects.away)
    assert not objects.loaded
    api.tokens.add("t0ken")
    await true(lambda: objects.loaded)


async def test_secrets_are_not_read_if_keys_are_not_wanted(api, begin):
    put_tenants(api, tenants=TENANT, plans=PLANS)
    directory, objects = begin(keys=False, namespace="tenants")
    await true(lambda: objects.loaded)
    assert api.asked == {"configmaps"}
    assert api.namespaces == {"tenants"}
    assert knows(directory, KEY.text) == "acme"


async def test_of_several_gateways_one_makes_each_event_and_without_the_right_nothing_is_lost(api, begin):
    put_tenants(api, tenants=TENANT, plans=PLANS)
    begin()
    begin()
    await true(lambda: len(events(api, "acme")) == 2)
    assert len(api.objects["events"]) == 1
    api.answers.append(403)
    third, objects = begin()
    await true(lambda: objects.loaded and not objects.away and knows(third, KEY.text))
