"""The access log of a gateway: one line for each request however it ends, and nothing that a client said."""

import asyncio
import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

CANARY = "canary-of-the-client-5f02"
HEAD_BYTES_MAX = 1000


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def line(running, path, number):
    await running.until(lambda: len(lines(path)) > number)
    assert len(lines(path)) == number + 1
    return lines(path)[number]


async def test_each_request_is_one_line_without_prompt_or_answer(gateway, tmp_path):
    path = tmp_path / "access.jsonl"
    settings = {"telemetry.access_log": str(path)}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        key = running.keys["acme"]
        async with running.chat(CANARY, user=CANARY) as response:
            body = await response.read()
        first = await line(running, path, 0)
        assert first | {"ms": 0, "at": ""} == {
            "at": "",
            "tenant": "acme",
            "key_id": key.id,
            "method": "POST",
            "route": "/v1/chat/completions",
            "status": 200,
            "bytes": first["bytes"],
            "ms": 0,
            "request_id": response.headers["x-request-id"],
            "code": "ok",
            "model": "m",
            "class": "chat",
            "stream": False,
            "worker": "w0",
            "attempts": 1,
            "queue_ms": None,
            "ttft_ms": None,
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "output_tokens": 4,
            "trace_id": None,
        }
        assert first["ms"] > 0
        assert len(body) < first["bytes"] < len(body) + HEAD_BYTES_MAX

        async with running.chat(CANARY, stream=True) as response:
            body = await response.read()
        streamed = await line(running, path, 1)
        assert streamed["status"] == 200
        assert streamed["stream"] is True
        assert 0 < streamed["ttft_ms"] <= streamed["ms"]
        assert len(body) < streamed["bytes"] < len(body) + HEAD_BYTES_MAX

        asked = (
            ("GET", f"/v1/models?secret={CANARY}", running.headers(), 200, "/v1/models", "acme"),
            ("GET", f"/v1/models/{CANARY}", running.headers(), 404, "/v1/models/{model}", "acme"),
            ("GET", f"/{CANARY}", running.headers(), 404, "/{anything}", ""),
            ("POST", "/v1/embeddings", {"x-api-key": CANARY}, 401, "/v1/embeddings", ""),
            ("PURGE", "/v1/models", {"user-agent": CANARY, "referer": CANARY}, 405, "/{anything}", ""),
        )
        for number, (method, url, headers, status, route, tenant) in enumerate(asked, start=2):
            async with running.http.request(method, running.url + url, headers=headers) as response:
                body = await response.read()
                assert response.status == status
            said = await line(running, path, number)
            assert (said["status"], said["route"], said["tenant"]) == (status, route, tenant)
            assert said.get("code") == ("invalid_api_key" if status == 401 else None)
            assert len(body) < said["bytes"] < len(body) + HEAD_BYTES_MAX
            assert said["method"] == ("" if method == "PURGE" else method)
            assert said["request_id"] == response.headers["x-request-id"]
        text = path.read_text()
        assert CANARY not in text
        assert key.text not in text
        assert key.text.rsplit("-", 1)[1] not in text


@pytest.mark.parametrize("begun", [False, True], ids=["before the first byte", "in its answer"])
async def test_a_client_that_leaves_is_a_499(gateway, tmp_path, begun):
    path = tmp_path / "access.jsonl"
    async with ScriptedWorker() as worker, gateway(worker, **{"telemetry.access_log": str(path)}) as running:
        worker.then(silent=not begun, tokens=1000, gap=0.02)

        async def ask():
            async with running.chat(stream=True) as response:
                await response.content.readline()
                response.close()

        call = asyncio.create_task(ask())
        await running.until(lambda: worker.seen)
        if begun:
            await call
        else:
            call.cancel()
        said = await line(running, path, 0)
        assert (said["status"], said["tenant"]) == (499, "acme")
        assert said["request_id"] == worker.seen[0].headers["x-request-id"]
        await running.until(lambda: running.idle)


async def test_a_log_that_cannot_be_written_keeps_no_request_waiting(gateway, tmp_path):
    settings = {"telemetry.access_log": str(tmp_path / "missing" / "access.jsonl")}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        for _ in range(3):
            async with running.chat() as response:
                assert response.status == 200
                await response.read()
        await running.until(lambda: running.here.gateway.access_log.dropped == 3)
        async with running.http.get(running.admin + "/metrics") as response:
            assert "radixgate_access_log_dropped_total 3.0" in await response.text()


async def test_without_the_setting_there_is_no_log(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat() as response:
            assert response.status == 200
        assert running.here.gateway.access_log is None
