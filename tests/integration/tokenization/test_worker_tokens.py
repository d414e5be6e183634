"""Tokens from the engine, and tokens to it, through a whole gateway."""

import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

IDS = list(range(100, 170))


def worker_that_tokenises():
    worker = ScriptedWorker()
    worker.others["/tokenize"] = ("application/json", json.dumps({"tokens": IDS, "count": 70}).encode())
    return worker


def model(**more):
    return {"models": json.dumps([{"name": "m", "tokenizer": "worker", **more}])}


async def complete(running, **more):
    body = {"model": "m", "prompt": "Tell me", "max_tokens": 4, **more}
    url = f"{running.url}/v1/completions"
    async with running.http.post(url, json=body, headers=running.headers()) as answer:
        return answer.status, await answer.json()


async def test_tokens_are_counted_by_the_engine(gateway):
    async with worker_that_tokenises() as worker, gateway(worker, **model(context_length=72)) as running:
        status, told = await complete(running)
        assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
        assert (await complete(running, max_tokens=2))[0] == 200
    assert sorted(worker.seen[0].body) == ["add_special_tokens", "model", "prompt"]
    assert [seen.body["prompt"] for seen in worker.seen] == ["Tell me", "Tell me"]


@pytest.mark.parametrize(
    ("handed", "more", "prompt"),
    [("off", {}, "Tell me"), ("completions", {}, IDS), ("all", {}, IDS), ("all", {"echo": True}, "Tell me")],
    ids=["not by default", "of completions", "of all", "not where the text is to come back"],
)
async def test_an_engine_gets_tokens_where_the_settings_enable_it(gateway, handed, more, prompt):
    async with worker_that_tokenises() as worker, gateway(worker, **model(prompt_ids=handed)) as running:
        assert (await complete(running, **more))[0] == 200
        async with running.chat() as answer:
            assert answer.status == 200
    assert worker.seen[1].body["prompt"] == prompt
    assert worker.seen[3].body.get("input_ids") == (IDS if handed == "all" else None)


async def test_an_engine_that_does_not_tokenise_is_no_trouble(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **model(prompt_ids="all")) as running:
        assert (await complete(running))[0] == 200
    assert worker.seen[0].body["prompt"] == "Tell me"


async def test_a_real_engine_counts_as_it_will_and_answers_tokens_as_it_answers_text(gateway, embedded):
    worker = embedded[0]
    settings = {"models": json.dumps([{"name": "tiny", "tokenizer": "worker", "prompt_ids": "all"}])}
    chat = {
        "model": "tiny",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Tell me of trees. Ω" * 9}],
    }
    text = {"model": "tiny", "max_tokens": 12, "temperature": 0, "prompt": "Tell me of trees"}

    async with gateway(worker, kind="embedded", **settings) as running:

        async def asked(base, path, body):
            async with running.http.post(base + path, json=body, headers=running.headers()) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        counted = await asked(running.url, "/v1/messages/count_tokens", chat)
        answered = await asked(running.url, "/v1/chat/completions", chat)
        assert counted["input_tokens"] == answered["usage"]["prompt_tokens"]
        ours, theirs = [await asked(at, "/v1/completions", text) for at in (running.url, worker.url)]
    assert (ours["choices"], ours["usage"]["prompt_tokens"]) == (
        theirs["choices"],
        theirs["usage"]["prompt_tokens"],
    )
