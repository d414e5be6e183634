"""Pools that follow the gateways' queue, to zero and from it; and the gateway as Envoy's endpoint picker."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import promql_parser as promql
import pytest
import yaml

from gateway.runtime.server import serving
from gateway.settings.sources import LoadedSettings
from helm.tests.rendering import Objects, gateway, one, render
from helm.tests.test_chart_settings import settings_of
from tests.house.generated import metrics

PROMETHEUS = {"address": "http://prometheus.monitoring:9090"}


def scaled(scaling: dict[str, Any], **more: Any) -> Objects:
    # A HorizontalPodAutoscaler selects models by what may be the value of a label.
    lora = [{"name": "sql+" if scaling.get("kind") != "hpa" else "sql.1", "path": "/a"}]
    pool = {"name": "a", "model": {"name": "llama-3.1", "path": "o/m"}, "lora": lora, **more}
    pool["autoscaling"] = {"enabled": True, "prometheus": PROMETHEUS, **scaling}
    return render({"workers": {"embedded": {"replicas": 0}, "pools": [pool]}, "redis": {"mode": "embedded"}})


def series(objects: Objects) -> list[tuple[str, str]]:
    """The metrics that the autoscaler is told to read, each with a pattern of the models that it selects."""
    found = []
    for o in objects:
        if o["kind"] == "ScaledObject":
            query = o["spec"]["triggers"][0]["metadata"]["query"]
            promql.parse(query)
            for name, matchers in re.findall(r"(radixgate_\w+){([^}]*)}", query):
                (models,) = re.findall(r'model=~"([^"]*)"', matchers)
                found.append((name, models.replace("\\\\", "\\")))
        if o["kind"] == "HorizontalPodAutoscaler":
            for each in o["spec"]["metrics"]:
                metric = each["external"]["metric"]
                (chosen,) = metric["selector"]["matchExpressions"]
                assert (chosen["key"], chosen["operator"]) == ("model", "In")
                found.append((metric["name"], "|".join(chosen["values"])))
    return found


@pytest.mark.parametrize("kind", ["keda", "hpa"])
async def test_what_a_pool_follows_exists_without_workers_and_requests(kind: str, tmp_path: Path) -> None:
    objects = scaled({"kind": kind})
    # One number, of all that wait and run: of several metrics an autoscaler takes the largest, not the sum.
    ((name, chosen),) = series(objects)
    assert name in {f"radixgate_{name.removeprefix('radixgate_')}" for name, *_ in metrics()}

    here = ["listen.host=127.0.0.1", "listen.port=0", "admin.host=127.0.0.1", "admin.port=0"]
    # No cluster is asked: the pool has no engine.
    settings = settings_of(
        objects, tmp_path, *here, f"state_directory={tmp_path}/state", "discovery=[{kind: redis}]"
    )
    async with (
        serving(LoadedSettings(settings=settings, sources={})) as running,
        aiohttp.ClientSession() as http,
    ):
        async with http.get(f"{running.admin_url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        async with http.get(f"{running.admin_url}/health/ready") as answer:
            assert answer.status == 200, "a gateway without workers has to get the first request"
    values = [
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(f"{name}{{") and re.fullmatch(chosen, re.findall(r'model="([^"]*)"', line)[0])
    ]
    assert values == [0.0, 0.0], "of the model and of its adapter"


def test_a_pool_that_may_be_empty_is_known_and_its_requests_wait(tmp_path: Path) -> None:
    settings = settings_of(scaled({"firstWorkerSeconds": 900}), tmp_path)
    assert {m.name: m.first_worker_seconds_max for m in settings.models} == {"llama-3.1": 900, "sql+": 900}
    assert settings_of(scaled({"minReplicas": 1}), tmp_path).models == ()
    known = {"name": "llama-3.1", "block_size": 32}
    pool = {"name": "a", "model": {"name": "llama-3.1", "path": "o/m"}}
    pool["autoscaling"] = {"enabled": True, "prometheus": PROMETHEUS}  # type: ignore[assignment]
    objects = render({"workers": {"pools": [pool]}, "models": [known]})
    (model,) = [*yaml_models(objects)]
    assert model == {**known, "first_worker_seconds_max": 1800}


def test_an_adapter_of_an_empty_pool_has_the_settings_of_the_pools_model() -> None:
    known = {
        "name": "llama-3.1",
        "block_size": 32,
        "tokenizer": "worker",
        "prices": {"input": 1, "output": 2},
    }
    names = {"aliases": ["llama"], "fallbacks": ["small"]}
    adapters = [{"name": "sql", "path": "/a"}, {"name": "chat", "path": "/b"}]
    pool = {"name": "a", "model": {"name": "llama-3.1", "path": "o/m"}, "lora": adapters}
    pool["autoscaling"] = {"enabled": True, "prometheus": PROMETHEUS}
    own = {"name": "chat", "tokenizer": "text"}
    models = yaml_models(render({"workers": {"pools": [pool]}, "models": [{**known, **names}, own]}))
    wait = {"first_worker_seconds_max": 1800}
    assert sorted(models, key=lambda model: str(model["name"])) == [
        {**own, **wait},
        {**known, **names, **wait},
        {**known, **wait, "name": "sql"},
    ]


def yaml_models(objects: Objects) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])["models"]
    return found


def test_an_autoscaler_scales_the_owner_of_the_pods_which_has_no_number_of_its_own() -> None:
    objects = scaled({})
    scaler, owner = one(objects, "ScaledObject", "-pool-a")["spec"], one(objects, "StatefulSet", "-pool-a")
    assert scaler["scaleTargetRef"] == {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
    }
    assert "replicas" not in owner["spec"]
    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"]) == (0, 4)
    objects = scaled({"kind": "hpa", "minReplicas": 1}, nodes=2, tensorParallel=2)
    scaler, owner = (
        one(objects, "HorizontalPodAutoscaler", "-pool-a")["spec"],
        one(objects, "LeaderWorkerSet", "-pool-a"),
    )
    assert scaler["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    assert scaler["minReplicas"] == 1
    assert "replicas" not in owner["spec"]


# ---- The endpoint picker


ENVOY = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy-gateway-system"}}}]
PICKER: dict[str, Any] = {
    "gateway": {
        "endpointPicker": {"enabled": True, "inferencePool": {"enabled": True}},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
    },
    "networkPolicy": {"enabled": True, "envoyFrom": ENVOY},
}


async def test_an_inference_pool_names_the_port_at_which_the_gateway_answers_envoy(tmp_path: Path) -> None:
    objects = render({**PICKER, "redis": {"mode": "embedded"}})
    pool = one(objects, "InferencePool")["spec"]
    reference = pool["endpointPickerRef"]
    service = one(objects, "Service")
    assert reference["name"] == service["metadata"]["name"]
    (port,) = [p for p in service["spec"]["ports"] if p["port"] == reference["port"]["number"]]
    assert port["appProtocol"] == "kubernetes.io/h2c"
    container = {p["name"]: p["containerPort"] for p in gateway(objects)["ports"]}
    settings = settings_of(objects, tmp_path)
    assert settings.listen.endpoint_picker is not None
    assert settings.listen.endpoint_picker.port == container[port["targetPort"]]

    # The pool's pods are the workers, at the port at which they serve.
    labels = one(objects, "StatefulSet", "-worker")["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert pool["targetPorts"] == [{"number": 30000}]
    gateways = one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert not pool["selector"]["matchLabels"].items() <= gateways.items()
    # Envoy names pods by their addresses, and so does the gateway then.
    assert settings.workers == ()
    assert [(each.name, each.worker_kind) for each in settings.discovery] == [
        ("release-radixgate-worker", "embedded")
    ]


def test_envoy_alone_reaches_the_picker_and_workers_besides_the_gateways() -> None:
    objects = render(PICKER)
    rules = one(objects, "NetworkPolicy")["spec"]["ingress"]
    assert [rule["from"] for rule in rules if rule["ports"][0]["port"] == 9002] == [ENVOY]
    rules = one(objects, "NetworkPolicy", "-worker")["spec"]["ingress"]
    assert {"ports": [{"port": 30000, "protocol": "TCP"}], "from": ENVOY} in rules


def test_requests_for_models_go_to_the_pool_and_the_rest_to_the_gateway() -> None:
    first, rest = one(render(PICKER), "HTTPRoute")["spec"]["rules"]
    assert first["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "release-radixgate"}
    ]
    assert {match["method"] for match in first["matches"]} == {"POST"}
    assert "/v1/chat/completions" in [match["path"]["value"] for match in first["matches"]]
    assert rest["backendRefs"] == [{"name": "release-radixgate", "port": 80}]


def test_the_picker_may_have_a_certificate() -> None:
    values = {"gateway": {"endpointPicker": {"enabled": True, "tls": {"existingSecret": "picker"}}}}
    objects = render(values)
    volumes = one(objects, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "tls-picker", "secret": {"secretName": "picker", "defaultMode": 0o440}} in volumes
    (port,) = [p for p in one(objects, "Service")["spec"]["ports"] if p["name"] == "picker"]
    assert port["appProtocol"] == "https"
