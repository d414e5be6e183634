"""What the chart makes: state, secrets, pods, and what stands around them."""

import base64
import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.tests.rendering import (
    CHART,
    EVERY_EXAMPLE,
    HELM,
    PRODUCTION,
    Objects,
    cluster,
    gateway,
    helm,
    one,
    render,
    template,
)


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    """Pod specs by name."""
    found = {}
    for o in objects:
        if o["kind"] in ("Deployment", "StatefulSet"):
            found[o["metadata"]["name"]] = o["spec"]["template"]["spec"]
        elif o["kind"] == "Pod":
            found[o["metadata"]["name"]] = o["spec"]
        elif o["kind"] == "LeaderWorkerSet":
            for each in ("leaderTemplate", "workerTemplate"):
                template = o["spec"]["leaderWorkerTemplate"][each]
                found[f"{o['metadata']['name']} {each}"] = template["spec"]
    return found


# ---- State and secrets


@EVERY_EXAMPLE
def test_every_gateway_has_a_claim_of_its_own_for_its_state(example: Path | None) -> None:
    objects = render(example=example)
    gateways = one(objects, "StatefulSet")["spec"]
    (claim,) = gateways["volumeClaimTemplates"]
    mounts = {m["name"]: m["mountPath"] for m in gateway(objects)["volumeMounts"]}
    config = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])
    assert claim["metadata"]["name"] == "state"
    assert config["state_directory"] == mounts["state"]
    assert gateways["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    headless = one(objects, "Service", "-pods")
    assert gateways["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["clusterIP"] == "None"


def test_one_gateway_has_sqlite_on_its_claim() -> None:
    objects = render({"redis": {"mode": "embedded"}})
    config = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])
    assert config["database"] == {"url": "sqlite:///radixgate.db", "upgrade": "always"}
    assert config["redis"]["url"] == "embedded"
    assert not [o for o in objects if o["metadata"]["name"].endswith(("-valkey", "-postgres"))]


SEVERAL = {"gateway": {"replicas": 3}, "deploymentSecret": {"existingSecret": "a"}}


def test_several_gateways_share_a_postgresql_of_the_chart_unless_told_of_another() -> None:
    objects = render(SEVERAL)
    server = one(objects, "StatefulSet", "-postgres")["spec"]
    assert server["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "8Gi"
    variables = {v["name"]: v for v in server["template"]["spec"]["containers"][0]["env"]}
    of_gateway = next(v for v in gateway(objects)["env"] if v["name"] == "RADIXGATE_DATABASE_PASSWORD")
    assert variables["POSTGRES_PASSWORD"]["valueFrom"] == of_gateway["valueFrom"]
    drawn = one(objects, "Secret", "-generated")["data"]["database-password"]
    assert re.fullmatch(r"[A-Za-z0-9]{43}", base64.b64decode(drawn).decode())
    service = one(objects, "Service", "-postgres")["metadata"]["name"]
    config = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])
    assert config["database"]["url"] == (
        f"postgresql://radixgate:${{env:RADIXGATE_DATABASE_PASSWORD}}@{service}:5432/radixgate"
    )

    objects = render(SEVERAL | {"database": {"existingSecret": "cluster-app", "key": "uri"}})
    assert not [o for o in objects if o["metadata"]["name"].endswith("-postgres")]
    reference = next(v for v in gateway(objects)["env"] if v["name"] == "RADIXGATE_DATABASE_URL")["valueFrom"]
    assert reference == {"secretKeyRef": {"name": "cluster-app", "key": "uri"}}


def test_tables_are_upgraded_before_a_gateway_starts() -> None:
    pod = template(render())["spec"]
    upgrade = pod["initContainers"][-1]
    main = gateway(render())
    assert upgrade["args"][:3] == ["database", "upgrade", "--if-reachable"]
    assert [m for m in upgrade["volumeMounts"] if m["name"] == "state"]
    assert {v["name"] for v in upgrade["env"]} == {v["name"] for v in main["env"]}


def test_tables_are_upgraded_by_a_job_before_anything_else_if_wanted() -> None:
    objects = render({"database": {"existingSecret": "db", "upgrade": "job"}})
    job = one(objects, "Job", "-upgrade")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = job["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod
    assert [v["name"] for v in pod["containers"][0]["env"]] == ["RADIXGATE_DATABASE_URL"]
    assert "upgrade-tables" not in json.dumps(template(objects)["spec"])
    config = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])
    assert config["database"]["upgrade"] == "never"


