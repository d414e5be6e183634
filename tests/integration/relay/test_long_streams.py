"""A stream takes no more memory the longer it gets, for every API; a response, which is kept, has a bound."""

import aiohttp
import pytest

from gateway.web.responses.events import OUTPUT_BYTES_MAX
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.processes import GatewayProcess, resident_bytes

FRAME_WORDS = 10_000
FRAMES = 600
"""Sixty megabytes, and more than a response may have."""
GROWTH_BYTES_MAX = 24 * 1024**2
RESPONSE_GROWTH_BYTES_MAX = 128 * 1024**2
"""A response is kept until its last event, which has all of it again; so it has a bound, OUTPUT_BYTES_MAX."""
SAID = [{"role": "user", "content": "hi"}]
BODIES = {
    "chat/completions": {"messages": SAID},
    "completions": {"prompt": "hi"},
    "messages": {"messages": SAID, "max_tokens": 8},
    "responses": {"input": SAID, "store": False},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_long_stream_leaves_memory_as_it_was(tmp_path, valkey, path):
    async with ScriptedWorker() as worker, aiohttp.ClientSession() as http:
        worker.then(frame_tokens=FRAME_WORDS, tokens=FRAME_WORDS * FRAMES)
        settings = {
            "redis": {"url": valkey.url, "prefix": tmp_path.name.replace("_", "-")[-40:]},
            "database": {"url": "none"},
            "drain": {"notice_seconds": 0},
            "deployment_secret": "a secret of the tests",
            "workers": [{"id": "w0", "kind": "sglang", "url": worker.url}],
        }
        gateway = GatewayProcess("gateway", tmp_path, settings)
        await gateway.start()
        try:
            await gateway.all_up(http)
            before, largest, got = resident_bytes(gateway.pid), 0, 0
            body = {"model": "m", "stream": True, **BODIES[path]}
            async with http.post(f"http://127.0.0.1:{gateway.port}/v1/{path}", json=body) as answer:
                assert answer.status == 200
                async for data in answer.content.iter_any():
                    if got // 2**22 != (got + len(data)) // 2**22:
                        largest = max(largest, resident_bytes(gateway.pid))
                    got += len(data)
            kept = path == "responses"
            assert (b"response.failed" in data) is kept
            assert got > (OUTPUT_BYTES_MAX // 2 if kept else FRAMES * FRAME_WORDS)
            assert largest - before < (RESPONSE_GROWTH_BYTES_MAX if kept else GROWTH_BYTES_MAX)
        finally:
            await gateway.stop()
