"""What stands between gateways and the world: listeners, load balancers, Prometheus, network policies."""

from typing import Any

import pytest
import yaml

from helm.tests.rendering import cluster, gateway, helm, one, render, template

CERTIFICATES: dict[str, Any] = {
    "gateway": {
        "tls": {"admin": {"existingSecret": "admin-tls"}, "tenants": {"existingSecret": "llm-tls"}},
        "endpointPicker": {"enabled": True, "tls": {"existingSecret": "picker-tls"}},
    }
}


def test_every_listener_may_have_a_certificate_and_its_service_says_so() -> None:
    objects = render(CERTIFICATES)
    config = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])
    mounts = {m["name"]: m["mountPath"] for m in gateway(objects)["volumeMounts"]}
    listeners = {
        "tenants": config["listen"],
        "admin": config["admin"],
        "picker": config["listen"]["endpoint_picker"],
    }
    for name, listener in listeners.items():
        assert listener["tls"]["certificate"] == f"{mounts[f'tls-{name}']}/tls.crt"
    ports = {
        port["name"]: port
        for suffix in ("", "-admin")
        for port in one(objects, "Service", suffix)["spec"]["ports"]
    }
    assert {name: port["appProtocol"] for name, port in ports.items()} == {
        "http": "https",
        "admin": "https",
        "picker": "https",
    }
    assert "appProtocol" not in one(render(), "Service")["spec"]["ports"][0]


def test_the_notes_speak_https_to_listeners_with_a_certificate() -> None:
    with cluster({}) as server:
        plain = helm({}, *server, command=("install",)).stdout
        done = helm(CERTIFICATES, *server, command=("install",))
    assert done.returncode == 0, done.stderr
    assert "curl --insecure https://127.0.0.1:8000/v1/models" in done.stdout
    assert "https://127.0.0.1:8001/ui/" in done.stdout
    assert "http://127.0.0.1" not in done.stdout
    assert "curl http://127.0.0.1:8000/v1/models" in plain


def test_prometheus_presents_the_token_that_metrics_require() -> None:
    values = {
        "metricsToken": {"existingSecret": "scrape", "key": "token"},
        "metrics": {"serviceMonitor": {"enabled": True}},
    }
    objects = render(values)
    config = yaml.safe_load(one(objects, "ConfigMap")["data"]["gateway.yaml"])
    assert config["admin"]["metrics_token"] == "${env:RADIXGATE_METRICS_TOKEN}"  # noqa: S105
    variables = {v["name"]: v.get("valueFrom") for v in gateway(objects)["env"]}
    reference = {"name": "scrape", "key": "token"}
    assert variables["RADIXGATE_METRICS_TOKEN"] == {"secretKeyRef": reference}
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": reference}
    assert "metrics_token" not in one(render(), "ConfigMap")["data"]["gateway.yaml"]


