"""Very long prompts through a whole gateway: unchanged at the worker, with the right tokens."""

import asyncio
import json
import random

import pytest
from tokenizers import Tokenizer

from tests.fakes.scripted_worker import ScriptedWorker

WORDS = ["word", "Ωmega", "漢字", "\n\n", "<|im_end|>", '"quoted"']


@pytest.fixture(scope="module")
def text():
    # Over a million characters: longer than any bound above which parts of the gateway go piece by piece.
    return " ".join(random.Random(5).choices(WORDS, k=170_000))


@pytest.fixture(scope="module")
def ids():
    return random.Random(5).choices(range(200), k=300_000)


async def ask(running, path, **body):
    url, headers = f"{running.url}/v1/{path}", running.headers()
    async with running.http.post(
        url, json={"model": "m", "max_tokens": 4, **body}, headers=headers
    ) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


def models(checkpoint, **more):
    return json.dumps([{"name": "m", "tokenizer": checkpoint, **more}])


@pytest.mark.parametrize("exact", [False, True], ids=["as text", "as tokens"])
async def test_they_reach_the_worker_as_they_came(gateway, checkpoint, text, ids, exact):
    tokenizer = str(checkpoint) if exact else "text"
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    async with ScriptedWorker() as worker, gateway(worker, models=models(tokenizer)) as running:
        await ask(running, "chat/completions", messages=messages, stream=False, user="user-1")
        await ask(running, "completions", prompt=text)
        await ask(running, "completions", prompt=ids, user="user-1")
        await running.until(lambda: running.idle)
    bodies = [seen.body for seen in worker.seen]
    assert bodies[0]["messages"] == messages
    assert bodies[1]["prompt"] == text
    assert (bodies[2]["prompt"], bodies[2]["user"]) == (ids, "user-1")


async def test_an_engine_gets_the_tokens_of_a_very_long_one(gateway, checkpoint, text, ids):
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    settings = models(str(checkpoint), prompt_ids="all")
    async with ScriptedWorker() as worker, gateway(worker, models=settings) as running:
        await ask(running, "completions", prompt=text)
        await ask(running, "completions", prompt=ids)
    assert worker.seen[0].body["prompt"] == tokenizer.encode(text).ids
    assert worker.seen[1].body["prompt"] == ids


async def test_a_client_that_leaves_while_its_prompt_is_encoded_leaves_nothing_behind(
    gateway, checkpoint, text
):
    async with ScriptedWorker() as worker, gateway(worker, models=models(str(checkpoint))) as running:
        leaving = asyncio.create_task(ask(running, "completions", prompt=text * 3))
        inside = running.here.gateway.drain_state.requests
        await running.until(lambda: inside)
        leaving.cancel()
        await running.until(lambda: running.idle and not inside)
        await ask(running, "completions", prompt="short")
    assert [seen.body["prompt"] for seen in worker.seen] == ["short"]
