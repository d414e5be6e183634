"""A batch whose gateway is killed: another one goes on, and every row has one result."""

import asyncio
import json
import signal
from collections import Counter

import aiohttp
import pytest

from gateway.tenants.keys import new_key, pepper
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.batches.test_batches import jsonl, line
from tests.integration.files.test_files_api import form
from tests.stage.forks import ForkedChild
from tests.stage.processes import GatewayProcess

SECRET = "a secret of this test"
ROWS, AT_ONCE = 60, 4


@pytest.mark.timeout(300)
async def test_another_gateway_goes_on_where_one_was_killed(own_postgres, valkey, tmp_path):
    key = new_key(pepper(SECRET.encode()))
    async with ScriptedWorker() as worker:
        settings = {
            "redis": {"url": valkey.url, "prefix": "batch-takeover"},
            "database": {"url": own_postgres.url(), "upgrade": "always"},
            "drain": {"notice_seconds": 0},
            "deployment_secret": SECRET,
            "workers": [{"id": "w0", "kind": "sglang", "url": worker.url}],
            "tenants": [{"id": "acme", "keys": [{"id": key.id, "hash": key.hash}]}],
            "files": {"directory": str(tmp_path / "files")},
            "batches": {"running_rows_max": AT_ONCE},
        }
        headers = {"Authorization": f"Bearer {key.text}"}
        first, second = (
            GatewayProcess(name, tmp_path, settings, child=ForkedChild) for name in ("first", "second")
        )

        async def call(gateway, method, path, **more):
            url = f"http://{gateway.host}:{gateway.port}/v1{path}"
            async with http.request(method, url, **more) as answer:
                assert answer.status == 200, await answer.text()
                body = await answer.read()
                return json.loads(body) if answer.content_type == "application/json" else body

        async with aiohttp.ClientSession(headers=headers) as http:
            try:
                await first.start()
                worker.then(first_after=0.02)
                rows = jsonl(*(line(str(number)) for number in range(ROWS)))
                file = await call(first, "POST", "/files", data=form(rows, purpose="batch"))
                asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
                batch = await call(first, "POST", "/batches", json={"input_file_id": file["id"], **asked})
                async with asyncio.timeout(60):
                    while len(worker.seen) < ROWS // 3:
                        await asyncio.sleep(0.005)
                # What it has under way now never ends there.
                worker.then(until=asyncio.Event())
                async with asyncio.timeout(60):
                    while sum(seen.ended == "running" for seen in worker.seen) < AT_ONCE:
                        await asyncio.sleep(0.005)
                await second.start()
                worker.then(until=None)
                first.signal(signal.SIGKILL)
                async with asyncio.timeout(120):
                    while batch["status"] != "completed":
                        await asyncio.sleep(0.2)
                        batch = await call(second, "GET", f"/batches/{batch['id']}")
                output = await call(second, "GET", f"/files/{batch['output_file_id']}/content")
            finally:
                await first.stop()
                await second.stop()
    assert batch["request_counts"] == {"total": ROWS, "completed": ROWS, "failed": 0}
    answered = [json.loads(text)["custom_id"] for text in output.decode().splitlines()]
    assert sorted(answered, key=int) == [str(number) for number in range(ROWS)]
    prompts = Counter(seen.body["messages"][0]["content"] for seen in worker.seen)
    again = [prompt for prompt, count in prompts.items() if count > 1]
    # Only what had no result yet is asked again.
    assert 1 <= len(again) <= 2 * AT_ONCE
    assert max(prompts.values()) == 2