def test_a_load_balancer_admits_ranges_and_has_its_further_fields() -> None:
    service = {
        "type": "LoadBalancer",
        "sourceRanges": ["10.0.0.0/8", "fd00::/8"],
        "more": {"externalTrafficPolicy": "Local", "loadBalancerClass": "example.com/internal"},
    }
    spec = one(render({"gateway": {"service": service}}), "Service")["spec"]
    assert spec["loadBalancerSourceRanges"] == ["10.0.0.0/8", "fd00::/8"]
    assert (spec["type"], spec["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert spec["loadBalancerClass"] == "example.com/internal"


def test_an_ingress_has_the_paths_and_certificates_that_it_is_given() -> None:
    ingress = {
        "enabled": True,
        "className": "nginx",
        "annotations": {"a": "b"},
        "hosts": [
            {"host": "llm.example.com"},
            {"host": "api.example.com", "path": "/v1", "pathType": "Exact"},
        ],
        "tls": [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}],
    }
    spec = one(render({"gateway": {"ingress": ingress}}), "Ingress")["spec"]
    assert [
        (rule["host"], path["path"], path["pathType"])
        for rule in spec["rules"]
        for path in rule["http"]["paths"]
    ] == [("llm.example.com", "/", "Prefix"), ("api.example.com", "/v1", "Exact")]
    assert spec["tls"] == ingress["tls"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"gateway": {"service": {"sourceRanges": ["10.0.0.0/8"]}}}, "is read by load balancers only"),
        ({"gateway": {"service": {"sourceRanges": ["10.0.0.1"], "type": "LoadBalancer"}}}, "sourceRanges"),
        ({"gateway": {"service": {"more": {"selector": {"a": "b"}}}}}, "more"),
        ({"config": {"admin": {"host": "127.0.0.1"}}}, "config.admin.host is 127.0.0.1"),
        ({"config": {"listen": {"host": "localhost"}}}, "config.listen.host is localhost"),
        ({"config": {"listen": {"unix_socket": "/run/s"}}}, "config.listen.unix_socket"),
        ({"config": {"admin": {"port": 8000}}}, "the same port"),
        ({"gateway": {"endpointPicker": {"enabled": True, "port": 8001}}}, "the same port"),
        ({"networkPolicy": {"egress": {"enabled": True}}}, "restricts nothing without networkPolicy.enabled"),
        ({"config": {"admin": {"metrics_token": "x"}}}, "would appear in a ConfigMap; set metricsToken"),
    ],
)
def test_edges_that_no_request_could_pass_are_refused(values: dict[str, Any], sentence: str) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert sentence in done.stderr


# ---- Egress


