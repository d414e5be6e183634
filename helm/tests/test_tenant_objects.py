"""Tenants as objects of a cluster, from `helm install` of such objects to a request with their key."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.kubernetes import watched_objects
from gateway.runtime.server import serving
from gateway.settings.sources import LoadedSettings
from gateway.tenants.keys import new_key, pepper
from gateway.wiring import records
from helm.tests.cluster.api_server import ApiServer, Store
from helm.tests.rendering import Objects, render
from helm.tests.test_chart_settings import DEPLOYMENT_SECRET, settings_of
from tests.fakes.scripted_worker import ScriptedWorker

KEY = new_key(pepper(DEPLOYMENT_SECRET.encode()))
LABELS = {"ConfigMap": "radixgate/tenants", "Secret": "radixgate/key"}


class TenantCluster:
    """A cluster in which an operator puts and deletes objects by HTTP, as kubectl does."""

    def __init__(self, directory: Path) -> None:
        self.store = Store()
        self.server = ApiServer(self.store, lambda _: "", lambda _: None)
        self.account = directory / "account"
        self.account.mkdir()
        (self.account / "namespace").write_text("llm")
        (self.account / "token").write_text("llm:release-radixgate")
        # The rights are those that the chart gives.
        for each in objects_of_the_chart():
            if each["kind"] in ("Role", "RoleBinding"):
                self.store.put(each)

    async def put(self, kind: str, name: str, data: dict[str, str]) -> None:
        metadata = {"name": name, "labels": {LABELS[kind]: "true"}}
        body = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}
        headers = {"content-type": "application/apply-patch+yaml"}
        async with aiohttp.ClientSession() as http:
            async with http.patch(self._url(kind, name), json=body, headers=headers) as answer:
                assert answer.status == 200

    async def delete(self, kind: str, name: str) -> None:
        async with aiohttp.ClientSession() as http, http.delete(self._url(kind, name)) as answer:
            assert answer.status == 200

    def events(self, name: str) -> list[str]:
        """What the Events of an object say, the oldest first."""
        found = [o for o in self.store.all("Event", "llm") if o["involvedObject"]["name"] == name]
        return [o["message"] for o in sorted(found, key=lambda o: int(o["metadata"]["resourceVersion"]))]

    def _url(self, kind: str, name: str) -> str:
        return f"{self.server.url}/api/v1/namespaces/llm/{kind.lower()}s/{name}"


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TenantCluster]:
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS", 0.05)
    made = TenantCluster(tmp_path)
    await made.server.start()
    monkeypatch.setattr(records, "API", made.server.url)
    monkeypatch.setattr(records, "ACCOUNT", made.account)
    yield made
    await made.server.stop()


def objects_of_the_chart() -> Objects:
    return render(
        {
            "redis": {"mode": "embedded"},
            "tenantObjects": {"enabled": True},
            "workers": {
                "embedded": {"replicas": 0},
                "external": [{"id": "w", "kind": "openai", "url": "http://w"}],
            },
        }
    )


async def until(answers: Callable[[], Any]) -> None:
    for _ in range(3000):
        found = answers()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen in time")


def as_secret(**texts: str) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


async def test_a_key_of_a_secret_serves_until_it_is_deleted_through_a_restart_and_an_invalid_object(
    cluster: TenantCluster, tmp_path: Path
) -> None:
    here = ["listen.host=127.0.0.1", "listen.port=0", "admin.host=127.0.0.1", "admin.port=0"]
    async with ScriptedWorker(models=["tiny-llama"]) as worker, aiohttp.ClientSession() as http:
        state = [f"state_directory={tmp_path}/state", f"workers.0.url={worker.url}"]
        settings = settings_of(objects_of_the_chart(), tmp_path, *here, *state)
        assert settings.tenant_objects is not None
        url = ""

        async def status(key: str = KEY.text) -> int:
            body = {"model": "tiny-llama", "prompt": "Good morning", "max_tokens": 4}
            headers = {"authorization": f"Bearer {key}"}
            async with http.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                return answer.status

        async def is_answered_with(wanted: int) -> bool:
            return await status() == wanted

        async with serving(LoadedSettings(settings=settings, sources={})) as running:
            # On loopback everything is open while there is no tenant at all.
            await cluster.put(
                "ConfigMap", "acme", {"tenants": "[{id: acme, plan: gold}]", "plans": "[{name: gold}]"}
            )
            url = running.tenant_url
            await until(lambda: is_answered_with(401))
            await cluster.put("Secret", "acme-app", as_secret(tenant="acme", key=KEY.text))
            await until(lambda: is_answered_with(200))
            assert cluster.events("acme") == cluster.events("acme-app") == ["in force"]

            # A mistake changes nothing, and says why.
            await cluster.put("ConfigMap", "acme", {"tenants": "[{id: acme, limit: 7}]"})
            await until(lambda: len(cluster.events("acme")) == 2)
            assert cluster.events("acme")[1].startswith(
                "$.tenants[0].limit: unknown setting (did you mean limits?)"
            )
            assert await status() == 200
            async with http.get(f"{running.admin_url}/health/ready") as answer:
                assert (await answer.json())["tenant_objects"] == {"in force": 1, "refused": 1}
            await cluster.put("ConfigMap", "acme", {"tenants": "[{id: acme, disabled: true}, {id: other}]"})
            await until(lambda: is_answered_with(403))

        await cluster.put("ConfigMap", "acme", {"tenants": "[{id: acme}]"})
        async with serving(LoadedSettings(settings=settings, sources={})) as running:
            url = running.tenant_url
            await until(lambda: is_answered_with(200))
            assert await status("sk-of-another-service") == 401
            await cluster.delete("Secret", "acme-app")
            await until(lambda: is_answered_with(401))

        # What is deleted while no gateway runs is unknown to the next one.
        await cluster.put("Secret", "acme-app", as_secret(tenant="acme", key=KEY.text))
        await cluster.delete("Secret", "acme-app")
        async with serving(LoadedSettings(settings=settings, sources={})) as running:
            url = running.tenant_url
            await until(lambda: is_answered_with(401))


async def test_a_gateway_is_not_ready_before_it_has_read_the_objects(
    cluster: TenantCluster, tmp_path: Path
) -> None:
    await cluster.server.stop()
    here = ["listen.host=127.0.0.1", "listen.port=0", "admin.host=127.0.0.1", "admin.port=0"]
    async with ScriptedWorker(models=["tiny-llama"]) as worker, aiohttp.ClientSession() as http:
        state = [f"state_directory={tmp_path}/state", f"workers.0.url={worker.url}"]
        settings = settings_of(objects_of_the_chart(), tmp_path, *here, *state)
        async with serving(LoadedSettings(settings=settings, sources={})) as running:
            async with http.get(f"{running.admin_url}/health/ready") as answer:
                assert answer.status == 503
            async with http.get(f"{running.admin_url}/health/live") as answer:
                assert answer.status == 200
