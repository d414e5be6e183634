"""Names and addresses of workers never reach a client, whatever workers send."""

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

NAMES = ("gpu-node-7", "10.0.0.7", "30007", "/srv/models/secret", "uvicorn-secret")
HEADERS = {
    "server": "uvicorn-secret",
    "via": "1.1 gpu-node-7",
    "x-worker-id": "gpu-node-7",
    "x-served-by": "10.0.0.7:30007",
    "x-powered-by": "uvicorn-secret",
    "x-request-id": "gpu-node-7",
    "x-process-time": "30007",
    "set-cookie": "node=gpu-node-7",
    "location": "http://10.0.0.7:30007/",
    "alt-svc": "h3=gpu-node-7:30007",
    "openai-organization": "gpu-node-7",
    "retry-after": "7",
}
SAID = (
    "max_tokens is too large: cannot reach host gpu-node-7:30007 (10.0.0.7), "
    "no such file /srv/models/secret/config.json, port 30007"
)
CHAT = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
ASKED = {
    "v1/chat/completions": CHAT,
    "v1/completions": {"model": "m", "max_tokens": 4, "prompt": "hi"},
    "v1/messages": CHAT,
    "v1/responses": {"model": "m", "input": "hi"},
}
REFUSAL = {
    "error": {"message": SAID, "type": "at 10.0.0.7", "param": "max_tokens", "code": "gpu-node-7:30007"}
}


async def everything(running, path, **more):
    """Status, and all that a client gets to see."""
    async with running.http.post(
        f"{running.url}/{path}", json={**ASKED[path], **more}, headers=running.headers()
    ) as response:
        text = await response.text()
        return response.status, "\n".join(
            [text, *(f"{name}: {value}" for name, value in response.headers.items())]
        )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ASKED)
async def test_no_header_of_a_worker_reaches_a_client(gateway, path, stream):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(headers=HEADERS)
        for _ in range(2):  # passed as it came, and put together
            status, seen = await everything(running, path, stream=stream)
            assert status == 200, seen
            assert "w1 " in seen
            assert [name for name in NAMES if name in seen] == []
            assert "x-request-id: req-" in seen.lower()


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 500, 503])
async def test_a_refusal_names_the_mistake_and_no_address(gateway, path, status):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(headers=HEADERS, status=status, body=REFUSAL)
        told, seen = await everything(running, path)
    assert [name for name in NAMES if name in seen] == []
    if status < 429:
        assert told == status
        assert "max_tokens is too large" in seen
    else:
        assert told in ((429,) if status == 429 else (502, 503))


async def test_an_answer_does_not_show_where_blocks_are_handed_over(gateway):
    async with ScriptedWorker() as worker, gateway(worker, kind="vllm") as running:
        worker.then(more={"kv_transfer_params": {"remote_host": "10.0.0.7", "remote_port": 30007}})
        status, seen = await everything(running, "v1/chat/completions")
    assert status == 200
    assert '"kv_transfer_params":null' in seen
    assert [name for name in NAMES if name in seen] == []
