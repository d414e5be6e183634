"""open-webui's backend, unchanged: what its chats get through the gateway is what they get directly."""

import asyncio
import base64
import json
import os
import signal
from contextlib import asynccontextmanager

import pytest

from tests.fakes.obedient_worker import ObedientWorker
from tests.sdks.clients.test_libraries import DATABASE, INSTALLED, PLACE, SAME, TENANTS, TOO_LONG
from tests.sdks.clients.test_pages import BLOCK, MODEL, PAGES_FOLDER
from tests.sdks.clients.test_programs import PIXEL
from tests.stage.ports import free_port

PROGRAM = INSTALLED / "open-webui" / "bin" / "open-webui"
MODELS = json.dumps([{"name": MODEL, "context_length": 10_000}])
START_SECONDS_MAX = 300
SETTINGS = {
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "a secret of the tests",
    "ENABLE_OLLAMA_API": "False",
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
}
"""One user, and nothing that is downloaded."""
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}


class OpenWebui:
    """A running open-webui, and its user."""

    def __init__(self, http, url):
        self.http = http
        self.url = url
        self.headers = {}

    async def post(self, path, body):
        """Return the status of the answer, and its JSON."""
        async with self.http.post(self.url + path, json=body, headers=self.headers) as response:
            return response.status, await response.json()

    async def models(self):
        """Return the ids of all models, as a browser asks for them."""
        async with self.http.get(f"{self.url}/api/models", headers=self.headers) as response:
            return {model["id"] for model in (await response.json())["data"]}

    def request(self, connection, content, **more):
        """Return the body of a chat with the model of a connection; None: of the one that the page sets up."""
        messages = [{"role": "user", "content": content}]
        model = f"{connection}.{MODEL}" if connection is not None else MODEL
        return {"model": model, "messages": messages, "stream": False, **more}

    async def message(self, connection, content, **more):
        """Return the message that answers a chat."""
        status, answer = await self.post("/api/chat/completions", self.request(connection, content, **more))
        assert status == 200, answer
        return answer["choices"][0]["message"]

    @asynccontextmanager
    async def stream(self, connection, content):
        """Send a chat that is streamed."""
        body = self.request(connection, content, stream=True)
        url = f"{self.url}/api/chat/completions"
        async with self.http.post(url, json=body, headers=self.headers) as response:
            assert response.status == 200
            yield response


@asynccontextmanager
async def open_webui(http, directory, connections):
    """Run open-webui with these connections: their URLs and keys, by their names."""
    port = free_port()
    log = directory / "open-webui.log"
    ((_, code),) = BLOCK.findall((PAGES_FOLDER / "open-webui.md").read_text(encoding="utf-8"))
    url, key = connections["gateway"]
    code = code.replace("http://127.0.0.1:8000", url).replace("YOUR_KEY", key).rstrip("\n")
    process = await asyncio.create_subprocess_exec(
        *("bash", "-e", "-c", f"{code} --host 127.0.0.1 --port {port}"),
        cwd=directory,
        env={
            **os.environ,
            **SETTINGS,
            "DATA_DIR": str(directory),
            "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
            "PYTHONPATH": "",
        },
        stdout=log.open("ab"),
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        client = OpenWebui(http, f"http://127.0.0.1:{port}")
        async with asyncio.timeout(START_SECONDS_MAX):
            while True:
                assert process.returncode is None, log.read_text()[-3000:]
                try:
                    _, user = await client.post("/api/v1/auths/signin", {"email": "", "password": ""})
                    break
                except OSError:
                    await asyncio.sleep(0.5)
        client.headers = {"Authorization": f"Bearer {user['token']}"}
        assert await client.models() == {MODEL}
        status, answer = await client.post("/api/chat/completions", client.request(None, "Hello"))
        assert status == 200, answer
        urls, keys = zip(*connections.values(), strict=True)
        settings = {
            "ENABLE_OPENAI_API": True,
            "OPENAI_API_BASE_URLS": [f"{url}/v1" for url in urls],
            "OPENAI_API_KEYS": keys,
            "OPENAI_API_CONFIGS": {
                str(at): {"enable": True, "prefix_id": name, "model_ids": [MODEL]}
                for at, name in enumerate(connections)
            },
        }
        status, answer = await client.post("/openai/config/update", settings)
        assert status == 200, answer
        assert {f"{name}.{MODEL}" for name in connections} <= await client.models()
        yield client
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def answers(client, connection):
    """Return what the chats of one connection get."""
    use_add = 'use add {"a": 2, "b": 3}'
    called = await client.message(connection, use_add, tools=[ADD])
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "5"}
    messages = [{"role": "user", "content": use_add}, called, result]
    told = await client.message(connection, "", messages=messages, tools=[ADD])
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    place = await client.message(connection, "Where?", response_format=form)
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    image = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    async with client.stream(connection, "Hello") as response:
        lines = [line[6:] async for line in response.content if line.startswith(b"data: {")]
    chunks = [choice["delta"] for line in lines for choice in json.loads(line).get("choices", ())]
    return {
        "chat": (await client.message(connection, "Hello"))["content"],
        "stream": "".join(delta.get("content") or "" for delta in chunks),
        "tools": told["content"],
        "schema": json.loads(place["content"]),
        "image": (await client.message(connection, image))["content"],
    }


@pytest.mark.timeout(600)
async def test_its_chats_get_the_same_as_directly_and_show_every_error(gateway, tmp_path):
    if not (PROGRAM.parents[1] / ".done").exists():
        pytest.skip("open-webui is not installed; tests/sdks/clients/install says why")
    async with (
        ObedientWorker(models=[MODEL]) as worker,
        gateway(worker, kind="openai", models=MODELS, tenants=TENANTS, **DATABASE) as running,
    ):
        async with running.chat(tenant="globex", model=MODEL) as response:
            assert response.status == 200
        connections = {
            "gateway": (running.url, running.keys["acme"].text),
            "worker": (worker.url, "none"),
            "wrong": (running.url, "wrong"),
            "spent": (running.url, running.keys["globex"].text),
        }
        async with open_webui(running.http, tmp_path, connections) as client:
            through = await answers(client, "gateway")
            assert through == await answers(client, "worker")
            assert through == {**SAME, "schema": PLACE}
            for connection, prompt, words in (
                ("wrong", "Hello", ("Incorrect API key",)),
                ("spent", "Hello", ("is used up",)),
                ("gateway", "word " * 40_000, TOO_LONG),
            ):
                _, answer = await client.post("/api/chat/completions", client.request(connection, prompt))
                assert any(each in json.dumps(answer) for each in words), answer
            async with client.stream("gateway", "count slowly one two three four five six") as response:
                await response.content.readline()
                response.close()
            await running.until(lambda: running.idle)
    slow = [seen for seen in worker.seen if "slowly" in json.dumps(seen.body["messages"][-1])]
    assert [seen.ended for seen in slow] == ["aborted"]
