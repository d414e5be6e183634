"""The contract of WorkerAdapter: what it raises and sends, and that an abandoned answer stops the worker.

It runs with every adapter that is installed, those of packages included.
"""

import asyncio
import json

import msgspec
import pytest

from radix_cache.match import WorkerId
from tests.fakes.scripted_worker import ScriptedWorker
from workers.adapter import (
    FailureKind,
    StreamBroken,
    SupportsTokenize,
    WorkerCall,
    WorkerFailed,
    WorkerTarget,
)
from workers.adapters.registry import BUILT_IN, adapters

pytestmark = pytest.mark.any_loop

KNOWS_SALT = {"sglang", "embedded", "vllm"}
TAKES_TOKENS = KNOWS_SALT


@pytest.fixture(params=sorted(adapters()))
def kind(request):
    return request.param


@pytest.fixture
async def worker():
    async with ScriptedWorker() as scripted:
        yield scripted


@pytest.fixture
async def adapter(kind, worker):
    made = adapters()[kind](WorkerTarget(id=WorkerId("w"), url=worker.url, api_key="the worker's key"))
    yield made
    made.close()


def call(**changes):
    fields = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "top_k": 7, "model": "alias"}
    return WorkerCall(
        **{
            "id": "req-1",
            "path": "v1/chat/completions",
            "fields": {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()},
            "model": "m",
            "stream": True,
            **changes,
        }
    )


async def read(adapter, asked):
    async with adapter.stream(asked) as answer:
        return answer.status, answer.content_type, b"".join([chunk async for chunk in answer.chunks()])


async def test_a_stream_is_passed_on_whole(adapter):
    status, content_type, body = await read(adapter, call())
    assert (status, content_type) == (200, "text/event-stream")
    assert body.count(b"data: ") == 6
    assert body.endswith(b"data: [DONE]\n\n")


async def test_an_answer_that_is_no_stream_is_passed_on_whole(adapter):
    fields = dict(call().fields, stream=msgspec.Raw(b"false"))
    status, content_type, body = await read(adapter, call(stream=False, fields=fields))
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body)["usage"]["completion_tokens"] == 4


async def test_the_body_is_the_clients_and_the_gateways_own_fields(adapter, worker, kind):
    await read(adapter, call(cache_salt="salt", traceparent="00-1-2-01"))
    body, headers = worker.seen[0].body, worker.seen[0].headers
    assert (body["model"], body["top_k"], body["messages"][0]["content"]) == ("m", 7, "hi")
    running = {"continuous_usage_stats": True} if adapter.reports_running_usage else {}
    assert body["stream_options"] == {"include_usage": True, **running}
    if kind in BUILT_IN:
        assert body.get("cache_salt") == ("salt" if kind in KNOWS_SALT else None)
    assert headers["Authorization"] == "Bearer the worker's key"
    assert (headers["x-request-id"], headers["traceparent"]) == ("req-1", "00-1-2-01")


async def test_a_kind_that_keeps_caches_apart_sends_the_salt(adapter, worker):
    await read(adapter, call(cache_salt="salt"))
    assert adapter.isolates is ("salt" in worker.seen[0].body.values())


@pytest.mark.parametrize("rank", [None, 0, 3])
async def test_a_rank_is_named_as_the_kind_has_it(adapter, worker, kind, rank):
    await read(adapter, call(rank=rank))
    body, headers = worker.seen[0].body, worker.seen[0].headers
    in_body, in_header = (
        rank if kind in ("sglang", "embedded") else None,
        str(rank) if kind == "vllm" else None,
    )
    assert (body.get("routed_dp_rank"), headers.get("X-data-parallel-rank")) == (
        in_body,
        in_header if rank is not None else None,
    )
    assert "data_parallel_rank" not in body


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/completions"])
async def test_tokens_stand_for_a_prompt_where_the_engine_takes_them(adapter, worker, kind, path):
    fields = dict(call().fields, prompt=msgspec.Raw(b'"hi"'))
    await read(adapter, call(path=path, fields=fields, prompt_ids=b"[5,4294967295]"))
    body = worker.seen[0].body
    ids = [5, 2**32 - 1] if kind in TAKES_TOKENS else "hi"
    assert body["prompt"] == (ids if path == "v1/completions" else "hi")
    assert body.get("input_ids") == (
        [5, 2**32 - 1] if (path, kind) == ("v1/chat/completions", "sglang") else None
    )
    assert body["messages"][0]["content"] == "hi"


