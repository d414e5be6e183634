"""The chart from install to uninstall, in a cluster on this machine that runs the images' commands as processes."""

import asyncio
import json
from collections import Counter

import aiohttp
import pytest

from gateway.database.tables import REVISION
from helm.tests.cluster.images import next_release
from helm.tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.fakes.scripted_worker import Script, ScriptedWorker

SMALL = {
    "config": {"drain": {"notice_seconds": 1, "seconds": 10}},
    "metrics": {"dashboard": {"enabled": False}},
    "workers": {
        "embedded": {"model": {"tiny": {"hidden": 64, "heads": 4, "layers": 2, "intermediate": 128}}}
    },
}


@pytest.fixture
async def cluster():
    async with local_cluster() as started:
        yield started


async def demo_key(cluster: LocalCluster) -> str:
    code, key, errors = await cluster.pods["release-radixgate-0"].execute("cat", "/run/radixgate/key")
    assert code == 0, errors
    return key.decode().strip()


async def chat(cluster: LocalCluster, key: str, model: str = "tiny-llama") -> tuple[int, str]:
    """Status and text of a chat completion through the release's Service."""
    url = cluster.address("release-radixgate", 80)
    body = {"model": model, "messages": [{"role": "user", "content": "Good morning"}], "max_tokens": 4}
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as http:
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.text()


async def accepted(cluster: LocalCluster, key: str) -> None:
    """Wait until the gateway knows a new key: changes take effect within a second."""
    for _ in range(100):
        if (await chat(cluster, key))[0] != 401:
            return
        await asyncio.sleep(0.1)


async def radixgate(cluster: LocalCluster, *words: str, stdin: bytes | None = None) -> str:
    """Run a command inside the first gateway's container, as `kubectl exec` does."""
    command = ("radixgate", *words, "--config", "/etc/radixgate/gateway.yaml")
    code, output, errors = await cluster.pods["release-radixgate-0"].execute(*command, stdin=stdin)
    assert code == 0, errors
    return output.decode()


@pytest.mark.timeout(600)
async def test_an_install_with_defaults_ends_with_a_completion_and_an_upgrade_keeps_a_key(cluster):
    notes = await cluster.install(SMALL)
    assert "STATUS: deployed" in notes
    status, text = await chat(cluster, await demo_key(cluster))
    assert status == 200, text
    assert json.loads(text)["usage"]["completion_tokens"] > 0
    assert "tiny-llama answered" in await cluster.helm("test", "release", "--logs")

    # A tenant and a key of run time, then an upgrade that replaces the gateway's pod.
    await radixgate(cluster, "tenants", "set", "acme")
    key = (await radixgate(cluster, "keys", "create", "acme", "--quiet")).strip()
    await accepted(cluster, key)
    assert (await chat(cluster, key))[0] == 200
    changed = SMALL | {"config": {**SMALL["config"], "routing": {"policy": "round_robin"}}}
    first = cluster.pods["release-radixgate-0"]
    await cluster.install(changed, command="upgrade")
    assert cluster.pods["release-radixgate-0"] is not first
    assert (await chat(cluster, key))[0] == 200

    await cluster.helm("rollback", "release", "1", "--wait", "--timeout", "170s")
    await cluster.wait_until_ready()
    assert (await chat(cluster, key))[0] == 200

    # Claims and the generated Secret outlive the release, and the next one finds tenants and keys again.
    await cluster.helm("uninstall", "release", "--wait")
    assert not cluster.store.all("StatefulSet")
    await cluster.install(SMALL)
    assert (await chat(cluster, key))[0] == 200


POOL = {
    "name": "chat",
    "engine": "sglang",
    "model": {"name": "scripted", "path": "org/scripted"},
    "gpu": {"count": 0},
    "drainSeconds": 0,
}
ON_DEMAND = {"enabled": True, "prometheus": {"address": "http://prometheus"}, "firstWorkerSeconds": 120}


