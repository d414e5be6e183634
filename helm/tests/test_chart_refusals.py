"""What the chart refuses, and that its schema knows what the programs know."""

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from gateway.cli.commands.worker import worker as worker_command
from helm.tests.rendering import CHART, SCHEMA, cluster, helm, of_the_release

HOOK = {"id": "a", "url": "https://a.example.com", "secret": {"existingSecret": "hook"}}
OWN_SECRET = {"deploymentSecret": {"existingSecret": "a"}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"redis": {"mode": "embedded"}, "gateway": {"replicas": 2}},
            "redis.mode embedded keeps quotas inside",
        ),
        (
            {"redis": {"mode": "embedded"}, "gateway": {"autoscaling": {"enabled": True}}},
            "redis.mode embedded keeps quotas inside",
        ),
        ({"gateway": {"replicas": 2}}, "needs your own deployment secret"),
        ({"redis": {"mode": "external"}}, "needs redis.external.url"),
        (
            {"redis": {"mode": "external", "external": {"url": "redis://a:6379", "existingSecret": "b"}}},
            "choose one of redis.external.url",
        ),
        (
            {"redis": {"mode": "external", "external": {"url": "redis://:password@a:6379"}}},
            "would appear in a ConfigMap",
        ),
        ({"workers": {"embedded": {"replicas": 0}}}, "there are no workers"),
        (
            {"workers": {"external": [{"id": "worker-0", "kind": "vllm", "url": "http://a:8000"}]}},
            "two workers have the id worker-0",
        ),
        (
            {"workers": {"embedded": {"model": {"source": "claim"}}}},
            "needs workers.embedded.model.existingClaim",
        ),
        (
            {"workers": {"embedded": {"model": {"source": "hostPath"}}}},
            "needs workers.embedded.model.hostPath",
        ),
        (
            {"demoTenant": {"enabled": False}, "database": {"upgrade": "never"}},
            "there are no tenants",
        ),
        (
            OWN_SECRET | {"gateway": {"replicas": 2}, "database": {"mode": "sqlite"}},
            "more than one gateway needs PostgreSQL",
        ),
        ({"gateway": {"persistence": {"enabled": False}}}, "SQLite is lost with the pod"),
        (
            OWN_SECRET | {"gateway": {"replicas": 2, "persistence": {"existingClaim": "mine"}}},
            "each of several gateways needs its own",
        ),
        (
            {
                "database": {"existingSecret": "a"},
                "redis": {"mode": "embedded"},
                "gateway": {"persistence": {"enabled": False}},
            },
            "redis.mode embedded keeps its file on the gateway's claim",
        ),
        ({"database": {"mode": "external"}}, "needs database.existingSecret"),
        ({"database": {"mode": "sqlite", "existingSecret": "a"}}, "but database.mode is sqlite"),
        ({"database": {"upgrade": "job"}}, "needs database.mode external"),
        ({"gateway": {"httpRoute": {"enabled": True}}}, "needs gateway.httpRoute.parentRefs"),
        (
            {"gateway": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}},
            "this cluster has no HTTPRoute",
        ),
        (
            {"config": {"admin": {"tls": {"certificate": "/c", "key": "/k"}}}},
            "which no volume has; name a Secret in gateway.tls.admin.existingSecret",
        ),
        (
            {
                "gateway": {"tls": {"admin": {"existingSecret": "a"}}},
                "config": {"admin": {"tls": {"client_ca": "/ca"}}},
            },
            "would fail every probe",
        ),
        ({"config": {"discovery": []}}, "set workers.discovery"),
        ({"config": {"tenant_objects": {}}}, "set tenantObjects"),
        (
            {"gateway": {"endpointPicker": {"inferencePool": {"enabled": True}}}},
            "set gateway.endpointPicker.enabled",
        ),
        (
            {"gateway": {"endpointPicker": {"enabled": True, "inferencePool": {"enabled": True}}}},
            "this cluster has no InferencePool",
        ),
        (
            {"gateway": {"endpointPicker": {"enabled": True}}, "networkPolicy": {"enabled": True}},
            "name Envoy's pods in networkPolicy.envoyFrom",
        ),
        (
            {"config": {"listen": {"endpoint_picker": {"port": 1}}}},
            "set gateway.endpointPicker",
        ),
        (
            {"gateway": {"endpointPicker": {"enabled": True}}, "serviceAccount": {"create": False}},
            "the default service account may not",
        ),
        ({"tenants": [{"id": "a"}], "tenantsFrom": {"existingSecret": "b"}}, "choose one of tenants"),
        ({"config": {"workers": []}}, "the chart writes config.workers itself"),
        ({"config": {"deployment_secret": "x"}}, "the chart writes config.deployment_secret itself"),
        ({"config": {"redis": {"url": "redis://a"}}}, "the chart writes config.redis.url itself"),
        ({"config": {"admin": {"token": "x"}}}, "config.admin.token would appear in a ConfigMap"),
        (
            {"config": {"database": {"url": "postgresql://u:p@h/x"}}},
            "config.database.url would appear in a ConfigMap",
        ),
        ({"config": {"authentication": {"tokens": [{"issuer": "x"}]}}}, "set tokenIssuers"),
        ({"config": {"admin": {"issuers": [{"issuer": "x"}]}}}, "set operatorIssuers"),
        ({"config": {"webhooks": []}}, "the chart writes config.webhooks itself"),
        ({"config": {"usage": {"rows_days": 1}}}, "the chart writes config.usage itself"),
        ({"config": {"index": {"memory_bytes_max": 2**31}}}, "index.memory_bytes_max twice"),
        ({"gateway": {"image": {"tag": "latest"}}}, "needs a tag that names a version"),
        (
            OWN_SECRET | {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}},
            "larger than maxReplicas",
        ),
        (
            OWN_SECRET | {"gateway": {"autoscaling": {"enabled": True, "cpuPercent": 0}}},
            "no metric to scale by",
        ),
        (
            OWN_SECRET
            | {"gateway": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
            "gateway.resources.requests.cpu, which is not set",
        ),
        ({"gateway": {"ingress": {"enabled": True}}}, "needs gateway.ingress.hosts"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "this cluster has no ServiceMonitor"),
        ({"metrics": {"prometheusRule": {"enabled": True}}}, "this cluster has no PrometheusRule"),
        ({"fullnameOverride": "Gate"}, "the Services would be named Gate"),
        ({"fullnameOverride": "9gate"}, "the Services would be named 9gate"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert "radixgate: " in done.stderr
    assert sentence in done.stderr


HUB = {"name": "m", "path": "a/b"}


@pytest.mark.parametrize(
    ("pools", "sentence"),
    [
        ([{"name": "a", "model": HUB}, {"name": "a", "model": HUB}], "two pools have the name a"),
        ([{"name": "a", "model": {"path": "a/b"}}], "the pool a has no model.name"),
        ([{"name": "a", "model": {"name": "m"}}], "needs model.path"),
        ([{"name": "a", "model": {"name": "m", "source": "claim"}}], "needs model.existingClaim"),
        ([{"name": "a", "model": {"name": "m", "source": "hostPath"}}], "needs model.hostPath"),
        ([{"name": "a", "model": {"name": "m", "source": "image"}}], "needs model.image"),
        ([{"name": "a", "model": HUB, "tensorParallel": 3, "nodes": 2}], "2 nodes cannot share evenly"),
        (
            [{"name": "a", "model": HUB, "tensorParallel": 4, "nodes": 2}],
            "this cluster has no LeaderWorkerSet",
        ),
        (
            [{"name": "a", "model": HUB, "lora": [{"name": "l", "path": "x"}, {"name": "l", "path": "y"}]}],
            "two models by the name l",
        ),
        ([{"name": "a", "model": HUB, "lora": [{"name": "m", "path": "x"}]}], "two models by the name m"),
        ([{"name": "a", "model": HUB, "extraArgs": ["--api-key=x"]}], "name it in workers.apiKey"),
        (
            [{"name": "a", "model": HUB, "role": "decode"}],
            "a pool with role decode and none with role prefill",
        ),
        ([{"name": "a", "model": HUB, "image": {"tag": "latest"}}], "needs a tag that names a version"),
        ([{"name": "a", "model": HUB, "autoscaling": {"enabled": True}}], "autoscaling.prometheus.address"),
        (
            [{"name": "a", "model": HUB, "autoscaling": {"enabled": True, "minReplicas": 5}}],
            "minReplicas is larger than maxReplicas",
        ),
        (
            [
                {
                    "name": "a",
                    "model": HUB | {"name": "org/m"},
                    "autoscaling": {"enabled": True, "kind": "hpa", "minReplicas": 1},
                }
            ],
            "cannot select the model org/m",
        ),
        (
            [
                {
                    "name": "a",
                    "model": HUB,
                    "autoscaling": {"enabled": True, "prometheus": {"address": "http://p"}},
                }
            ],
            "this cluster has no ScaledObject",
        ),
    ],
)
def test_pools_that_cannot_run_are_refused_with_a_sentence(
    pools: list[dict[str, Any]], sentence: str
) -> None:
    done = helm({"workers": {"pools": pools}})
    assert done.returncode != 0
    assert "radixgate: " in done.stderr
    assert sentence in done.stderr


def test_an_image_is_no_volume_before_kubernetes_has_them() -> None:
    model = {"name": "m", "source": "image", "image": "registry.example.com/llama:1"}
    values = {"workers": {"pools": [{"name": "a", "model": model}]}}
    assert "which needs Kubernetes 1.33" in helm(values, "--kube-version", "1.32.0").stderr
    assert helm(values, "--kube-version", "1.33.0").returncode == 0


BEFORE = "/api/v1/namespaces/llm/configmaps/release-radixgate"


def test_an_upgrade_does_not_begin_with_an_empty_database_unasked() -> None:
    values = OWN_SECRET | {"gateway": {"replicas": 2}}
    metadata = of_the_release("release-radixgate", **{"radixgate/database": "sqlite"})
    before = {BEFORE: {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}}
    with cluster({}, before) as server:
        refused = helm(values, *server)
        moved = helm(values | {"database": {"mode": "bundled"}}, *server)
    assert refused.returncode != 0
    assert "keeps tenants, keys and usage in a database of mode sqlite" in refused.stderr
    assert "`radixgate database backup`" in refused.stderr
    assert moved.returncode == 0, moved.stderr


def test_claims_of_another_size_are_refused_with_what_to_do() -> None:
    template = {"metadata": {"name": "state"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    before = {
        "/apis/apps/v1/namespaces/llm/statefulsets/release-radixgate": {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "release-radixgate", "namespace": "llm"},
            "spec": {"volumeClaimTemplates": [template]},
        }
    }
    with cluster({}, before) as server:
        done = helm({}, *server)
    assert done.returncode != 0
    assert "kubectl delete statefulset release-radixgate --cascade=orphan" in done.stderr


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"replicas": 2}, "replicas"),
        ({"gateway": {"replica": 2}}, "replica"),
        ({"gateway": {"replicas": "two"}}, "replicas"),
        ({"redis": {"mode": "sentinel"}}, "mode"),
        ({"workers": {"external": [{"id": "a", "kind": "vllm", "url": "http://k:v@a"}]}}, "url"),
        ({"workers": {"embedded": {"options": {"kv_tokens": 1}}}}, "kv_tokens"),
        ({"gateway": {"image": {"digest": "sha256:beef"}}}, "digest"),
        ({"workers": {"pools": [{"name": "a"}]}}, "model"),
        ({"workers": {"pools": [{"name": "A", "model": HUB}]}}, "name"),
        ({"workers": {"pools": [{"name": "a", "model": HUB, "engine": "tgi"}]}}, "engine"),
        ({"workers": {"pools": [{"name": "a", "model": HUB, "gpus": 2}]}}, "gpus"),
        (
            {"workers": {"pools": [{"name": "a", "model": HUB, "lora": [{"name": "a=b", "path": "c"}]}]}},
            "lora",
        ),
        ({"workers": {"discovery": [{"kind": "kubernetes"}]}}, "discovery"),
        ({"workers": {"discovery": [{"kind": "kubernetes", "name": "a", "selector": "b=c"}]}}, "discovery"),
        ({"gateway": {"endpointPicker": {"inferencePool": {"targetPorts": []}}}}, "targetPorts"),
    ],
)
def test_misspelt_values_are_refused_by_the_schema(values: dict[str, Any], path: str) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert "schema" in done.stderr
    assert path in done.stderr


