"""Workers that gateways find in the cluster, with the rights that the chart gives them, and at most these."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.discovery.configured_sources import build_sources
from gateway.discovery.kubernetes import KubernetesSource
from gateway.kubernetes.api import KubernetesApi as Client
from gateway.settings.tenants import TenantObjectsSettings
from gateway.settings.workers import DiscoverySettings
from gateway.tenants.kubernetes_directory import KubernetesDirectory
from gateway.tenants.tenant_register import TenantRegister
from helm.tests.rendering import SCHEMA, Objects, gateway, one, render, template
from helm.tests.test_chart_settings import settings_of
from tests.fakes.kubernetes_api import KubernetesApi, endpoint

GROUPS = {"pods": "", "endpointslices": "discovery.k8s.io", "inferencepools": "inference.networking.k8s.io"}
SOURCES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "service": ({"name": "vllm"}, {"endpointslices"}),
    "labels": ({"selector": "app=vllm"}, {"pods"}),
    "inference pool": ({"inference_pool": "chat", "worker_kind": "auto"}, {"pods", "inferencepools"}),
}


def with_sources(*sources: dict[str, Any], **values: Any) -> Objects:
    given = [{"kind": "kubernetes", **source} for source in sources]
    return render({"workers": {"embedded": {"replicas": 0}, "discovery": given}, **values})


def rights(objects: Objects, namespace: str = "llm") -> dict[str, set[str]]:
    """Verbs by group and plural."""
    found: dict[str, set[str]] = {}
    for o in objects:
        if o["kind"] == "Role" and o["metadata"]["namespace"] == namespace:
            for rule in o["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        found.setdefault(f"{group}/{resource}", set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize(("source", "watched"), SOURCES.values(), ids=SOURCES)
async def test_a_source_needs_the_rights_of_its_role_and_finds_workers(
    source: dict[str, Any], watched: set[str], tmp_path: Path
) -> None:
    objects = with_sources(source)
    assert rights(objects) == {f"{GROUPS[plural]}/{plural}": {"get", "list", "watch"} for plural in watched}
    (settings,) = settings_of(objects, tmp_path).discovery
    async with KubernetesApi(tmp_path) as api:
        api.put("a", [endpoint("10.0.0.1", "one", ready=True)])
        api.put_pod("one", "10.0.0.1", app="vllm")
        pool = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]}
        api.put_object("inferencepools", "chat", {"spec": pool})
        found = KubernetesSource(settings, api.url, api.account)
        assert [worker.url for worker in await found.find()] == ["http://10.0.0.1:8000"]
        assert api.asked == watched


def test_the_role_is_bound_to_the_account_of_the_gateways_alone() -> None:
    objects = with_sources({"name": "vllm"})
    binding, pod = one(objects, "RoleBinding"), template(objects)["spec"]
    assert binding["roleRef"]["name"] == one(objects, "Role")["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "llm"}
    ]
    assert pod["automountServiceAccountToken"] is True
    others = [
        o["spec"]["template"]["spec"] if o["kind"] == "StatefulSet" else o["spec"]
        for o in objects
        if o["kind"] in ("StatefulSet", "Pod") and o["metadata"]["name"] != "release-radixgate"
    ]
    assert others
    assert not any(other["automountServiceAccountToken"] for other in others)


def test_without_a_source_in_the_cluster_gateways_have_no_token_and_no_role() -> None:
    objects = render({"workers": {"discovery": [{"kind": "redis"}]}})
    assert template(objects)["spec"]["automountServiceAccountToken"] is False
    assert not [o for o in objects if o["kind"] in ("Role", "RoleBinding")]


def test_sources_in_other_namespaces_have_their_roles_there_and_operators_may_bring_their_own() -> None:
    sources = (
        {"name": "a"},
        {"selector": "b=c", "namespace": "models"},
        {"name": "d", "namespace": "models"},
    )
    objects = with_sources(*sources)
    assert set(rights(objects)) == {"discovery.k8s.io/endpointslices"}
    assert set(rights(objects, "models")) == {"discovery.k8s.io/endpointslices", "/pods"}
    objects = with_sources(*sources, rbac={"create": False})
    assert not [o for o in objects if o["kind"] in ("Role", "RoleBinding")]
    assert template(objects)["spec"]["automountServiceAccountToken"] is True


def test_keys_of_found_workers_come_from_secrets_and_sources_are_the_gateways(tmp_path: Path) -> None:
    objects = with_sources(
        {"name": "a", "apiKey": {"existingSecret": "gpu"}},
        {"selector": "b=c", "apiKey": {"existingSecret": "gpu", "key": "b"}, "port_name": "http"},
    )
    variables = {v["name"]: v.get("valueFrom", {}).get("secretKeyRef") for v in gateway(objects)["env"]}
    assert variables["RADIXGATE_DISCOVERY_KEY_0"] == {"name": "gpu", "key": "api-key"}
    assert variables["RADIXGATE_DISCOVERY_KEY_1"] == {"name": "gpu", "key": "b"}
    settings = settings_of(objects, tmp_path)
    assert all(each.api_key is not None for each in settings.discovery)
    names = [source.name for source in build_sources(settings.discovery, registry=None)]  # type: ignore[arg-type]
    assert names == ["service a", "pods with b=c"]


@pytest.mark.parametrize("keys", [True, False])
async def test_tenants_may_be_objects_with_the_rights_that_they_need(keys: bool, tmp_path: Path) -> None:
    objects = render({"tenantObjects": {"enabled": True, "namespace": "tenants", "keys": keys}})
    reading = {"get", "list", "watch"}
    secrets = {"/secrets": reading} if keys else {}
    assert rights(objects, "tenants") == {"/configmaps": reading, "/events": {"create"}, **secrets}
    assert not rights(objects)
    assert template(objects)["spec"]["automountServiceAccountToken"] is True
    settings = settings_of(objects, tmp_path)
    assert settings.tenant_objects == TenantObjectsSettings(namespace="tenants", keys=keys)
    assert settings.tenants == (), "the demo tenant would be a surprise beside real ones"

    file, inner = TenantRegister(b"pepper"), TenantRegister(b"pepper")
    data = {"tenants": "[{id: acme}]"}
    async with KubernetesApi(tmp_path) as api:
        api.put_object(
            "configmaps", "acme", {"metadata": {"labels": {"radixgate/tenants": ""}}, "data": data}
        )
        client = Client(api.url, api.account)
        following = KubernetesDirectory(settings.tenant_objects, client, inner, file, b"pepper")
        running = asyncio.ensure_future(following.run())
        for _ in range(3000):
            if api.objects.get("events"):
                break
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert api.namespaces == {"tenants"}
        asked = {*api.asked, *(plural for plural, *_ in api.changes)}
    assert {f"/{plural}" for plural in asked} == set(rights(objects, "tenants"))
    assert inner.names()["tenants"] == {"acme"}


def test_every_setting_of_a_source_may_be_given() -> None:
    known = SCHEMA["properties"]["workers"]["properties"]["discovery"]["items"]["properties"]
    assert set(known) == set(DiscoverySettings.__struct_fields__) - {"api_key"} | {"apiKey"}