def tokenized(worker, answer, status=200):
    worker.others["/tokenize"] = ("application/json", answer)
    worker.other_status = status


TOKENIZES = ("embedded", "sglang", "vllm")
FIELDS = {"model": msgspec.Raw(b'"m"'), "prompt": msgspec.Raw(b'"hi"')}


@pytest.fixture(params=TOKENIZES)
async def tokenizing(request, worker):
    await worker.stop()
    tokenized(worker, b'{"tokens": [1, 2, 70000], "count": 3, "max_model_len": 9}')
    await worker.start()
    made = BUILT_IN[request.param](WorkerTarget(id=WorkerId("w"), url=worker.url))
    assert isinstance(made, SupportsTokenize)
    yield made
    made.close()


async def test_an_engine_is_asked_for_tokens(tokenizing, worker):
    assert list(await tokenizing.tokenize(FIELDS, 5.0)) == [1, 2, 70000]
    assert worker.seen[0].body == {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize("status", [400, 422])
async def test_what_it_refuses_to_tokenise_it_may_refuse_to_answer(tokenizing, worker, status):
    tokenized(worker, b"{}", status)
    assert await tokenizing.tokenize(FIELDS, 5.0) is None


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b"{}", 404), (b"{}", 500), (b"no", 200), (b'{"tokens": [-1]}', 200), (b'{"tokens": [[1]]}', 200)],
)
async def test_an_engine_that_gives_no_tokens_is_no_source_of_them(tokenizing, worker, answer, status):
    tokenized(worker, answer, status)
    with pytest.raises(WorkerFailed):
        await tokenizing.tokenize(FIELDS, 5.0)


async def test_a_kind_without_a_tokenize_endpoint_gets_no_such_call(worker):
    made = BUILT_IN["openai"](WorkerTarget(id=WorkerId("w"), url=worker.url))
    assert not isinstance(made, SupportsTokenize)
    made.close()


async def test_an_empty_salt_is_not_sent(adapter, worker):
    await read(adapter, call(cache_salt=""))
    assert "cache_salt" not in worker.seen[0].body


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (500, FailureKind.SERVER_ERROR),
        (501, FailureKind.SERVER_ERROR),
        (502, FailureKind.UNHEALTHY),
        (504, FailureKind.UNHEALTHY),
        (429, FailureKind.BUSY),
        (503, FailureKind.BUSY),
        (529, FailureKind.BUSY),
        (401, FailureKind.REFUSED),
        (302, FailureKind.REFUSED),
    ],
)
async def test_no_answer_before_the_first_byte_is_unreachable(adapter, worker, status, failure):
    worker.then(status=status)
    with pytest.raises(WorkerFailed) as raised:
        await read(adapter, call())
    assert (raised.value.failure, raised.value.rate_limited) == (failure, status == 429)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "Fri, 20 Nov"}, None),
        # Ten years fast, as its own clock has it.
        (
            {
                "Retry-After": "Fri, 20 Nov 2036 10:01:30 GMT",
                "Date": "Fri, 20 Nov 2036 10:00:00 GMT",
            },
            90.0,
        ),
        ({}, None),
    ],
    ids=["seconds", "a fraction", "half a date", "a date", "nothing"],
)
async def test_the_retry_after_of_a_busy_worker_is_reported(adapter, worker, said, seconds):
    worker.then(status=503, headers=said)
    with pytest.raises(WorkerFailed) as raised:
        await read(adapter, call())
    assert raised.value.retry_after_seconds == seconds


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_refusal_without_words_is_an_answer_too(adapter, worker, status):
    worker.then(status=status, body={})
    answered, _, body = await read(adapter, call())
    assert (answered, body) == (status, b"")


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_mistake_of_the_client_is_an_answer(adapter, worker, status):
    worker.then(status=status, body={"error": {"message": "no"}})
    answered, _, body = await read(adapter, call())
    assert (answered, json.loads(body)) == (status, {"error": {"message": "no"}})


