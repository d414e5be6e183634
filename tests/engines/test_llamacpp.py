"""A real llama.cpp server behind the gateway: its reports, its answers, its refusals, and clients that leave."""

import json

import pytest

from tests.engines.processes import CONTEXT_LENGTH, MODEL, LlamaCpp
from tests.engines.test_answers import all_generated, said, whole
from tests.integration.conftest import EmbeddedWorker
from tests.integration.routing.test_prefix_cache_routing import ask, conversation
from workers.load_reports.engine_loads import EngineLoad


@pytest.fixture(scope="module")
def llamacpp(checkpoint, tmp_path_factory):
    if not LlamaCpp.python.exists():
        pytest.skip("llama.cpp is not installed; tests/engines/install_llamacpp says why")
    engine = LlamaCpp(checkpoint, tmp_path_factory.mktemp("llamacpp") / "llamacpp.log")
    engine.write_file()
    engine.start()
    try:
        engine.wait()
        yield engine
    finally:
        engine.kill()


@pytest.fixture
def models():
    """The gateway's entry for the model; its context is what the engine says."""
    return {"models": json.dumps([{"name": MODEL}])}


async def test_it_is_recognised_and_reports_its_context_slots_and_load(gateway, llamacpp, models):
    async with gateway(llamacpp, kind="auto", **models) as running:
        (worker,) = running.here.gateway.fleet
        report = await worker.adapter.probe()
        assert worker.kind == "llamacpp"
    assert report.models == (MODEL,)
    assert report.context_lengths == {MODEL: CONTEXT_LENGTH}
    assert report.slots == 2
    assert report.load == EngineLoad(streams=0)


async def test_an_answer_is_that_of_the_engine_whole_and_streamed(gateway, llamacpp, models):
    async with gateway(llamacpp, kind="llamacpp", **models) as running:
        direct = await whole(running, llamacpp.url, conversation(1))
        through = await whole(running, running.url, conversation(1))
        streamed, usage = await ask(running, conversation(1), max_tokens=16, ignore_eos=False)
    assert said(through["choices"]) == said(direct["choices"])
    assert streamed == direct["choices"][0]["message"]["content"]
    assert usage["completion_tokens"] == direct["usage"]["completion_tokens"]
    assert usage["prompt_tokens_details"] is None  # its cache knows no tenants


SHARED = {"acme": {"isolation": {"mode": "shared"}}}


@pytest.mark.parametrize("tenants", [None, SHARED], ids=["apart", "shared"])
async def test_only_a_tenant_that_shares_its_cache_gets_cached_token_counts(
    gateway, llamacpp, models, tenants
):
    more = {"timings_per_token": True, "return_progress": True}
    passed = {"requests.pass_fields": json.dumps([*more])}
    async with gateway(llamacpp, kind="llamacpp", tenants=tenants, **models, **passed) as running:
        await whole(running, running.url, conversation(4))
        answer = json.dumps(await whole(running, running.url, conversation(4), **more))
        async with running.chat(
            model=MODEL, messages=conversation(4), stream=True, max_tokens=8, **more
        ) as response:
            answer += await response.text()
    for name in ("cached_tokens", "cache_n", "prompt_n", "prompt_progress"):
        assert (name in answer) == (tenants is SHARED), answer


async def test_its_tokens_are_those_of_the_embedded_engine(gateway, llamacpp, models, checkpoint, tmp_path):
    embedded = EmbeddedWorker(checkpoint, tmp_path / "embedded.log")
    embedded.start()
    try:
        answers = []
        for worker, kind in ((llamacpp, "llamacpp"), (embedded, "embedded")):
            async with gateway(worker, kind=kind, **models) as running:
                answers.append(await whole(running, running.url, conversation(2)))
    finally:
        embedded.kill()
    ours, theirs = ((a["choices"], a["usage"]["prompt_tokens"]) for a in answers)
    assert ours[0][0]["message"]["content"] == theirs[0][0]["message"]["content"]
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("length", ["by the estimate", "by the engine's tokens alone"])
async def test_a_prompt_that_is_too_long_is_refused_in_the_words_of_each_api(
    gateway, llamacpp, models, length
):
    # The estimate is four bytes for a token; the engine makes three tokens of these five bytes.
    words = CONTEXT_LENGTH if length == "by the estimate" else CONTEXT_LENGTH // 2
    async with gateway(llamacpp, kind="llamacpp", **models) as running:
        messages = [{"role": "user", "content": "word " * words}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 4}
        for path, words in (
            ("chat/completions", "context_length_exceeded"),
            ("messages", "prompt is too long"),
        ):
            async with running.http.post(
                f"{running.url}/v1/{path}", json=body, headers=running.headers()
            ) as response:
                assert response.status == 400
                assert words in await response.text()


async def test_a_client_that_leaves_stops_the_engine(gateway, llamacpp, models):
    async with gateway(llamacpp, kind="llamacpp", **models) as running:
        before = await all_generated(llamacpp)
        async with running.chat(
            model=MODEL, messages=conversation(3), stream=True, max_tokens=800, ignore_eos=True
        ) as response:
            await response.content.readline()
            response.close()
        await running.until(lambda: running.idle)
        assert await all_generated(llamacpp) - before < 800
