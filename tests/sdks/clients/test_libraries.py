"""Client libraries, unchanged, against a gateway: the same as directly at the worker, and errors that they know.

Each script does the same with its library: a chat, a stream, a loop with a tool, an answer in a schema, an image, a
stream that is left, a wrong key, a used-up quota, a prompt that is too long.
"""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.fakes.obedient_worker import ObedientWorker

INSTALLED = Path(__file__).parents[3] / ".tools" / "sdks-clients"
SCRIPTS = Path(__file__).parent / "scripts"
MODELS = json.dumps([{"name": "m", "context_length": 10_000}])
TENANTS = {"acme": {}, "globex": {"limits": [{"requests": 1, "per": "day"}]}}
DATABASE = {"database.url": "sqlite:///radixgate.db"}
"""Where responses are kept."""

PLACE = {"city": "text", "days": 1}
SAME = {
    "chat": "You said: Hello",
    "stream": "You said: Hello",
    "tools": "The tool said: 5",
    "schema": PLACE,
    "image": "You said with 1 images: What is this?",
}
REFUSED = {"wrong_key": 401, "over_quota": 429}
TOO_LONG = ("maximum context length", "prompt is too long")
"""Words of OpenAI's and of Anthropic's API, by which clients shorten a conversation."""
SECONDS_MAX = 300
"""Most of a script's time is spent on imports, of which a busy machine makes minutes."""

AI_SDK_ONLY = {"streamed_tools": "The tool said: 5", "thought": "You said: think first"}
LIBRARIES = [
    *((f"ai-sdk{version}", "ai_sdk.mjs", api) for version in ("", "-6") for api in ("openai", "compatible")),
    *(
        (f"ai-sdk{version}", "ai_sdk.mjs", api)
        for version in ("", "-6")
        for api in ("anthropic", "responses")
    ),
    *(("openai-agents", "openai_agents_client.py", api) for api in ("chat", "responses")),
    *(("pydantic-ai", "pydantic_ai_client.py", api) for api in ("openai", "responses", "anthropic")),
    *(("litellm", "litellm_client.py", api) for api in ("openai", "anthropic")),
    ("llama-index", "llama_index_client.py", "chat"),
    ("haystack", "haystack_client.py", "chat"),
    ("semantic-kernel", "semantic_kernel_client.py", "chat"),
]
CHAT_COMPLETIONS = ("openai", "compatible", "chat")
"""The APIs that the worker speaks itself."""


async def run_script(folder, script, api, directory, url, key, spent_key):
    """Return the results that a script prints as its last line."""
    installed = INSTALLED / folder
    if not (installed / ".done").exists():
        pytest.skip(f"{folder} is not installed; tests/sdks/clients/install says why")
    command = [str(installed / "bin" / "python"), str(SCRIPTS / script)]
    if script.endswith(".mjs"):
        # Node looks for packages beside the script.
        if not (directory / "node_modules").exists():
            (directory / "node_modules").symlink_to(installed / "node_modules")
        command = ["node", shutil.copy(SCRIPTS / script, directory)]
    environment = {
        **os.environ,
        "RADIXGATE_URL": url,
        "RADIXGATE_API_KEY": key,
        "RADIXGATE_SPENT_KEY": spent_key,
        "PYTHONPATH": "",
    }
    process = await asyncio.create_subprocess_exec(
        *command, api, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(output.decode().splitlines()[-1])


def thoughts_sent_back(worker):
    """Return the last words of each conversation in which the model gets its reasoning back."""
    return {
        seen.body["messages"][-1]["content"]
        for seen in worker.seen
        if any("reasoning_content" in message for message in seen.body["messages"])
    }


def read(results):
    """Return results with a schema's answer as an object, whatever form the library gives it."""
    schema = results.get("schema")
    return results | ({"schema": json.loads(schema)} if isinstance(schema, str) else {})


@pytest.mark.parametrize(
    ("folder", "script", "api"), LIBRARIES, ids=[f"{folder}-{api}" for folder, _, api in LIBRARIES]
)
async def test_a_library_works_as_directly_and_maps_every_error(gateway, tmp_path, folder, script, api):
    options = {"kind": "openai", "models": MODELS, "tenants": TENANTS, **DATABASE}
    async with ObedientWorker() as worker, gateway(worker, **options) as running:
        async with running.chat(tenant="globex") as response:
            assert response.status == 200
        keys = running.keys["acme"].text, running.keys["globex"].text
        results = read(await run_script(folder, script, api, tmp_path, running.url, *keys))
        await running.until(lambda: running.idle)
        left = [seen for seen in worker.seen if "slowly" in json.dumps(seen.body["messages"])]
        assert all(seen.ended == "aborted" for seen in left)
        if folder.startswith("ai-sdk") and api in ("anthropic", "responses"):
            assert "And then?" in thoughts_sent_back(worker)
        directly = {}
        if api in CHAT_COMPLETIONS:
            directly = read(await run_script(folder, script, api, tmp_path, worker.url, *keys))
    assert any(words in results["too_long"] for words in TOO_LONG), results["too_long"]
    expected = SAME | REFUSED
    if folder == "llama-index":
        expected["tools"] = "5"  # the library returns the tool's own result
    if folder.startswith("ai-sdk"):
        expected |= AI_SDK_ONLY
    found = {name: value for name, value in results.items() if name in expected}
    assert found == {name: value for name, value in expected.items() if name in results}
    assert {name: directly[name] for name in directly if name in SAME} == (
        {name: results[name] for name in directly if name in SAME}
    )
    assert results.keys() >= {*SAME, *REFUSED} - ({"schema"} if folder == "litellm" else set())
