"""Answers of real engines through the gateway, and that an engine stops when its client disconnects."""

import asyncio
import json

from tests.engines.processes import MODEL
from tests.integration.routing.test_prefix_cache_routing import ask, cached, conversation


async def whole(running, url, messages, **more):
    body = {"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0, **more}
    headers = running.headers()
    async with running.http.post(url + "/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def said(value):
    """Without what is null."""
    if isinstance(value, dict):
        return {name: said(each) for name, each in value.items() if each is not None}
    return [said(each) for each in value] if isinstance(value, list) else value


async def test_a_whole_answer_is_the_answer_of_the_engine(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        direct = await whole(running, engine.url, conversation(1))
        through = await whole(running, running.url, conversation(1))
    for answer in (direct, through):
        assert answer["choices"][0]["message"]["content"]
    # It was put together from a stream, in which engines leave out most of what is null.
    assert said(through["choices"]) == said(direct["choices"])
    assert through["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]


async def test_a_streamed_answer_is_the_whole_one_in_pieces(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        answer = await whole(running, running.url, conversation(2))
        said, usage = await ask(running, conversation(2), max_tokens=16, ignore_eos=False)
    assert said == answer["choices"][0]["message"]["content"]
    assert usage["completion_tokens"] == answer["usage"]["completion_tokens"]


async def test_usage_is_withheld_from_clients_that_did_not_request_it(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        async with running.chat(model=MODEL, messages=conversation(3), stream=True, max_tokens=4) as response:
            lines = [line.strip() async for line in response.content if line.startswith(b"data: ")]
        assert lines[-1] == b"data: [DONE]"
        assert all(json.loads(line[6:])["choices"] for line in lines[:-1])
        assert not any(json.loads(line[6:]).get("usage") for line in lines[:-1])
        total = running.here.gateway.overview.tenants["acme"].total
        assert total.output_tokens == 4


async def test_the_second_time_a_prompt_comes_from_the_cache(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        first, usage = await ask(running, conversation(4))
        again, usage_again = await ask(running, conversation(4))
    assert again == first
    assert cached(usage) == 0
    size = engine.page_size
    assert cached(usage_again) == (usage["prompt_tokens"] - 1) // size * size > 0


async def test_the_gateway_counts_prompt_tokens_as_the_engine_does(gateway, engine, model_of):
    limits = [{"total_tokens": 100_000, "per": "day"}]
    async with gateway(engine, kind=engine.kind, limits=limits, **model_of(engine.page_size)) as running:
        body = {"model": MODEL, "messages": conversation(5, turns=2), "max_tokens": 8}
        async with running.http.post(
            running.url + "/v1/chat/completions", json=body, headers=running.headers()
        ) as response:
            usage = (await response.json())["usage"]
            remaining = int(response.headers["x-ratelimit-remaining-tokens"])
    assert remaining == 100_000 - 8 - usage["prompt_tokens"]


async def test_two_tenants_with_the_same_text_share_nothing(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        _, usage = await ask(running, conversation(6), tenant="acme")
        assert cached(usage) == 0
        _, usage = await ask(running, conversation(6), tenant="globex")
        assert cached(usage) == 0
        for tenant in ("acme", "globex"):
            _, usage = await ask(running, conversation(6), tenant=tenant)
            assert cached(usage) > 0


async def test_a_client_that_leaves_stops_the_engine(gateway, engine, model_of):
    """An engine that nothing stops generates all tokens of all clients, however slow the machine is.

    On a busy machine one of them may be at its end before its client has left.
    """
    clients, tokens_each = 4, 800
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        before = await all_generated(engine)
        for _ in range(clients):
            async with running.chat(
                model=MODEL, messages=conversation(7), stream=True, max_tokens=tokens_each, ignore_eos=True
            ) as response:
                await response.content.readline()
                response.close()
        await running.until(lambda: running.idle)
        total = running.here.gateway.overview.tenants["acme"].total
        await running.until(lambda: total.requests == clients)
        assert 0 < total.output_tokens < clients * tokens_each
        assert await all_generated(engine) - before < clients * tokens_each


async def all_generated(engine):
    """Wait until the engine is idle and has counted all tokens that it has generated; return their number."""
    async with asyncio.timeout(60):
        before = None
        while True:
            counted = await asyncio.to_thread(engine.generated)
            if counted == before and not await asyncio.to_thread(engine.running):
                return counted
            before = counted
            await asyncio.sleep(0.5)
