"""The Messages API through a whole gateway: what the worker is asked, what is charged, headers and refusals."""

import json
import re

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

BODY = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}


def post(running, path="/v1/messages", *, key=None, **more):
    headers = {"x-api-key": key or running.keys["acme"].text, "anthropic-version": "2023-06-01"}
    return running.http.post(running.url + path, json={**BODY, **more}, headers=headers)


async def error_of(response):
    body = await response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"] == response.headers["request-id"]
    return response.status, body["error"]["type"]


def names(text):
    return [line.removeprefix("event: ") for line in text.split("\n") if line.startswith("event: ")]


async def test_a_message_reaches_the_worker_as_a_chat_completion_and_is_charged_like_one(gateway):
    limits = [{"total_tokens": 1000, "per": "day"}, {"requests": 5, "per": "hour"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        for path in ("/v1/messages", "/messages"):
            async with post(running, path, top_k=3) as response:
                answer = await response.json()
                assert response.status == 200
        asked = worker.seen[-1].body
        await running.until(lambda: running.idle)
        async with running.chat(max_tokens=8) as chat:
            left = int(chat.headers["x-ratelimit-remaining-tokens"])
    assert (asked["messages"], asked["top_k"], asked["max_tokens"]) == (BODY["messages"], 3, 8)
    assert asked["cache_salt"]
    assert answer["content"] == [{"type": "text", "text": "w0 w1 w2 w3 "}]
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (10, 4)
    assert (answer["stop_reason"], answer["model"]) == ("max_tokens", "m")
    # Two messages of 14 tokens each are settled, and the chat has reserved its own.
    assert 1000 - 2 * 14 - left in range(8, 40)


async def test_a_stream_has_its_events_and_anthropics_headers(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=[{"requests": 5, "per": "hour"}]) as running,
    ):
        async with post(running, stream=True) as response:
            text = await response.text()
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert response.headers["anthropic-ratelimit-requests-limit"] == "5"
    assert response.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert not [name for name in response.headers if name.lower().startswith("x-ratelimit")]
    assert names(text)[:3] == ["message_start", "ping", "content_block_start"]
    assert names(text)[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert '"output_tokens":4' in text
    assert "[DONE]" not in text


async def test_a_message_of_no_tokens_warms_the_cache_and_has_no_content(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with post(running, max_tokens=0, stop_sequences=["w0"]) as response:
            whole = await response.json()
            assert response.status == 200
        async with post(running, max_tokens=0, stream=True) as response:
            text = await response.text()
    # Engines refuse to answer with nothing: the one token that they compute is counted and not told.
    assert [seen.body["max_tokens"] for seen in worker.seen] == [1, 1]
    assert (whole["content"], whole["stop_reason"], whole["stop_sequence"]) == ([], "max_tokens", None)
    assert whole["usage"]["input_tokens"] == 10
    assert names(text) == ["message_start", "ping", "message_delta", "message_stop"]
    assert '"stop_reason":"max_tokens"' in text


async def test_a_prompt_that_is_too_long_is_counted(gateway, checkpoint):
    models = json.dumps([{"name": "m", "tokenizer": str(checkpoint), "context_length": 100}])
    async with ScriptedWorker() as worker, gateway(worker, models=models) as running:
        for words, least in ((10, 10), (200, 200)):
            turn = [{"role": "user", "content": "word " * words}]
            async with post(running, "/v1/messages/count_tokens", messages=turn) as response:
                assert (await response.json())["input_tokens"] > least
        # What is too long by far need not be counted to the last token.
        turn = [{"role": "user", "content": "word " * 200_000}]
        async with post(running, "/v1/messages/count_tokens", messages=turn) as response:
            assert await error_of(response) == (400, "invalid_request_error")


async def test_an_answer_may_be_as_long_as_its_context_leaves(gateway, checkpoint):
    models = json.dumps([{"name": "m", "tokenizer": str(checkpoint), "context_length": 100}])
    async with ScriptedWorker() as worker, gateway(worker, models=models) as running:
        async with post(running, max_tokens=32_000) as response:
            whole = await response.json()
            assert response.status == 200
        async with post(running, max_tokens=32_000, stream=True) as response:
            text = await response.text()
        async with post(running) as response:
            assert (await response.json())["stop_reason"] == "max_tokens"
        for words in (200, 200_000):
            turn = [{"role": "user", "content": "word " * words}]
            async with post(running, max_tokens=32_000, messages=turn) as response:
                refusal = (await response.json())["error"]
                assert (response.status, refusal["type"]) == (400, "invalid_request_error")
                # By these words coding clients know that it is time to compact.
                assert re.fullmatch(
                    r"prompt is too long: (at least )?\d+ tokens > 100 maximum", refusal["message"]
                )
        # What is left is what is reserved: more than that nothing could use.
        limits = [{"output_tokens": 100, "per": "day"}]
    async with ScriptedWorker() as other, gateway(other, models=models, limits=limits) as running:
        async with post(running, max_tokens=32_000) as response:
            assert response.status == 200
    assert len(worker.seen) == 3
    assert 50 < worker.seen[0].body["max_tokens"] < 100
    assert worker.seen[1].body["max_tokens"] == worker.seen[0].body["max_tokens"]
    assert worker.seen[2].body["max_tokens"] == 8
    assert whole["stop_reason"] == "model_context_window_exceeded"
    assert '"stop_reason":"model_context_window_exceeded"' in text


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
async def test_the_context_length_of_a_model_comes_from_its_workers(gateway, checkpoint, kind):
    listed = {"object": "list", "data": [{"id": "m", "max_model_len": 100}, {"id": "other"}]}
    counted, estimated = json.dumps([{"name": "m", "tokenizer": str(checkpoint)}]), "[]"
    for models in (counted, estimated):
        async with ScriptedWorker() as worker:
            worker.listed = json.dumps(listed).encode()
            async with gateway(worker, kind=kind, models=models) as running:
                async with post(running, max_tokens=32_000) as response:
                    assert (response.status, (await response.json())["stop_reason"]) == (
                        200,
                        "model_context_window_exceeded",
                    )
                assert 20 < worker.seen[-1].body["max_tokens"] < 100
                # An estimate refuses only what is too long by far: only the worker knows.
                turn = [{"role": "user", "content": "word " * 100}]
                async with post(running, max_tokens=32_000, messages=turn) as response:
                    assert response.status == (400 if models == counted else 200)
                async with post(running, model="other", max_tokens=32_000) as response:
                    assert (response.status, worker.seen[-1].body["max_tokens"]) == (200, 32_000)


async def test_a_stream_that_breaks_ends_with_an_error_event(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(break_after=2)
        async with post(running, stream=True) as response:
            text = await response.text()
        await running.until(lambda: running.idle)
    assert names(text)[-1] == "error"
    assert "message_stop" not in names(text)
    last = json.loads(text.split("data: ")[-1])
    assert last["error"]["type"] == "api_error"


async def test_the_list_of_models_has_their_context_where_it_is_known(gateway):
    models = json.dumps([{"name": "m", "context_length": 100, "aliases": ["claude-m"]}, {"name": "n"}])
    lengths = {"m": 4096, "n": 2048, "o": None}
    listed = [{"id": name, "object": "model", "max_model_len": length} for name, length in lengths.items()]
    worker = ScriptedWorker(models=lengths)
    worker.listed = json.dumps({"object": "list", "data": listed}).encode()
    async with worker, gateway(worker, models=models) as running:
        headers = {**running.headers(), "anthropic-version": "2023-06-01"}
        async with running.http.get(running.url + "/v1/models", headers=headers) as response:
            shown = (await response.json())["data"]
        async with running.http.get(running.url + "/v1/models/n", headers=headers) as response:
            one = await response.json()
    bounds = {model["id"]: model["max_input_tokens"] for model in shown}
    assert bounds == {"claude-m": 100, "m": 100, "n": 2048, "o": None}
    assert one["max_input_tokens"] == 2048


async def test_refusals_have_anthropics_shape_wherever_they_come_from(gateway):
    limits = [{"requests": 2, "per": "hour"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        async with post(running, key="wrong") as response:
            assert await error_of(response) == (401, "authentication_error")
        async with post(running, model="none") as response:
            assert await error_of(response) == (404, "not_found_error")
        async with post(running, messages=[]) as response:
            assert await error_of(response) == (400, "invalid_request_error")
        async with running.http.get(running.url + "/v1/messages") as response:
            assert await error_of(response) == (405, "invalid_request_error")
        async with running.http.get(
            running.url + "/v1/models", headers={"anthropic-version": "1"}
        ) as response:
            assert await error_of(response) == (401, "authentication_error")
        worker.then(status=400, body={"error": {"message": "no such thing"}})
        async with post(running) as response:
            assert await error_of(response) == (400, "invalid_request_error")
        worker.then(status=200, body=None)
        for _ in range(2):
            async with post(running) as response:
                last = response
                if response.status != 200:
                    assert await error_of(response) == (429, "rate_limit_error")
    assert last.status == 429
    assert last.headers["retry-after"]
    assert last.headers["anthropic-ratelimit-requests-remaining"] == "0"


async def test_a_client_that_leaves_frees_the_worker(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=1000, gap=0.05)
        async with post(running, stream=True) as response:
            await response.content.readline()
        await running.until(lambda: running.idle and worker.seen[-1].ended == "aborted")


async def test_counting_calls_no_worker_and_costs_nothing(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=[{"requests": 1, "per": "hour"}]) as running,
    ):
        counts = []
        for text in ("hello", "hello " * 50):
            turn = [{"role": "user", "content": text}]
            async with post(running, "/v1/messages/count_tokens", messages=turn) as response:
                counts.append((await response.json())["input_tokens"])
        async with post(running, "/v1/messages/count_tokens", key="wrong") as response:
            assert await error_of(response) == (401, "authentication_error")
        assert not worker.seen
        async with post(running) as response:
            assert response.status == 200
    assert 0 < counts[0] < counts[1]


async def test_a_conversation_has_the_same_blocks_whichever_api_it_came_by(gateway):
    text = "a prefix that is long enough for some blocks " * 40
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other) as running:
        async with running.chat(text) as response:
            await response.read()
        first = one if one.seen else other
        for _ in range(3):
            async with post(running, messages=[{"role": "user", "content": text}]) as response:
                await response.read()
    assert len(first.seen) == 4