async def scale(cluster: LocalCluster, replicas: int) -> None:
    """Set the number of engines, as an autoscaler does."""
    name = "release-radixgate-pool-chat"
    url = f"{cluster.server.url}/apis/apps/v1/namespaces/llm/statefulsets/{name}"
    headers = {"content-type": "application/merge-patch+json"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.patch(url, json={"spec": {"replicas": replicas}}) as answer:
            assert answer.status == 200
    await cluster.wait_until_ready()


async def workers_of(cluster: LocalCluster) -> dict[str, str]:
    """The workers of the gateway with their health."""
    url = cluster.address("release-radixgate-admin", 8001)
    async with aiohttp.ClientSession() as http, http.get(f"{url}/health/ready") as answer:
        found: dict[str, str] = (await answer.json())["workers"]
        return found


async def workers_become(cluster: LocalCluster, *names: str) -> None:
    for _ in range(300):
        if await workers_of(cluster) == dict.fromkeys(names, "up"):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{await workers_of(cluster)}\n{cluster.logs()}")


@pytest.mark.timeout(600)
async def test_engines_of_a_pool_are_found_by_a_watch_scaled_without_a_restart_and_waited_for(cluster):
    values = {
        "workers": {"embedded": {"replicas": 0}, "pools": [{**POOL, "autoscaling": ON_DEMAND}]},
        "config": {"drain": {"notice_seconds": 1, "seconds": 10}},
        "metrics": {"dashboard": {"enabled": False}},
    }
    await cluster.install(values)
    names = [f"release-radixgate-pool-chat-{n}" for n in range(2)]
    await workers_become(cluster, names[0])
    key = await demo_key(cluster)
    status, text = await chat(cluster, key, model="scripted")
    assert status == 200, text
    gateway = cluster.pods["release-radixgate-0"]

    await scale(cluster, 2)
    await workers_become(cluster, *names)
    await scale(cluster, 0)
    await workers_become(cluster)
    waiting = asyncio.create_task(chat(cluster, key, model="scripted"))
    url = cluster.address("release-radixgate-admin", 8001)
    series = 'radixgate_waiting_requests{class="chat",model="scripted"} 1.0'
    async with aiohttp.ClientSession() as http:
        for _ in range(200):
            async with http.get(f"{url}/metrics") as answer:
                if series in await answer.text():
                    break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(cluster.logs())
    await scale(cluster, 1)
    status, text = await waiting
    assert status == 200, text
    assert cluster.pods["release-radixgate-0"] is gateway
    assert gateway.restarts == 0


SECRET = {"deployment-secret": "a secret for tests, which is long enough to be taken"}
SEVERAL = {
    "gateway": {"replicas": 2},
    "deploymentSecret": {"existingSecret": "own"},
    "config": {"drain": {"notice_seconds": 2, "seconds": 20}},
    "metrics": {"dashboard": {"enabled": False}},
    "test": {"model": "tiny-llama"},
}


class Load:
    """Clients that send one request after the other, each on a new connection or on one that is kept."""

    def __init__(self, cluster: LocalCluster, key: str) -> None:
        self.statuses: Counter[int | str] = Counter()
        self._url = cluster.address("release-radixgate", 80)
        self._key = key
        self._ending = False
        self._tasks = [asyncio.create_task(self._run(kept=n % 2 == 0)) for n in range(4)]

    async def end(self) -> Counter[int | str]:
        self._ending = True
        await asyncio.gather(*self._tasks)
        return self.statuses

    async def _run(self, *, kept: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=not kept)
        headers = {"authorization": f"Bearer {self._key}"}
        body = {
            "model": "tiny-llama",
            "messages": [{"role": "user", "content": "Good morning"}],
            "stream": True,
        }
        async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
            while not self._ending:
                try:
                    async with http.post(f"{self._url}/v1/chat/completions", json=body) as answer:
                        text = await answer.text()
                        if answer.status != 200:
                            self.statuses[f"{answer.status} {text[:300]}"] += 1
                        else:
                            whole = text.rstrip().endswith("data: [DONE]")
                            self.statuses[200 if whole else f"cut after {text[-80:]!r}"] += 1
                except aiohttp.ClientError as err:
                    self.statuses[f"{type(err).__name__}: {err}"] += 1
                await asyncio.sleep(0.05)


@pytest.mark.timeout(900)
async def test_a_release_with_other_tables_is_rolled_out_and_back_without_a_failed_request(cluster, tmp_path):
    later = next_release(tmp_path)
    cluster.images.next_releases["0.2.0"] = tmp_path
    cluster.put_secret("own", SECRET)
    async with ScriptedWorker(models=["tiny-llama"], script=Script(tokens=20, gap=0.05)) as worker:
        external = [{"id": "scripted", "kind": "openai", "url": worker.url}]
        values = SEVERAL | {"workers": {"embedded": {"replicas": 0}, "external": external}}
        await cluster.install(values)
        await radixgate(cluster, "tenants", "set", "acme")
        key = (await radixgate(cluster, "keys", "create", "acme", "--quiet")).strip()
        await asyncio.sleep(3)  # Each gateway follows the database within a second.
        assert (await chat(cluster, key))[0] == 200

        load = Load(cluster, key)
        next_values = values | {"gateway": {"replicas": 2, "image": {"tag": "0.2.0"}}}
        await cluster.install(next_values, command="upgrade")
        assert f"this radixgate needs {later}" in await radixgate(cluster, "database", "check")
        # The release before serves on the later tables.
        await cluster.helm("rollback", "release", "1", "--wait", "--timeout", "170s")
        await cluster.wait_until_ready()
        said = await radixgate(cluster, "database", "check")
        assert f"version {later}; this radixgate needs {REVISION}" in said
        assert "serves on these later tables" in said
        statuses = await load.end()
        assert set(statuses) == {200}, f"{statuses}\n{cluster.logs()}"
        assert statuses[200] > 20
        assert (await chat(cluster, key))[0] == 200
