"""The settings that the chart renders, taken by the real gateway."""

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path

import yaml

from gateway.runtime.server import serving
from gateway.settings.sources import LoadedSettings, load_settings
from gateway.settings.tree import Settings
from gateway.tenants.keys import new_key, pepper
from gateway.tenants.yaml_directory import register_from_settings
from helm.tests.rendering import CHART, EVERY_EXAMPLE, Objects, gateway, one, render, template
from tests.fakes.scripted_worker import ScriptedWorker

DEPLOYMENT_SECRET = "for tests only"  # noqa: S105
PEPPER = pepper(DEPLOYMENT_SECRET.encode())


def settings_of(objects: Objects, directory: Path, *assignments: str) -> Settings:
    """What the gateway makes of its file and environment. Secrets of the operator's are made up."""
    key = new_key(PEPPER)
    tenants = [{"id": "acme", "plan": "free", "keys": [{"id": key.id, "hash": key.hash}]}]
    made_up = {
        # As long as the one that the chart draws: weaker tokens are refused.
        "RADIXGATE_ADMIN_TOKEN": "7Wd2kQz9LmXc4RtVb8NyHs6JpGf3TaEu1DoKiYwCq0x",
        "RADIXGATE_DEPLOYMENT_SECRET": DEPLOYMENT_SECRET,
        "RADIXGATE_REDIS_URL": "rediss://:password@redis.example.com:6380/0",
        "RADIXGATE_DATABASE_URL": "postgresql://radixgate:password@db.example.com:5432/radixgate",
        "RADIXGATE__TENANTS": json.dumps(tenants),
        "RADIXGATE_WEBHOOK_SECRET_1": f"whsec_{base64.b64encode(bytes(24)).decode()}",
        "RADIXGATE_WEBHOOK_SECRET_0": f"whsec_{base64.b64encode(bytes(32)).decode()}",
        "RADIXGATE__PLANS": json.dumps([{"name": "free", "concurrency": 8}]),
    }
    environment = {
        variable["name"]: made_up.get(variable["name"], variable.get("value", "secret"))
        for variable in gateway(objects)["env"]
    }
    text = one(objects, "ConfigMap")["data"]["gateway.yaml"]
    if "/run/radixgate" in text:
        complete_demo_key(objects, directory)
        text = text.replace("/run/radixgate", str(directory))
    for model in yaml.safe_load(text)["models"]:
        if "tokenizer" not in model:
            continue
        place = directory / model["tokenizer"].lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "tokenizer.json").touch()
    file = directory / "gateway.yaml"
    file.write_text(text.replace("tokenizer: /", f"tokenizer: {directory}/"), encoding="utf-8")
    return load_settings(file, environment, assignments).settings


def complete_demo_key(objects: Objects, directory: Path) -> None:
    """Runs the init container's own command."""
    init = template(objects)["spec"]["initContainers"][0]
    draw = base64.b64decode(one(objects, "Secret", "-generated")["data"]["demo-key"]).decode()
    script, place = init["args"]
    assert init["command"] == ["python", "-c"]
    assert place == "/run/radixgate"
    subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        env={"DEMO_KEY": draw, "RADIXGATE_DEPLOYMENT_SECRET": DEPLOYMENT_SECRET},
        check=True,
        timeout=60,
    )


@EVERY_EXAMPLE
def test_the_gateway_accepts_the_rendered_settings(example: Path | None, tmp_path: Path) -> None:
    objects = render(example=example)
    settings = settings_of(objects, tmp_path)
    assert settings.listen.host == settings.admin.host == "0.0.0.0"  # noqa: S104
    assert settings.admin.token is not None
    assert settings.deployment_secret is not None
    assert settings.tenants
    ports = {port["name"]: port["containerPort"] for port in gateway(objects)["ports"]}
    assert ports == {"http": settings.listen.port, "admin": settings.admin.port}


