"""`radixgate serve --processes 2`: one port, one quota account, one metrics page; dead processes are restarted."""

import asyncio
import json
import os
import re
import signal

import aiohttp
import pytest

from gateway.tenants.keys import new_key, pepper
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.forks import fork_module
from tests.stage.processes import gateway_processes, has_ended

SECRET = "a secret of the tests"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Several:
    """The processes from outside."""

    def __init__(self, process, url, admin, key):
        self.process, self.url, self.admin, self.key = process, url, admin, key

    async def chat(self, http, **more):
        headers = {"Authorization": f"Bearer {self.key}"}
        return await http.post(f"{self.url}/v1/chat/completions", json={**BODY, **more}, headers=headers)

    def children(self):
        """Process ids of the gateways, by number."""
        return gateway_processes(self.process.pid)

    async def metrics(self):
        async with aiohttp.ClientSession() as http, http.get(f"{self.admin}/metrics") as answer:
            return await answer.text()


@pytest.fixture
async def several(tmp_path, valkey):
    async with ScriptedWorker() as worker:
        key = new_key(pepper(SECRET.encode()))
        settings = {
            "listen": {"port": 0, "processes": 2},
            "admin": {"port": 0},
            "redis": {"prefix": f"several-{tmp_path.name}", "timeout_ms": 2000},
            "state_directory": str(tmp_path / "state"),
            "deployment_secret": SECRET,
            "workers": [{"id": "w", "kind": "sglang", "url": worker.url}],
            "plans": [{"name": "p", "limits": [{"requests": 20, "per": "day"}]}],
            "tenants": [{"id": "acme", "plan": "p", "keys": [{"id": key.id, "hash": key.hash}]}],
            "drain": {"notice_seconds": 0, "seconds": 20},
        }
        file = tmp_path / "gateway.yaml"
        file.write_text(json.dumps(settings))
        with (tmp_path / "log").open("wb") as errors:
            process = await fork_module("gateway", "serve", "--config", str(file), errors=errors)
        try:
            async with asyncio.timeout(120):
                said = (await process.stdout.readline()).decode()
            assert said, (tmp_path / "log").read_text()
            url = re.match(r"radixgate ready at (\S+)", said)[1]
            admin = re.findall(r"operators at (http://127[\w.:]+)", (tmp_path / "log").read_text())[0]
            several = Several(process, url, admin, key.text)
            async with asyncio.timeout(60):
                # A gateway that is ready may still wait for the first word of a slow worker.
                while len(re.findall(r'worker_health\{.*state="up".*\} 1\.0', await several.metrics())) < 2:
                    await asyncio.sleep(0.05)
            yield several, worker
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_several_processes_are_one_gateway(several):
    gateway, worker = several
    assert sorted(gateway.children()) == [0, 1]
    statuses = []
    for _ in range(25):
        async with aiohttp.ClientSession() as http, await gateway.chat(http) as answer:
            statuses.append(answer.status)
    # One account of quotas, wherever a connection goes.
    assert statuses == [200] * 20 + [429] * 5
    metrics = await gateway.metrics()
    counts = re.findall(r'^radixgate_requests_total\{process="(\d)",.*code="ok".*\} (\S+)$', metrics, re.M)
    assert sum(float(count) for _, count in counts) == 20
    assert {"0", "1"} == set(re.findall(r'^radixgate_worker_health\{process="(\d)"', metrics, re.M))
    assert metrics.count("# TYPE radixgate_requests_total ") == 1
    # A process that dies is started again, and the other serves on.
    before = gateway.children()
    os.kill(before[1], signal.SIGKILL)
    async with asyncio.timeout(60):
        while not has_ended(before[1]) or 1 not in gateway.children():
            await asyncio.sleep(0.1)
    # What is asked to stop finishes its streams first.
    worker.then(tokens=5, gap=0.3)
    async with aiohttp.ClientSession() as http:
        async with http.get(
            f"{gateway.url}/v1/models", headers={"Authorization": f"Bearer {gateway.key}"}
        ) as got:
            assert got.status == 200
    gateway.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(gateway.process.wait(), 60) == 0
    assert gateway.children() == {}


async def test_several_processes_reload_together(several, tmp_path):
    gateway, worker = several
    file = tmp_path / "gateway.yaml"
    settings, new = json.loads(file.read_text()), new_key(pepper(SECRET.encode()))
    settings["tenants"][0]["keys"] = [{"id": new.id, "hash": new.hash}]
    settings["plans"][0]["limits"] = []
    gate = asyncio.Event()
    worker.then(tokens=3, until=gate)
    async with aiohttp.ClientSession() as http:
        stream = asyncio.ensure_future(gateway.chat(http, stream=True))
        async with asyncio.timeout(60):
            while not worker.seen:
                assert not stream.done(), await stream
                await asyncio.sleep(0.01)
        worker.then(until=None)
        file.write_text(json.dumps(settings))
        gateway.process.send_signal(signal.SIGHUP)
        log = tmp_path / "log"
        async with asyncio.timeout(60):
            while log.read_text().count("the settings are reloaded: plans, tenants") < 2:
                await asyncio.sleep(0.02)
        old = gateway.key
        for key, expected in ((old, {401}), (new.text, {200})):
            gateway.key, statuses = key, set()
            for _ in range(12):  # Connections of their own: the kernel spreads them.
                async with aiohttp.ClientSession() as each, await gateway.chat(each) as answer:
                    statuses.add(answer.status)
            assert statuses == expected
        gate.set()
        async with await stream as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
