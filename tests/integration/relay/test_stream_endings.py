"""The ending of streams: an error, or an end without a sign of it, is a failure of the worker."""

import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

CUDA = {"error": {"message": "cuda oom at /opt/engine/run.py", "type": "InternalServerError", "code": 500}}
ERROR_AND_DONE = b"data: " + json.dumps(CUDA).encode() + b"\n\ndata: [DONE]\n\n"
SAID = [{"role": "user", "content": "hi"}]
BODIES = {
    "chat/completions": {"messages": SAID},
    "completions": {"prompt": "hi"},
    "messages": {"messages": SAID, "max_tokens": 8},
    "responses": {"input": SAID, "store": False},
}
ENDINGS = {
    "an error and [DONE]": {"last_frame": ERROR_AND_DONE},
    "an error alone": {"last_frame": ERROR_AND_DONE.partition(b"\n\n")[0] + b"\n\n"},
    "half an error": {"finish_reason": None, "last_frame": ERROR_AND_DONE[:20]},
    "no finish reason and no [DONE]": {"finish_reason": None, "last_frame": b""},
}


async def text_of(running, path="chat/completions", **more):
    body = {"model": "m", "stream": True, **BODIES[path], **more}
    async with running.http.post(f"{running.url}/v1/{path}", json=body, headers=running.headers()) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("kind", ["sglang", "openai"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_stream_that_fails_ends_with_an_error_in_the_clients_dialect(
    gateway, records, path, ending, kind
):
    async with ScriptedWorker() as worker, gateway(worker, kind=kind) as running:
        worker.then(**ENDINGS[ending])
        status, text = await text_of(running, path)
        (health,) = [one.health for one in running.here.gateway.fleet]
    assert status == 200
    last = text.strip().split("\n\n")[-1]
    error = json.loads(last.partition("data: ")[2])
    told = error["response"]["error"] if path == "responses" else error["error"]
    if path == "messages":
        assert (last.splitlines()[0], told["type"]) == ("event: error", "api_error")
    elif path == "responses":
        assert last.splitlines()[0] == "event: response.failed"
    else:
        assert (told["code"], told["type"]) == ("stream_interrupted", "server_error")
    assert "w0" in text
    assert "cuda" not in text
    assert "engine" not in text
    assert "[DONE]" not in text
    assert records[-1].code == "stream_interrupted"
    assert health.failures == 1


async def test_a_worker_whose_streams_all_fail_gets_no_requests_for_a_while(gateway, records):
    async with ScriptedWorker() as bad, ScriptedWorker() as good, gateway(bad, good) as running:
        bad.then(last_frame=ERROR_AND_DONE)
        for at in range(40):
            await text_of(running, messages=[{"role": "user", "content": f"{at} " * 60}])
        assert 1 <= len(bad.seen) <= 10
        assert len(good.seen) >= 30


async def test_a_stream_that_begins_with_an_error_is_answered_by_another_worker(gateway, records):
    async with ScriptedWorker() as bad, ScriptedWorker() as good, gateway(bad, good) as running:
        bad.then(tokens=0, last_frame=ERROR_AND_DONE)
        for at in range(8):
            status, text = await text_of(running, messages=[{"role": "user", "content": f"{at} " * 60}])
            assert (status, "w3" in text, "[DONE]" in text) == (200, True, True)
    assert bad.seen
    assert {record.code for record in records} == {"ok"}


async def test_a_stream_that_begins_with_an_error_is_a_502_if_no_worker_is_left(gateway, records):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=0, last_frame=ERROR_AND_DONE)
        status, text = await text_of(running)
    assert (status, json.loads(text)["error"]["code"]) == (502, "worker_error")
    assert "cuda" not in text
    assert records[-1].charged is None


async def test_a_mistake_of_the_client_that_is_found_in_the_stream_is_its_error(gateway, records):
    refusal = {"error": {"message": "top_k must be positive", "type": "BadRequestError", "code": 400}}
    async with ScriptedWorker() as worker, gateway(worker) as running:
        frame = b"data: " + json.dumps(refusal).encode() + b"\n\ndata: [DONE]\n\n"
        worker.then(tokens=0, usage_in_last_frame=True, last_frame=frame)
        status, text = await text_of(running)
        (health,) = [one.health for one in running.here.gateway.fleet]
    assert (status, json.loads(text)["error"]["message"]) == (400, "top_k must be positive")
    assert (health.failures, records[-1].charged.prompt_tokens) == (0, 0)


@pytest.mark.parametrize("stream", [False, True], ids=["asked for whole", "put together from a stream"])
async def test_a_whole_answer_that_is_an_error_is_requested_elsewhere(gateway, records, stream):
    async with ScriptedWorker() as bad, ScriptedWorker() as good, gateway(bad, good) as running:
        if stream:
            running.knows_shapes()
        bad.then(whole=json.dumps(CUDA).encode(), last_frame=ERROR_AND_DONE)
        for at in range(8):
            async with running.chat(f"{at} " * 60) as response:
                assert (response.status, "cuda" in await response.text()) == (200, False)
    assert bad.seen
    assert {record.code for record in records} == {"ok"}


@pytest.mark.parametrize("kind", ["sglang", "openai"])
@pytest.mark.parametrize(
    "ending",
    [{"finish_reason": None}, {"finish_reason": None, "last_frame": b"data: [DONE]"}, {"last_frame": b""}],
    ids=["[DONE] alone", "[DONE] without its blank line", "a finish reason alone"],
)
async def test_a_stream_that_has_ended_by_one_sign_alone_is_an_answer(gateway, records, ending, kind):
    async with ScriptedWorker() as worker, gateway(worker, kind=kind) as running:
        worker.then(**ending)
        status, text = await text_of(running)
    assert (status, "w3" in text, "error" in text) == (200, True, False)
    assert records[-1].code == "ok"