def egress(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The egress rules of gateways."""
    merged = {**values, "networkPolicy": {"enabled": True, "egress": {"enabled": True}}}
    for name, inner in values.get("networkPolicy", {}).items():
        merged["networkPolicy"][name] = {**merged["networkPolicy"].get(name, {}), **inner}
    rules: list[dict[str, Any]] = one(render(merged), "NetworkPolicy")["spec"]["egress"]
    return rules


def ports(values: dict[str, Any]) -> set[int]:
    rules = egress(values)
    assert all(rule["ports"] for rule in rules), "a rule without ports would admit every port"
    return {port["port"] for rule in rules for port in rule["ports"]}


INSIDE = {53, 6379, 30000}


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://r/0", {6379}),
        ("rediss://r:6390/0", {6390}),
        ("redis://[fd00:1234::9]:6391/0", {6391}),
        ("redis+cluster://a:7000,b:7001", {7000, 7001}),
        ("redis+sentinel://a:26379,b:26379/service", {26379, 6379}),
    ],
)
def test_egress_admits_redis_at_its_ports_and_no_others(url: str, wanted: set[int]) -> None:
    assert ports({"redis": {"mode": "external", "external": {"url": url}}}) == {53, 30000, *wanted}


def test_egress_admits_the_keys_of_identity_providers() -> None:
    issuer = {"issuer": "https://login.example.com", "audiences": ["a"], "jwks_url": "http://keys:8080/jwks"}
    assert ports({"tokenIssuers": [issuer]}) == INSIDE | {443, 8080}
    assert ports({"operatorIssuers": [issuer]}) == INSIDE | {443, 8080}


def test_egress_admits_the_hosts_of_media() -> None:
    config = {"requests": {"media_hosts": ["cdn.example.com", "10.0.0.7:9000", "[fd00::1]:9001"]}}
    assert ports({"config": config}) == INSIDE | {80, 443, 9000, 9001}


def test_egress_admits_where_a_bucket_gets_its_credentials() -> None:
    own = {"bucket": "b", "endpoint": "http://s3:9000", "access_key_id": "${env:A}"}
    assert ports({"config": {"files": {"s3": own}}}) == INSIDE | {9000}
    rules = egress({"config": {"files": {"s3": {"bucket": "b"}}}})
    (metadata,) = [rule for rule in rules if rule["ports"] == [{"port": 80, "protocol": "TCP"}]]
    assert {peer["ipBlock"]["cidr"] for peer in metadata["to"]} == {
        *("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32"),
    }
    assert [rule for rule in rules if rule["ports"] == [{"port": 443, "protocol": "TCP"}]]


def test_egress_admits_discovered_workers_only_at_ports_that_the_values_name() -> None:
    pool = {"kind": "kubernetes", "inference_pool": "chat"}
    values = {
        "workers": {"discovery": [pool]},
        "networkPolicy": {"enabled": True, "egress": {"enabled": True}},
    }
    done = helm(values)
    assert done.returncode != 0
    assert "networkPolicy.egress.ports.workers" in done.stderr
    named = {"egress": {"enabled": True, "ports": {"workers": [30000, 5557]}}}
    assert ports({"workers": {"discovery": [pool]}, "networkPolicy": named}) == INSIDE | {5557, 443, 6443}
    dns = {"kind": "dns", "name": "a.internal", "port": 9000}
    assert ports({"workers": {"discovery": [dns]}}) == INSIDE | {9000}


def test_workers_call_what_the_values_name_and_nothing_else() -> None:
    rule = {"ports": [{"port": 65432, "protocol": "TCP"}]}
    policy = {"enabled": True, "workersEgress": [rule]}
    pool = {"name": "a", "model": {"name": "m", "source": "claim", "existingClaim": "models"}}
    objects = render({"networkPolicy": policy, "workers": {"pools": [pool]}})
    dns = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    for suffix in ("-worker", "-pool-a"):
        assert one(objects, "NetworkPolicy", suffix)["spec"]["egress"] == [dns, rule]
    assert "egress" not in one(objects, "NetworkPolicy", "-valkey")["spec"]


def test_the_volumes_of_a_gateway_with_all_certificates_exist() -> None:
    pod = template(render(CERTIFICATES))["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]} | {"state"}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


# ---- What is missing


ROOT_CERTIFICATE = "/api/v1/namespaces/llm/configmaps/kube-root-ca.crt"
"""What every namespace of a running cluster has."""


def notes(values: dict[str, Any], **secrets: dict[str, str]) -> str:
    """The notes of an install into a cluster with these Secrets."""
    metadata = {"name": "kube-root-ca.crt", "namespace": "llm"}
    found = {ROOT_CERTIFICATE: {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}}
    with cluster(secrets, found) as server:
        done = helm(values, *server, command=("install",))
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_the_notes_name_every_image_that_no_registry_has() -> None:
    said = notes({})
    assert "localhost/radixgate/gateway:0.1.0" in said
    assert "localhost/radixgate/worker:0.1.0" in said
    own = {"image": {"repository": "registry.example.com/radixgate/x"}}
    assert "is not in any registry" not in notes({"gateway": own, "workers": {"embedded": own}})


def test_the_notes_name_the_secrets_that_do_not_exist_yet() -> None:
    values = {
        "database": {"existingSecret": "db"},
        "adminToken": {"existingSecret": "admin"},
        "gateway": {"tls": {"tenants": {"existingSecret": "llm-tls"}}},
        "test": {"apiKey": {"existingSecret": "test-key"}},
        "workers": {
            "pools": [
                {"name": "a", "model": {"name": "m", "path": "o/m", "token": {"existingSecret": "hub"}}}
            ]
        },
    }
    said = notes(values, admin={"admin-token": "eA=="})
    assert "pods wait for these Secrets, which llm does not have yet: db, hub, llm-tls, test-key." in said
    there = {name: {"any": "eA=="} for name in ("db", "hub", "llm-tls", "test-key", "admin")}
    assert "does not have yet" not in notes(values, **there)


def test_without_a_cluster_nothing_is_said_to_be_missing() -> None:
    with cluster({}) as server:
        done = helm({"database": {"existingSecret": "db"}}, *server, command=("install",))
    assert "does not have yet" not in done.stdout