async def test_a_connection_that_breaks_before_the_first_byte_is_unreachable(adapter, worker):
    worker.then(break_after=0)
    with pytest.raises(WorkerFailed) as raised:
        await read(adapter, call())
    assert raised.value.failure is FailureKind.UNHEALTHY


async def test_a_connection_that_breaks_after_it_is_a_broken_stream(adapter, worker):
    worker.then(break_after=2, gap=0.01)
    got = b""
    with pytest.raises(StreamBroken):
        async with adapter.stream(call()) as answer:
            async for chunk in answer.chunks():
                got += chunk
    assert got.count(b"data: ") >= 1


async def test_a_worker_that_is_not_there_is_unreachable(adapter, worker):
    await worker.stop()
    for ask in (lambda: read(adapter, call()), adapter.probe):
        with pytest.raises(WorkerFailed) as raised:
            await ask()
        assert raised.value.failure is FailureKind.UNHEALTHY


async def test_silence_before_the_first_byte_is_bounded(adapter, worker):
    worker.then(silent=True)
    with pytest.raises(WorkerFailed) as failure:
        await read(adapter, call(first_byte_seconds_max=0.1))
    assert failure.value.timed_out
    await asyncio.wait_for(worker.seen[0].done.wait(), 60)
    assert worker.seen[0].ended == "aborted"


async def test_calls_that_wait_at_a_worker_that_is_down_can_be_abandoned(adapter, worker):
    await read(adapter, call())  # The next one takes its connection, of which nothing has come back yet.
    worker.then(silent=True)
    waiting = asyncio.create_task(read(adapter, call()))
    while len(worker.seen) < 2:
        await asyncio.sleep(0.005)
    adapter.abandon()
    with pytest.raises(WorkerFailed) as unreachable:
        await asyncio.wait_for(waiting, 60)
    assert not unreachable.value.timed_out
    await asyncio.wait_for(worker.seen[1].done.wait(), 60)
    assert (len(worker.seen), worker.seen[1].ended) == (2, "aborted")


async def test_abandoning_leaves_answers_that_have_begun_alone(adapter, worker):
    worker.then(gap=0.02)
    async with adapter.stream(call()) as answer:
        adapter.abandon()
        assert b"[DONE]" in b"".join([chunk async for chunk in answer.chunks()])


async def test_silence_after_it_is_bounded_too(adapter, worker):
    worker.then(gap=30.0)
    with pytest.raises(StreamBroken):
        await asyncio.wait_for(read(adapter, call(idle_seconds_max=0.1)), 60)


async def test_leaving_early_makes_the_worker_stop(adapter, worker):
    worker.then(tokens=1000, gap=0.01)
    async with adapter.stream(call()) as answer:
        await anext(answer.chunks())
    await asyncio.wait_for(worker.seen[0].done.wait(), 60)
    assert worker.seen[0].ended == "aborted"


async def test_being_cancelled_makes_the_worker_stop(adapter, worker):
    worker.then(silent=True)
    task = asyncio.create_task(read(adapter, call()))
    while not worker.seen:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(worker.seen[0].done.wait(), 60)


async def test_a_probe_reports_what_is_served(adapter, worker, kind):
    worker.models = ["m", "n"]
    report = await adapter.probe()
    assert report.models == ("m", "n")
    if kind in ("sglang", "embedded"):
        assert (report.kv_tokens_max, report.instance_id) == (100_000, "first")


async def test_the_probe_of_a_worker_that_is_not_ready_fails(adapter, worker, kind):
    if kind in ("openai", "ollama"):
        pytest.skip("an OpenAI-compatible server and Ollama have no way to say that they are not ready")
    worker.ready = False
    with pytest.raises(WorkerFailed):
        await adapter.probe()


@pytest.mark.parametrize(
    "listed",
    [b'{"data":[{"id":"\xff"}]}', b"[]", b"", b"{", b'{"x":' + b"[" * 100_000, b'{"data":[{"id":1e999}]}'],
)
async def test_a_worker_whose_list_is_unreadable_is_unreachable(adapter, worker, listed):
    worker.listed = listed
    with pytest.raises(WorkerFailed):
        await adapter.probe()
