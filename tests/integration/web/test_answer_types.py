"""Answers of the Messages and Responses APIs have the types of the official SDKs: no other field, no other null."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.fakes.obedient_worker import ObedientWorker

ROOT = Path(__file__).parents[3]
PROMPTS = ("Hello", "think first", 'use add {"a": 2, "b": 3}', "refuse this", "say too much")
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
UNTYPED = tuple(
    f"{field}: the type has no such field"
    for field in (".store", ".name", ".item.status", ".output[].status")
)
"""OpenAI's answers have these fields (`name` at the end of a function's arguments, the status of a custom tool's
call), the SDK's types do not."""
DATABASE = {"database.url": "sqlite:///radixgate.db"}
"""Where responses are kept."""

MESSAGE = {"model": "m", "max_tokens": 64, "tools": [{"name": "add", "input_schema": PARAMETERS}]}
RESPONSE = {
    "model": "m",
    "tools": [{"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}],
}

MORE_RESPONSES = (
    {
        "model": "m",
        "input": "think first",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "metadata": {"a": "b"},
    },
    {"model": "m", "input": 'use patch {"input": "a"}', "tools": [{"type": "custom", "name": "patch"}]},
    {
        "model": "m",
        "input": 'use n__f {"a": 1}',
        "tools": [
            {
                "type": "namespace",
                "name": "n",
                "description": "d",
                "tools": [{"type": "function", "name": "f"}],
            },
            {"type": "web_search"},
        ],
    },
    {
        "model": "m",
        "input": "Hello",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS, "strict": True}},
    },
)


async def mistakes(installed, answers):
    if not installed.is_dir():
        pytest.skip(f"{installed.name} is not installed; `make test` puts it into .tools")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("answer_types.py"))),
        env={**os.environ, "PYTHONPATH": str(installed)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    lines = "".join(json.dumps({"type": kind, "value": value}) + "\n" for kind, value in answers)
    output, _ = await asyncio.wait_for(process.communicate(lines.encode()), 90)
    assert process.returncode == 0
    return set(output.decode().splitlines())


async def answers_of(running, path, bodies, whole_type, event_type):
    """Return every answer, whole and streamed, with the SDK's type of it."""
    answers = []
    for body in bodies:
        async with running.http.post(
            f"{running.url}{path}", json=body, headers=running.headers()
        ) as response:
            answers.append((whole_type, await response.json()))
            assert response.status == 200, answers
        streamed = {**body, "stream": True}
        async with running.http.post(
            f"{running.url}{path}", json=streamed, headers=running.headers()
        ) as response:
            text = await response.text()
        events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
        answers += [(event_type, event) for event in events if event["type"] != "ping"]
    return answers


async def test_messages_have_the_types_of_the_anthropic_sdk(gateway):
    async with ObedientWorker() as worker, gateway(worker) as running:
        bodies = [{**MESSAGE, "messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
        bodies.append({**bodies[0], "stop_sequences": ["a"], "max_tokens": 0})
        types = "anthropic.types:Message", "anthropic.types:RawMessageStreamEvent"
        answers = await answers_of(running, "/v1/messages", bodies, *types)
        headers = {**running.headers(), "anthropic-version": "2023-06-01"}
        async with running.http.get(f"{running.url}/v1/models", headers=headers) as response:
            answers += [("anthropic.types:ModelInfo", model) for model in (await response.json())["data"]]
    assert await mistakes(ROOT / ".tools" / "anthropic", answers) == set()


async def test_a_text_without_citations_has_no_field_for_them(gateway):
    """Clients that check answers with schemas of their own refuse a null here."""
    async with ObedientWorker() as worker, gateway(worker) as running:
        bodies = [{**MESSAGE, "messages": [{"role": "user", "content": "Hello"}]}]
        answers = await answers_of(running, "/v1/messages", bodies, "whole", "event")
    (whole,) = [value for kind, value in answers if kind == "whole"]
    assert whole["content"] == [{"type": "text", "text": "You said: Hello"}]
    starts = [value["content_block"] for _, value in answers if value["type"] == "content_block_start"]
    assert starts == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("major", ["2", "3"])
async def test_responses_have_the_types_of_the_openai_sdk(gateway, major):
    async with ObedientWorker() as worker, gateway(worker, **DATABASE) as running:
        bodies = [*({**RESPONSE, "input": prompt} for prompt in PROMPTS), *MORE_RESPONSES]
        types = "openai.types.responses:Response", "openai.types.responses:ResponseStreamEvent"
        answers = await answers_of(running, "/v1/responses", bodies, *types)
    found = await mistakes(ROOT / ".tools" / f"openai-{major}", answers)
    assert {mistake for mistake in found if not mistake.endswith(UNTYPED)} == set()