@pytest.mark.parametrize(("given", "wanted"), [("", None), ("fast", "fast"), ("-", ""), ("on", "on")])
def test_a_claim_has_the_clusters_default_class_another_or_none(given: str, wanted: str | None) -> None:
    objects = render({"gateway": {"persistence": {"storageClassName": given}}})
    (claim,) = one(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"].get("storageClassName") == wanted


def test_names_are_valid_for_a_release_with_a_dot() -> None:
    done = subprocess.run(
        [HELM, "template", "llm.eu", str(CHART)], capture_output=True, text=True, check=True, timeout=60
    )
    names = {o["metadata"]["name"] for o in yaml.safe_load_all(done.stdout) if o and o["kind"] == "Service"}
    assert "llm-eu-radixgate" in names
    assert not [name for name in names if "." in name]


def test_a_claim_of_ones_own_is_used() -> None:
    objects = render({"gateway": {"persistence": {"existingClaim": "mine"}}})
    assert {"name": "state", "persistentVolumeClaim": {"claimName": "mine"}} in template(objects)["spec"][
        "volumes"
    ]
    assert "volumeClaimTemplates" not in one(objects, "StatefulSet")["spec"]


def test_the_bundled_valkey_has_the_password_that_gateways_use() -> None:
    objects = render()
    valkey = one(objects, "StatefulSet", "-valkey")["spec"]
    variable = valkey["template"]["spec"]["containers"][0]["env"][0]
    of_gateway = next(v for v in gateway(objects)["env"] if v["name"] == "RADIXGATE_REDIS_PASSWORD")
    assert variable["valueFrom"] == of_gateway["valueFrom"]
    assert valkey["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    drawn = one(objects, "Secret", "-generated")["data"]["redis-password"]
    # The checksum is of the draw that stands in the Secret, not of a second one.
    checksum = valkey["template"]["metadata"]["annotations"]["checksum/password"]
    assert checksum == hashlib.sha256(drawn.encode()).hexdigest()


@EVERY_EXAMPLE
def test_secrets_stand_in_secrets_only(example: Path | None) -> None:
    objects = render(example=example)
    drawn = [o for o in objects if o["kind"] == "Secret"]
    rest = json.dumps([o for o in objects if o["kind"] != "Secret"])
    for secret in drawn:
        for value in secret["data"].values():
            assert value not in rest
            assert base64.b64decode(value).decode() not in rest
        assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    config = one(objects, "ConfigMap")["data"]["gateway.yaml"]
    for name in ("token", "deployment_secret", "api_key"):
        for value in re.findall(rf"\b{name}: (.+)", config):
            assert re.fullmatch(r"\$\{env:\w+\}", value)


def test_with_secrets_of_ones_own_nothing_is_drawn() -> None:
    objects = render(example=PRODUCTION)
    assert not [o for o in objects if o["kind"] == "Secret"]
    references = {v["name"]: v["valueFrom"]["secretKeyRef"] for v in gateway(objects)["env"]}
    assert references == {
        "RADIXGATE_DEPLOYMENT_SECRET": {"name": "radixgate-deployment", "key": "deployment-secret"},
        "RADIXGATE_ADMIN_TOKEN": {"name": "radixgate-admin", "key": "admin-token"},
        "RADIXGATE_REDIS_URL": {"name": "radixgate-redis", "key": "url"},
        "RADIXGATE_DATABASE_URL": {"name": "radixgate-database", "key": "url"},
        "RADIXGATE__TENANTS": {"name": "radixgate-tenants", "key": "tenants"},
        "RADIXGATE__PLANS": {"name": "radixgate-tenants", "key": "plans"},
        "RADIXGATE_OWN_WORKERS_KEY": {"name": "radixgate-worker", "key": "worker-key"},
    }


def test_what_was_drawn_is_kept_and_what_is_missing_is_drawn() -> None:
    kept = {key: base64.b64encode(key.encode()).decode() for key in ("deployment-secret", "redis-password")}
    with cluster({"release-radixgate-generated": kept}) as server:
        objects = render({}, None, *server)
    data = one(objects, "Secret", "-generated")["data"]
    assert kept.items() <= data.items()
    assert set(data) == {*kept, "admin-token", "demo-key", "worker-key"}


def test_gateways_start_anew_when_a_secret_of_ones_own_has_changed() -> None:
    def checksum(value: str) -> str:
        secrets = {name: {"any": value} for name in ("radixgate-deployment", "radixgate-tenants")}
        with cluster(secrets) as server:
            annotations = template(render({}, PRODUCTION, *server))["metadata"]["annotations"]
        return str(annotations["checksum/secrets"])

    assert checksum("b25l") == checksum("b25l") != checksum("dHdv")


def test_a_change_of_settings_starts_new_pods_and_nothing_else_does() -> None:
    own = {
        "deploymentSecret": {"existingSecret": "a"},
        "adminToken": {"existingSecret": "a"},
        "redis": {"bundled": {"password": {"existingSecret": "a"}}},
        "workers": {"apiKey": {"existingSecret": "a"}},
        "tenants": [{"id": "acme"}],
    }

    before = template(render(own))
    assert template(render(own | {"gateway": {"service": {"port": 8080}}})) == before
    assert template(render(own | {"config": {"routing": {"policy": "round_robin"}}})) != before


# ---- Pods


@EVERY_EXAMPLE
def test_pods_keep_to_the_restricted_profile(example: Path | None) -> None:
    objects = render(example=example)
    watches = any(o["kind"] == "Role" for o in objects)
    for name, pod in pods(objects).items():
        assert pod["automountServiceAccountToken"] is (watches and name == "release-radixgate")
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"]
            assert re.search(r":v?[0-9][\w.-]*$|@sha256:", container["image"])
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= {v["name"] for v in pod.get("volumes", ())} | {"data", "state", "cache"}


def test_probes_use_the_admin_port_and_each_asks_its_own_question() -> None:
    container = gateway(render({"config": {"admin": {"port": 9001}}}))
    assert {"name": "admin", "containerPort": 9001} in container["ports"]
    asked = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert all(question["port"] == "admin" for question in asked.values())
    assert asked["startupProbe"]["path"] == asked["livenessProbe"]["path"] == "/health/live"
    assert asked["readinessProbe"]["path"] == "/health/ready"


def test_gateways_are_replaced_one_by_one_and_spread_where_possible() -> None:
    spec = one(render(), "StatefulSet")["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert spec["podManagementPolicy"] == "Parallel"
    spread = spec["template"]["spec"]["topologySpreadConstraints"]
    assert {s["topologyKey"] for s in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert {s["whenUnsatisfiable"] for s in spread} == {"ScheduleAnyway"}


@EVERY_EXAMPLE
def test_selectors_find_their_pods_and_no_others(example: Path | None) -> None:
    objects = render(example=example)
    labels = {
        o["metadata"]["name"]: o["spec"]["template"]["metadata"]["labels"]
        for o in objects
        if o["kind"] in ("Deployment", "StatefulSet")
    }
    for o in objects:
        if o["kind"] == "LeaderWorkerSet":
            leader = o["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
            labels[o["metadata"]["name"]] = leader["metadata"]["labels"]
    for o in objects:
        selector = o["spec"].get("selector", {}) if "spec" in o else {}
        selector = selector.get("matchLabels", selector)
        if o["kind"] in ("Deployment", "StatefulSet", "Service", "PodDisruptionBudget"):
            parts = {f"app.kubernetes.io/{part}" for part in ("name", "instance", "component")}
            assert set(selector) - {"radixgate/serves"} == parts
            assert [name for name, own in labels.items() if selector.items() <= own.items()] == [
                re.sub("-(admin|pods|http)$", "", o["metadata"]["name"])
            ]


def test_a_digest_wins_over_the_tag() -> None:
    digest = "sha256:" + "ab" * 32
    image = {"repository": "registry.example.com/gateway", "tag": "1.2.3", "digest": digest}
    assert gateway(render({"gateway": {"image": image}}))["image"] == f"registry.example.com/gateway@{digest}"


def test_workers_get_their_model_gpu_and_options() -> None:
    tiny = template(render(), "StatefulSet", "-worker")["spec"]
    build = tiny["initContainers"][0]
    assert build["command"] == ["python", "-m", "workers.engine.tiny_checkpoint", "/models/tiny"]
    assert "--hidden=256" in build["args"]
    assert "--model=/models/tiny" in tiny["containers"][0]["args"]

    pod = template(render(example=PRODUCTION), "StatefulSet", "-worker")["spec"]
    worker = pod["containers"][0]
    assert {"--model=/models/llama-3.1-8b", "--kv-tokens=200000", "--dtype=bfloat16"} <= set(worker["args"])
    assert worker["resources"]["limits"] == {"memory": "48Gi", "nvidia.com/gpu": 1}
    assert pod["runtimeClassName"] == "nvidia"
    assert "initContainers" not in pod
    assert (
        next(v for v in pod["volumes"] if v["name"] == "models")["persistentVolumeClaim"]["claimName"]
        == "models"
    )


def test_options_of_a_worker_that_are_yes_or_no_are_flags() -> None:
    options = {"prefix-caching": False, "chunked-prefill": True, "ageing-seconds": 1.5}
    worker = template(render({"workers": {"embedded": {"options": options}}}), "StatefulSet", "-worker")
    given = set(worker["spec"]["containers"][0]["args"])
    assert {"--no-prefix-caching", "--chunked-prefill", "--ageing-seconds=1.5"} <= given


def test_an_option_of_a_worker_with_several_values_is_repeated() -> None:
    options = {"lora-modules": ["legal=/models/legal", "sql=/models/sql"]}
    worker = template(render({"workers": {"embedded": {"options": options}}}), "StatefulSet", "-worker")
    given = worker["spec"]["containers"][0]["args"]
    assert [each for each in given if "lora" in each] == [
        f"--lora-modules={each}" for each in options["lora-modules"]
    ]


def test_autoscaling_takes_over_the_number_of_replicas() -> None:
    autoscaling = {"enabled": True, "memoryPercent": 80, "metrics": [{"type": "Pods", "pods": {}}]}
    objects = render({"deploymentSecret": {"existingSecret": "a"}, "gateway": {"autoscaling": autoscaling}})
    assert "replicas" not in one(objects, "StatefulSet")["spec"]
    target = one(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", "release-radixgate")
    metrics = one(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert [m["resource"]["name"] for m in metrics if m["type"] == "Resource"] == ["cpu", "memory"]
    assert metrics[-1]["type"] == "Pods"


# ---- Around the pods


def test_prometheus_finds_the_admin_service_and_the_alerts_look_there() -> None:
    objects = render(example=PRODUCTION)
    monitor = one(objects, "ServiceMonitor")
    services = [o for o in objects if o["kind"] == "Service"]
    (found,) = [
        s
        for s in services
        if monitor["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()
    ]
    assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in found["spec"]["ports"]]
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    rules = json.dumps(one(objects, "PrometheusRule")["spec"])
    assert f'job=\\"{found["metadata"]["name"]}\\"' in rules
    assert "$SELECTOR" not in rules
    assert "$FIRST_TOKEN_SECONDS" not in rules
    assert "{{ $labels.worker }}" in rules


def test_prometheus_is_asked_to_keep_native_histograms_beside_the_classic_ones() -> None:
    native = {"convertClassicHistogramsToNHCB": True, "scrapeClassicHistograms": True}
    objects = render({"metrics": {"serviceMonitor": {"enabled": True, "spec": native}}}, example=PRODUCTION)
    spec = one(objects, "ServiceMonitor")["spec"]
    assert native.items() <= spec.items()
    assert spec["endpoints"][0]["path"] == "/metrics"


def test_the_dashboard_comes_unchanged_and_with_the_label_grafana_looks_for() -> None:
    found = one(render(), "ConfigMap", "-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    file = (CHART / "dashboards/radixgate.json").read_text(encoding="utf-8")
    assert json.loads(found["data"]["radixgate.json"]) == json.loads(file)


def test_network_policies_let_in_the_test_and_keep_others_from_valkey() -> None:
    values = {
        "networkPolicy": {"enabled": True, "tenantsFrom": [{"podSelector": {}}], "egress": {"enabled": True}}
    }
    objects = render(values)
    policy = one(objects, "NetworkPolicy")["spec"]
    test_labels = one(objects, "Pod", "-test")["metadata"]["labels"]
    allowed = [peer["podSelector"].get("matchLabels", {}) for peer in policy["ingress"][0]["from"]]
    assert any(labels and labels.items() <= test_labels.items() for labels in allowed)
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [53, 6379, 30000]
    # What a worker publishes of its cache has the two ports behind that of its HTTP.
    assert policy["egress"][2]["ports"][0]["endPort"] == 30002
    for inner in ("-valkey", "-worker"):
        spec = one(objects, "NetworkPolicy", inner)["spec"]
        (peer,) = spec["ingress"][0]["from"]
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
        assert "egress" not in spec


def test_tls_of_the_admin_port_is_followed_by_probes_and_monitor() -> None:
    values = {
        "gateway": {
            "tls": {"admin": {"existingSecret": "admin-tls"}, "tenants": {"existingSecret": "llm-tls"}}
        },
        "metrics": {"serviceMonitor": {"enabled": True}},
    }
    objects = render(values)
    container = gateway(objects)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[kind]["httpGet"]["scheme"] == "HTTPS"
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    config = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    volumes = {v["name"]: v.get("secret", {}).get("secretName") for v in template(objects)["spec"]["volumes"]}
    for listener, name in (("admin", "admin"), ("listen", "tenants")):
        assert config[listener]["tls"]["certificate"] == f"{mounts[f'tls-{name}']}/tls.crt"
    assert (volumes["tls-admin"], volumes["tls-tenants"]) == ("admin-tls", "llm-tls")
    test = one(objects, "Pod", "-test")["spec"]["containers"][0]
    assert test["env"][0]["value"].startswith("https://")


def test_common_labels_replace_no_selector_and_no_label_of_the_chart() -> None:
    values = {
        "commonLabels": {"app.kubernetes.io/name": "other", "app.kubernetes.io/component": "x", "team": "a"},
        "gateway": {"podLabels": {"app.kubernetes.io/instance": "other", "team": "b"}},
    }
    owner = one(render(values), "StatefulSet")
    labels = owner["spec"]["template"]["metadata"]["labels"]
    assert owner["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert (labels["team"], owner["metadata"]["labels"]["team"]) == ("b", "a")


def test_a_route_of_the_gateway_api_does_not_end_streams() -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["llm.example.com"]}
    spec = one(render({"gateway": {"httpRoute": route}}), "HTTPRoute")["spec"]
    (rule,) = spec["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert rule["backendRefs"] == [{"name": "release-radixgate", "port": 80}]


def test_egress_admits_what_the_values_name() -> None:
    values = {
        "networkPolicy": {"enabled": True, "egress": {"enabled": True, "to": {"s3": [{"podSelector": {}}]}}},
        "workers": {
            "external": [
                {
                    "id": "a",
                    "kind": "vllm",
                    "url": "http://a:8000",
                    "kv_events": {"endpoint": "tcp://a:5557", "replay_endpoint": "tcp://a:6557"},
                }
            ]
        },
        "database": {"existingSecret": "db"},
        "redis": {"mode": "external", "external": {"url": "redis://r:6390/0"}},
        "tokenIssuers": [{"issuer": "https://login.example.com"}],
        "config": {
            "telemetry": {"otlp_endpoint": "http://otel:4318"},
            "files": {"s3": {"bucket": "b", "endpoint": "http://s3:9000", "access_key_id": "${env:A}"}},
        },
    }
    rules = one(render(values), "NetworkPolicy")["spec"]["egress"]
    ports = {port["port"] for rule in rules for port in rule["ports"]}
    assert ports == {53, 30000, 8000, 5557, 6557, 5432, 6390, 443, 4318, 9000}
    (s3,) = [rule for rule in rules if rule["ports"][0]["port"] == 9000]
    assert s3["to"] == [{"podSelector": {}}]


def test_extra_objects_are_templates() -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}
    names = [o["metadata"]["name"] for o in render({"extraObjects": [extra]})]
    assert "release-more" in names


def test_long_names_still_make_valid_labels() -> None:
    for o in render({"nameOverride": "n" * 60}):
        # A StatefulSet's pods carry its name and a hash of ten in one label.
        assert len(o["metadata"]["name"]) <= (52 if o["kind"] == "StatefulSet" else 63)


def test_the_notes_tell_what_to_do_next() -> None:
    with cluster({}) as server:
        done = helm({}, *server, command=("install",))
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "helm -n llm test release --logs" in notes
    assert "exec statefulset/release-radixgate -c gateway -- cat /run/radixgate/key" in notes
    assert "the tenant `demo` is removed" in notes
