"""What operators add to the objects of the chart: variables, volumes, containers, annotations, labels."""

import re
from typing import Any

import pytest

from helm.tests.rendering import Objects, helm, one, render

EXTRAS: dict[str, Any] = {
    "annotations": {"example.com/owned": "yes"},
    "labels": {"example.com/team": "a"},
    "podAnnotations": {"example.com/scrape": "yes"},
    "podLabels": {"example.com/pod": "b"},
    "extraEnv": [{"name": "MORE", "value": "1"}],
    "extraEnvFrom": [{"secretRef": {"name": "more"}}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "extraInitContainers": [{"name": "before", "image": "registry.example.com/before:1"}],
    "extraContainers": [{"name": "beside", "image": "registry.example.com/beside:1"}],
    "extraPodSpec": {"hostAliases": [{"ip": "10.0.0.9", "hostnames": ["db"]}]},
}

POOL = {"name": "a", "model": {"name": "m", "path": "o/m"}, **EXTRAS}
OWN_SECRET = {"deploymentSecret": {"existingSecret": "a"}}
NODES = {"tensorParallel": 2, "nodes": 2}

COMPONENTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "gateway": ({"gateway": EXTRAS}, "StatefulSet", ""),
    "embedded workers": ({"workers": {"embedded": EXTRAS}}, "StatefulSet", "-worker"),
    "pool": ({"workers": {"pools": [POOL]}}, "StatefulSet", "-pool-a"),
    "pool over nodes": ({"workers": {"pools": [POOL | NODES]}}, "LeaderWorkerSet", "-pool-a"),
    "database": ({"database": {"mode": "bundled", "bundled": EXTRAS}}, "StatefulSet", "-postgres"),
    "valkey": ({"redis": {"bundled": EXTRAS}}, "StatefulSet", "-valkey"),
    "upgrade": ({"database": {"existingSecret": "a", "upgrade": "job", "job": EXTRAS}}, "Job", "-upgrade"),
    "test": ({"test": EXTRAS}, "Pod", "-test"),
}


def templates(owner: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of a workload, each with metadata and spec."""
    if owner["kind"] == "Pod":
        return [owner]
    if owner["kind"] == "LeaderWorkerSet":
        group = owner["spec"]["leaderWorkerTemplate"]
        return [group["leaderTemplate"], group["workerTemplate"]]
    return [owner["spec"]["template"]]


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_operator_adds_to_every_component_whatever_a_pod_can_have(component: str) -> None:
    values, kind, suffix = COMPONENTS[component]
    owner = one(render(values), kind, suffix)
    for part in ("annotations", "labels"):
        assert EXTRAS[part].items() <= owner["metadata"][part].items()
    for pod in templates(owner):
        assert EXTRAS["podAnnotations"].items() <= pod["metadata"]["annotations"].items()
        assert EXTRAS["podLabels"].items() <= pod["metadata"]["labels"].items()
        spec = pod["spec"]
        main = spec["containers"][0]
        assert EXTRAS["extraEnv"][0] in main["env"]
        assert main["envFrom"] == EXTRAS["extraEnvFrom"]
        assert EXTRAS["extraVolumeMounts"][0] in main["volumeMounts"]
        assert EXTRAS["extraVolumes"][0] in spec["volumes"]
        assert spec["initContainers"][-1] == EXTRAS["extraInitContainers"][0]
        assert spec["containers"][-1] == EXTRAS["extraContainers"][0]
        assert spec["hostAliases"] == EXTRAS["extraPodSpec"]["hostAliases"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_fields_of_a_pod_that_the_chart_writes_are_not_written_twice(component: str) -> None:
    def with_containers(values: Any) -> Any:
        if isinstance(values, dict):
            return {
                name: {"containers": []} if name == "extraPodSpec" else with_containers(inner)
                for name, inner in values.items()
            }
        return [with_containers(each) for each in values] if isinstance(values, list) else values

    done = helm(with_containers(COMPONENTS[component][0]), "--api-versions", "leaderworkerset.x-k8s.io/v1")
    assert done.returncode != 0
    assert "extraPodSpec" in done.stderr


def test_the_job_that_upgrades_tables_gets_nothing_that_only_gateways_need() -> None:
    values = {"database": {"existingSecret": "a", "upgrade": "job"}, "gateway": EXTRAS}
    pod = one(render(values), "Job", "-upgrade")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp"]
    assert len(pod["containers"]) == 1


# ---- Labels


EVERYTHING: dict[str, Any] = {
    **OWN_SECRET,
    "commonLabels": {"team": "a"},
    "workers": {"embedded": {"replicas": 1}, "pools": [{"name": "a", "model": {"name": "m", "path": "o/m"}}]},
    "gateway": {
        "replicas": 2,
        "ingress": {"enabled": True, "hosts": [{"host": "a"}], "labels": {"edge": "b"}},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "labels": {"edge": "b"}},
        "service": {"labels": {"edge": "b"}},
        "endpointPicker": {"enabled": True, "inferencePool": {"enabled": True}},
    },
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "networkPolicy": {"enabled": True, "envoyFrom": [{"podSelector": {}}]},
}


def every_pod(objects: Objects) -> list[dict[str, str]]:
    """The labels of every pod that runs."""
    owners = [o for o in objects if o["kind"] in ("StatefulSet", "Job", "LeaderWorkerSet")]
    return [pod["metadata"]["labels"] for owner in owners for pod in templates(owner)]


def test_common_labels_are_on_every_object_and_every_pod() -> None:
    objects = render(EVERYTHING)
    assert {o["metadata"]["name"] for o in objects if o["metadata"]["labels"].get("team") != "a"} == set()
    assert all(labels["team"] == "a" for labels in every_pod(objects))
    for kind in ("Ingress", "HTTPRoute", "Service"):
        assert one(objects, kind)["metadata"]["labels"]["edge"] == "b"


@pytest.mark.parametrize(
    "values",
    [
        {"commonLabels": {"radixgate/serves": "true"}},
        {"commonLabels": {"radixgate/listener": "admin"}},
        {"gateway": {"podLabels": {"radixgate/serves": "true"}}},
        {"gateway": {"service": {"labels": {"radixgate/listener": "admin"}}}},
        {"redis": {"bundled": {"podLabels": {"radixgate/serves": "true"}}}},
    ],
)
def test_labels_by_which_the_chart_selects_cannot_be_given(values: dict[str, Any]) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert re.search("abels.*radixgate", done.stderr)
