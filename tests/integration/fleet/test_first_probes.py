"""The start of a gateway: it listens once each worker has answered its first probe, or has had its time."""

import asyncio

import aiohttp

from gateway.fleet import fleet
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.ports import free_port


async def first_status(port, path, **request):
    """Send a request as soon as something listens on the port; return the status of the answer."""
    async with aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.request(
                    "POST" if request else "GET", f"http://127.0.0.1:{port}{path}", **request
                ) as answer:
                    return answer.status
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.001)


def first_chat(port):
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    return asyncio.create_task(first_status(port, "/v1/chat/completions", json=body))


async def test_a_request_to_a_gateway_that_has_just_started_is_answered(gateway, monkeypatch):
    """The worker answers its first probe after a second, as on a busy machine."""
    monkeypatch.setattr(fleet, "FIRST_PROBES_SECONDS_MAX", 60)
    ports = {"listen.port": free_port(), "admin.port": free_port()}
    async with ScriptedWorker() as worker:
        worker.frozen = asyncio.Event()
        asyncio.get_running_loop().call_later(1, worker.frozen.set)
        chat = first_chat(ports["listen.port"])
        ready = asyncio.create_task(first_status(ports["admin.port"], "/health/ready"))
        async with gateway(worker, tenants={}, **ports):
            assert (await chat, await ready) == (200, 200)


async def test_a_worker_that_does_not_answer_holds_the_start_for_a_bounded_time(gateway, monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_PROBES_SECONDS_MAX", 3.0)
    port = free_port()
    async with ScriptedWorker() as worker, ScriptedWorker() as silent:
        silent.frozen = asyncio.Event()
        chat = first_chat(port)
        async with gateway(worker, silent, all_up=False, tenants={}, **{"listen.port": port}) as running:
            assert await chat == 200
            assert not running.here.gateway.fleet["w1"].reported


async def test_a_worker_that_is_not_there_does_not_hold_the_start(gateway, monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_PROBES_SECONDS_MAX", 3600)
    port = free_port()
    async with ScriptedWorker() as worker:
        away = ScriptedWorker()
        away.url = f"http://127.0.0.1:{free_port()}"
        chat = first_chat(port)
        async with gateway(worker, away, all_up=False, tenants={}, **{"listen.port": port}):
            assert await chat == 200


async def test_a_gateway_whose_only_worker_has_not_answered_yet_is_not_ready(gateway, monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_PROBES_SECONDS_MAX", 0.1)
    ports = {"listen.port": free_port(), "admin.port": free_port()}
    async with ScriptedWorker() as worker:
        worker.frozen = asyncio.Event()
        ready = asyncio.create_task(first_status(ports["admin.port"], "/health/ready"))
        ready.add_done_callback(lambda _: worker.frozen.set())
        async with gateway(worker, tenants={}, **ports) as running:
            assert await ready == 503
            assert await first_chat(ports["listen.port"]) == 200
            async with running.http.get(running.admin + "/health/ready") as answer:
                assert answer.status == 200


async def test_a_gateway_without_workers_is_ready_at_once(gateway, monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_PROBES_SECONDS_MAX", 3600)
    async with (
        gateway(discovery="[{kind: redis}]") as running,
        running.http.get(running.admin + "/health/ready") as answer,
    ):
        assert answer.status == 200