PROGRAM_DEFAULTS = {
    *(".workers.embedded.options", ".workers.embedded.model.tiny"),
    *(".workers.poolDefaults.resources", ".workers.poolDefaults.image"),
}
"""What is left out there, the program or another value chooses."""

GIVEN_BY_THE_CHART = {
    *("model", "host", "port", "served-model-name", "kv-events", "kv-events-port", "api-key"),
    # A Service finds the chart's workers.
    *("register", "register-id", "register-url", "register-prefix"),
    # Of engines that are launched; the chart's workers are the embedded one.
    *("engine", "context", "python", "load-feed", "start-seconds", "silent-seconds", "drain-seconds"),
}

OPTIONAL = {"global", "existingClaim", "claims"}


def test_every_value_has_a_default_and_a_place_in_the_schema() -> None:
    def compare(values: Any, schema: dict[str, Any], path: str) -> None:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(values, dict) and schema.get("additionalProperties") is False:
            assert set(values) <= set(schema["properties"]), path
            if path not in PROGRAM_DEFAULTS:
                pool = {"name"} if path == ".workers.poolDefaults" else set()
                assert set(schema["properties"]) - set(values) <= OPTIONAL | pool, path
            for name, inner in values.items():
                compare(inner, schema["properties"][name], f"{path}.{name}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), SCHEMA, "")


def test_worker_options_are_those_of_the_program() -> None:
    embedded = SCHEMA["properties"]["workers"]["properties"]["embedded"]["properties"]
    known = {name.replace("_", "-") for name in inspect.signature(worker_command).parameters}
    assert set(embedded["options"]["properties"]) == known - GIVEN_BY_THE_CHART
    shown = subprocess.run(
        [sys.executable, "-m", "workers.engine.tiny_checkpoint", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert set(embedded["model"]["properties"]["tiny"]["properties"]) == set(
        re.findall(r"^  --([a-z-]+)", shown, re.MULTILINE)
    )
