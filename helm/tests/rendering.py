"""The chart as helm renders it. Which helm: RADIXGATE_HELM, which helm/tests/run sets."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[1] / "radixgate"
HELM = os.environ.get("RADIXGATE_HELM") or str(CHART.parents[1] / ".tools/helm-4.2.3/helm")
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
PRODUCTION = CHART / "examples/production.yaml"
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
RELEASE = ("release", str(CHART), "--namespace", "llm")

OPTIONAL_KINDS = (
    *("monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1", "inference.networking.k8s.io/v1"),
    *("keda.sh/v1alpha1", "leaderworkerset.x-k8s.io/v1"),
)
"""API groups that a cluster may lack."""

Objects = list[dict[str, Any]]

EVERY_EXAMPLE = pytest.mark.parametrize(
    "example", [None, *EXAMPLES], ids=lambda e: e.stem if e else "default"
)


def helm(
    values: Mapping[str, Any], *arguments: str, command: tuple[str, ...] = ("template",)
) -> "subprocess.CompletedProcess[str]":
    """These values go over those of files in `arguments`. No cluster is asked but the one that `arguments` name."""
    return subprocess.run(
        [HELM, *command, *RELEASE, *arguments, "--values", "-"],
        input=json.dumps(values),
        env={**os.environ, "KUBECONFIG": os.devnull},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def render(values: Mapping[str, Any] | None = None, example: Path | None = None, *arguments: str) -> Objects:
    """Every object, with these values over the example's."""
    files = ["--values", str(example)] if example else []
    known = [part for kind in OPTIONAL_KINDS for part in ("--api-versions", kind)]
    done = helm(values or {}, *files, *known, *arguments)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def one(objects: Objects, kind: str, suffix: str = "") -> dict[str, Any]:
    (found,) = [
        o for o in objects if o["kind"] == kind and o["metadata"]["name"] == f"release-radixgate{suffix}"
    ]
    return found


def template(objects: Objects, kind: str = "StatefulSet", suffix: str = "") -> dict[str, Any]:
    """The pod template of a workload; the gateway's unless told otherwise."""
    found: dict[str, Any] = one(objects, kind, suffix)["spec"]["template"]
    return found


def gateway(objects: Objects) -> dict[str, Any]:
    """The gateway's container."""
    found: dict[str, Any] = template(objects)["spec"]["containers"][0]
    return found


KINDS = {
    "v1": ("Secret", "ConfigMap", "Service", "ServiceAccount", "Pod", "PersistentVolumeClaim"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "batch/v1": ("Job",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "monitoring.coreos.com/v1": ("ServiceMonitor", "PrometheusRule"),
    "gateway.networking.k8s.io/v1": ("HTTPRoute",),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
}


def of_the_release(name: str, **labels: str) -> dict[str, Any]:
    """Metadata as helm leaves them at what it made; without them it takes nothing over."""
    return {
        "name": name,
        "namespace": "llm",
        "labels": {"app.kubernetes.io/managed-by": "Helm", **labels},
        "annotations": {"meta.helm.sh/release-name": "release", "meta.helm.sh/release-namespace": "llm"},
    }


@contextmanager
def cluster(
    secrets: Mapping[str, Mapping[str, str]], others: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[tuple[str, ...]]:
    """An API server that has these Secrets and other objects by path, and nothing else, as arguments for helm.

    It speaks what `lookup` needs: who it is, which kinds it knows, and single objects.
    """
    pages: dict[str, Any] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    groups = []
    for version, kinds in KINDS.items():
        group, slash, name = version.rpartition("/")
        resources = [
            {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True, "verbs": ["get"]} for kind in kinds
        ]
        pages[f"/apis/{version}" if slash else "/api/v1"] = {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": resources,
        }
        if slash:
            served = {"groupVersion": version, "version": name}
            groups.append({"name": group, "versions": [served], "preferredVersion": served})
    pages["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    for name, data in secrets.items():
        pages[f"/api/v1/namespaces/llm/secrets/{name}"] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": of_the_release(name),
            "data": dict(data),
        }

    pages.update(others or {})

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            body = json.dumps(page or {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
            self.send_response(200 if page else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"--kube-apiserver=http://127.0.0.1:{server.server_port}"
    try:
        yield "--dry-run=server", "--disable-openapi-validation", address
    finally:
        server.shutdown()
        server.server_close()
