"""Prefix routing with real embedded workers: prompts go to the worker that has their beginning in its cache."""

import asyncio
import json
import random

import pytest

from tests.integration.conftest import MODEL, PAGE_SIZE, EmbeddedWorker
from tests.integration.published_events import all_heard

pytestmark = pytest.mark.usefixtures("steady_workers")

WORDS = "river harbour garden engine winter letter window morning"


def text(seed, words=60):
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS.split()) for _ in range(words))


def conversation(seed, turns=1):
    questions = [{"role": "user", "content": text((seed, turn).__hash__())} for turn in range(turns)]
    return [{"role": "system", "content": text(0)}, *questions]


async def ask(running, messages, *, tenant="acme", **more):
    """A streamed chat: its text and its usage."""
    body = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    async with running.chat(
        model=MODEL,
        messages=messages,
        tenant=tenant,
        stream=True,
        stream_options={"include_usage": True},
        **body,
    ) as response:
        assert response.status == 200, await response.text()
        frames = [json.loads(line[5:]) async for line in response.content if line.startswith(b"data: {")]
    said = "".join(f["choices"][0]["delta"].get("content") or "" for f in frames if f["choices"])
    return said, frames[-1]["usage"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def whole_pages(tokens):
    """What of a prompt can come from the cache: full pages, and never its last token."""
    return (tokens - 1) // PAGE_SIZE * PAGE_SIZE


async def test_the_second_time_a_prompt_comes_from_the_cache(gateway, embedded, model_settings):
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        first, usage = await ask(running, conversation(1))
        await all_heard(running)
        again, usage_again = await ask(running, conversation(1))
    assert again == first
    assert cached(usage) == 0
    assert cached(usage_again) == whole_pages(usage["prompt_tokens"])


async def test_every_turn_of_a_conversation_finds_the_turns_before_it(gateway, embedded, model_settings):
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        messages, before = conversation(2, turns=0), 0
        for turn in range(5):
            messages.append({"role": "user", "content": text(100 + turn)})
            said, usage = await ask(running, messages)
            # The end of a prompt opens the answer, so the next prompt goes on exactly where this one stopped.
            assert cached(usage) >= before // PAGE_SIZE * PAGE_SIZE
            before = usage["prompt_tokens"]
            await all_heard(running)
            messages.append({"role": "assistant", "content": said})
        record = running.here.gateway.overview.tenants["acme"].total
        assert record.cached_tokens >= record.predicted_tokens > 0


async def test_under_round_robin_a_conversation_loses_its_cache(gateway, embedded, model_settings):
    async with gateway(
        *embedded, kind="embedded", **model_settings, **{"routing.policy": "round_robin"}
    ) as running:
        hits = [cached((await ask(running, conversation(3)))[1]) for _ in range(4)]
    assert hits[:2] == [0, 0]
    assert min(hits[2:]) > 0


async def test_two_tenants_with_the_same_text_share_nothing(gateway, embedded, model_settings):
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        await ask(running, conversation(4), tenant="acme")
        _, usage = await ask(running, conversation(4), tenant="globex")
        assert cached(usage) == 0
        at = running.here.gateway.overview
        assert at.tenants["globex"].total.predicted_tokens == 0
        await all_heard(running)
        _, usage = await ask(running, conversation(4), tenant="globex")
        assert cached(usage) > 0


async def test_two_tenants_of_one_group_share_a_cache(gateway, embedded, model_settings):
    group = {"isolation": {"mode": "group", "group": "friends"}}
    tenants = {"a": group, "b": group}
    async with gateway(*embedded, kind="embedded", tenants=tenants, **model_settings) as running:
        await ask(running, conversation(5), tenant="a")
        await all_heard(running)
        _, usage = await ask(running, conversation(5), tenant="b")
    assert cached(usage) == whole_pages(usage["prompt_tokens"])


@pytest.mark.parametrize(
    "tokens", [0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE, 2 * PAGE_SIZE + 1]
)
async def test_the_edges_of_a_page_are_exact(gateway, embedded, model_settings, tokens):
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        body = {
            "model": MODEL,
            "prompt": [7 + n % 50 for n in range(tokens)],
            "max_tokens": 2,
            "temperature": 0,
        }
        counts = []
        for _ in range(2):
            async with running.http.post(
                running.url + "/v1/completions", json=body, headers=running.headers()
            ) as response:
                answer = await response.json()
                if tokens == 0:
                    assert (response.status, answer["error"]["param"]) == (400, "prompt")
                    return
                counts.append(cached(answer["usage"]))
            await all_heard(running)
        assert counts == [0, whole_pages(tokens)]
        total = running.here.gateway.overview.all.total
        assert total.predicted_tokens == whole_pages(tokens)


async def test_the_gateway_counts_tokens_as_the_worker_does(gateway, embedded, model_settings):
    limits = [{"total_tokens": 100_000, "per": "day"}]
    async with gateway(*embedded, kind="embedded", limits=limits, **model_settings) as running:
        body = {"model": MODEL, "messages": conversation(6, turns=3), "max_tokens": 8}
        async with running.http.post(
            running.url + "/v1/chat/completions", json=body, headers=running.headers()
        ) as response:
            usage = (await response.json())["usage"]
            remaining = int(response.headers["x-ratelimit-remaining-tokens"])
    assert remaining == 100_000 - 8 - usage["prompt_tokens"]


async def test_the_answer_through_the_gateway_is_the_answer_of_the_worker(gateway, embedded, model_settings):
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        body = {"model": MODEL, "messages": conversation(7), "max_tokens": 16, "temperature": 0}
        async with running.http.post(embedded[0].url + "/v1/chat/completions", json=body) as response:
            direct = await response.json()
        async with running.http.post(
            running.url + "/v1/chat/completions", json=body, headers=running.headers()
        ) as response:
            through = await response.json()
    assert through["choices"] == direct["choices"]
    assert set(through) == set(direct)


async def test_a_client_that_leaves_frees_the_engine(gateway, embedded, model_settings):
    async with gateway(*embedded, kind="embedded", **model_settings) as running:

        async def running_requests():
            total = 0
            for worker in embedded:
                async with running.http.get(worker.url + "/v1/loads") as response:
                    loads = (await response.json())["loads"]
                    total += sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
            return total

        async with running.chat(
            model=MODEL, messages=conversation(8), stream=True, max_tokens=3000, ignore_eos=True
        ) as response:
            await response.content.readline()
            assert await running_requests() == 1
            response.close()
        async with asyncio.timeout(60):
            while await running_requests():
                await asyncio.sleep(0.05)
        await running.until(lambda: running.idle)


async def test_a_worker_that_is_killed_under_load_costs_no_request_that_had_not_begun(
    gateway, embedded_pair, checkpoint, tmp_path, model_settings
):
    victim = EmbeddedWorker(checkpoint, tmp_path / "victim.log")
    victim.start()
    outcomes = []
    try:
        async with gateway(victim, embedded_pair[0], kind="embedded", **model_settings) as running:

            async def caller(number):
                for turn in range(6):
                    async with running.chat(
                        model=MODEL, messages=conversation(number * 100 + turn), stream=True, max_tokens=12
                    ) as response:
                        body = await response.text()
                        begun = "stream_interrupted" in body
                        outcomes.append("interrupted" if begun else response.status)

            callers = [asyncio.create_task(caller(number)) for number in range(6)]
            await running.until(lambda: len(outcomes) >= 6, seconds=60)
            victim.kill()
            await asyncio.gather(*callers)
            assert len(outcomes) == 36
            assert set(outcomes) <= {200, "interrupted"}
            assert outcomes.count("interrupted") <= 6
            await running.until(lambda: running.idle)
            assert outcomes[-6:].count(200) == 6
    finally:
        victim.kill()