def test_each_embedded_worker_is_called_by_the_name_its_statefulset_gives_it(tmp_path: Path) -> None:
    objects = render({"workers": {"embedded": {"replicas": 2}}})
    workers = one(objects, "StatefulSet", "-worker")
    service = one(objects, "Service", "-worker")
    assert service["spec"]["clusterIP"] == "None"
    assert workers["spec"]["serviceName"] == service["metadata"]["name"]
    name = workers["metadata"]["name"]
    port = workers["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert [(w.id, w.url) for w in settings_of(objects, tmp_path).workers] == [
        (f"worker-{n}", f"http://{name}-{n}.{name}.llm.svc:{port}") for n in range(2)
    ]


def test_gateways_and_embedded_workers_share_a_key(tmp_path: Path) -> None:
    objects = render()
    reference = {"secretKeyRef": {"name": "release-radixgate-generated", "key": "worker-key"}}
    worker = template(objects, "StatefulSet", "-worker")["spec"]["containers"][0]
    for container, name in (
        (gateway(objects), "RADIXGATE_OWN_WORKERS_KEY"),
        (worker, "RADIXGATE_WORKER_KEY"),
    ):
        assert {v["name"]: v.get("valueFrom") for v in container["env"]}[name] == reference
    assert all(each.api_key is not None for each in settings_of(objects, tmp_path).workers)
    none = render({"workers": {"embedded": {"replicas": 0}, "discovery": [{"kind": "redis"}]}})
    assert "worker-key" not in one(none, "Secret", "-generated")["data"]


def test_settings_of_the_operator_win_and_large_numbers_stay_whole(tmp_path: Path) -> None:
    config = {"listen": {"port": 9000}, "requests": {"body_bytes_max": 123456789}, "drain": {"seconds": 7.5}}
    objects = render({"config": config})
    settings = settings_of(objects, tmp_path)
    assert settings.listen.port == 9000
    assert settings.requests.body_bytes_max == 123456789
    assert template(objects)["spec"]["terminationGracePeriodSeconds"] == 5 + 8 + 15
    assert "123456789" in one(objects, "ConfigMap")["data"]["gateway.yaml"]


def test_the_database_comes_from_a_secret_and_issuers_of_tokens_from_values(tmp_path: Path) -> None:
    issuer = {"issuer": "https://login.example.com", "audiences": ["radixgate"], "tenant_claim": "org"}
    objects = render({"database": {"existingSecret": "tenants-db"}, "tokenIssuers": [issuer]})
    variables = {v["name"]: v for v in gateway(objects)["env"]}
    assert variables["RADIXGATE_DATABASE_URL"]["valueFrom"]["secretKeyRef"] == {
        "name": "tenants-db",
        "key": "url",
    }
    assert "db.example.com" not in one(objects, "ConfigMap")["data"]["gateway.yaml"]
    settings = settings_of(objects, tmp_path)
    assert settings.database.url.startswith("postgresql://radixgate:")
    assert settings.database.upgrade == "always"
    (found,) = settings.authentication.tokens
    assert (found.issuer, found.audiences, found.tenant_claim) == (
        *("https://login.example.com", ("radixgate",), "org"),
    )


def test_webhooks_usage_and_the_login_of_operators_come_from_values_and_secrets(tmp_path: Path) -> None:
    login = {"client_id": "gateway", "clientSecret": {"existingSecret": "login"}}
    objects = render(
        {
            "webhooks": [
                {"id": "a", "url": "https://a.example.com", "secret": {"existingSecret": "hook-a"}},
                {
                    "id": "b",
                    "url": "https://b.example.com/x",
                    "events": ["budget"],
                    "secret": {"existingSecret": "hook-b", "key": "signing"},
                },
            ],
            "usage": {"rows_days": 7},
            "operatorIssuers": [
                {"issuer": "https://robots.example.com", "audiences": ["radixgate"]},
                {"issuer": "https://staff.example.com", "audiences": ["radixgate"], "login": login},
            ],
        }
    )
    variables = {v["name"]: v.get("valueFrom", {}).get("secretKeyRef") for v in gateway(objects)["env"]}
    assert variables["RADIXGATE_WEBHOOK_SECRET_0"] == {"name": "hook-a", "key": "webhook-secret"}
    assert variables["RADIXGATE_WEBHOOK_SECRET_1"] == {"name": "hook-b", "key": "signing"}
    assert variables["RADIXGATE_LOGIN_SECRET_1"] == {"name": "login", "key": "client-secret"}
    assert "RADIXGATE_LOGIN_SECRET_0" not in variables
    settings = settings_of(objects, tmp_path)
    assert [(hook.id, hook.events) for hook in settings.webhooks] == [
        ("a", ("usage", "budget")),
        ("b", ("budget",)),
    ]
    assert settings.usage.rows_days == 7
    robots, staff = settings.admin.issuers
    assert (robots.login, staff.login and staff.login.client_id) == (None, "gateway")
    assert staff.login is not None
    assert staff.login.client_secret is not None
    assert settings.admin.token is not None


def test_keys_of_external_workers_come_from_their_secrets(tmp_path: Path) -> None:
    objects = render(example=CHART / "examples/sglang.yaml")
    variables = {v["name"]: v for v in gateway(objects)["env"]}
    assert variables["RADIXGATE_WORKER_KEY_1"]["valueFrom"]["secretKeyRef"] == {
        "name": "gpu-keys",
        "key": "gpu-1",
    }
    keys = [worker.api_key for worker in settings_of(objects, tmp_path).workers]
    assert [key is None for key in keys] == [False, False, True]


def test_the_demo_tenants_key_works_and_goes_with_the_first_tenant(tmp_path: Path) -> None:
    objects = render()
    settings = settings_of(objects, tmp_path)
    key = (tmp_path / "key").read_text(encoding="utf-8").strip()
    directory = register_from_settings(settings, PEPPER)
    assert directory.by_key(key).id == "demo"
    assert oct((tmp_path / "key").stat().st_mode)[-3:] == "600"

    objects = render({"tenants": [{"id": "acme", "keys": []}]})
    assert [tenant.id for tenant in settings_of(objects, tmp_path).tenants] == ["acme"]
    assert [c["name"] for c in template(objects)["spec"]["initContainers"]] == ["upgrade-tables"]
    assert "demo-key" not in one(objects, "Secret", "-generated")["data"]


async def test_the_test_hook_gets_a_completion_from_a_real_gateway(tmp_path: Path) -> None:
    objects = render({"redis": {"mode": "embedded"}})
    async with ScriptedWorker(models=["tiny-llama"]) as worker:
        here = ["listen.host=127.0.0.1", "listen.port=0", "admin.host=127.0.0.1", "admin.port=0"]
        state = [f"state_directory={tmp_path}/state", f"workers.0.url={worker.url}"]
        loaded = LoadedSettings(settings=settings_of(objects, tmp_path, *here, *state), sources={})
        async with serving(loaded) as running:
            hook = one(objects, "Pod", "-test")["spec"]["containers"][0]
            assert hook["command"] == ["python", "-c"]
            key = (tmp_path / "key").read_text(encoding="utf-8").strip()
            process = await run(
                hook["args"][0], {"GATEWAY_URL": running.tenant_url, "API_KEY": key, "MODEL": ""}
            )
    assert process.returncode == 0, process.stdout
    assert "tiny-llama answered" in process.stdout
    assert worker.seen[0].ended == "finished"


async def run(script: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """As a process of its own, while this loop goes on serving."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return subprocess.CompletedProcess(script, process.returncode or 0, output.decode())


@EVERY_EXAMPLE
def test_a_pod_may_drain_before_it_is_killed(example: Path | None, tmp_path: Path) -> None:
    objects = render(example=example)
    drain = settings_of(objects, tmp_path).drain
    grace = template(objects)["spec"]["terminationGracePeriodSeconds"]
    assert grace >= drain.notice_seconds + drain.seconds + 5


def test_a_gateway_may_be_in_a_cell_and_be_reached_by_the_address_of_its_pod(tmp_path: Path) -> None:
    cells = {"name": "east", "redis_url": "redis://shared:6379/0", "url": "http://${env:POD_IP}:8000"}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    objects = render({"config": {"cells": cells}, "gateway": {"extraEnv": [address]}})
    assert {v["name"]: v.get("valueFrom") for v in gateway(objects)["env"]}["POD_IP"] == address["valueFrom"]
    found = settings_of(objects, tmp_path).cells
    assert found is not None
    assert (found.name, found.redis_url, found.url) == ("east", "redis://shared:6379/0", "http://secret:8000")
