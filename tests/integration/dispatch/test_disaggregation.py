"""Prefill and decode on two workers, through the gateway: real halves, and scripted ones for faults and loads."""

import asyncio
import json
from urllib.request import urlopen

import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.conftest import MODEL
from tests.integration.routing.test_prefix_cache_routing import ask, cached, conversation, text, whole_pages

SPLIT = {"routing.prefill_tokens_min": "16"}
ROLES = ("prefill", "decode")
LONG = "word " * 4000


def handoffs(worker):
    with urlopen(f"{worker.url}/v1/loads", timeout=10) as answer:
        return json.load(answer)["loads"][0]["disaggregation"]


async def completion(running, **body):
    headers = running.headers()
    async with running.http.post(
        running.url + "/v1/completions", json={"model": MODEL, **body}, headers=headers
    ) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"]


async def status(running, said):
    async with running.chat(said) as response:
        return response.status


# Real halves.


async def test_two_halves_answer_as_one_worker_does(gateway, embedded, embedded_halves, model_settings):
    greedy = {"prompt": text(3, 120), "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    seeded = {"prompt": text(4, 120), "max_tokens": 24, "seed": 5, "n": 3, "ignore_eos": True}
    batch = {"prompt": [text(5, 90), text(6, 90)], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    bodies = (greedy, seeded, batch)
    async with gateway(embedded[0], kind="embedded", **model_settings) as running:
        wanted = [await completion(running, **body) for body in bodies]
        said, _ = await ask(running, conversation(9))
    prefill, decode = embedded_halves
    for half in embedded_halves:
        half.flush()
    before = handoffs(decode)
    # The halves say themselves which one each of them is.
    async with gateway(*embedded_halves, kind="embedded", **SPLIT, **model_settings) as running:
        got = [await completion(running, **body) for body in bodies]
        streamed, _ = await ask(running, conversation(9))
        await running.until(lambda: running.idle)
    assert got == wanted
    assert streamed == said
    after = handoffs(decode)
    assert (after["pulled"] - before["pulled"], after["recomputed"]) == (1 + 3 + 2 + 1, 0)
    assert handoffs(prefill)["failed"] == 0


async def test_a_prompt_that_the_decode_worker_holds_is_not_sent_to_the_prefill_worker(
    gateway, embedded_halves, model_settings
):
    prefill = embedded_halves[0]
    for half in embedded_halves:
        half.flush()
    async with gateway(*embedded_halves, kind="embedded", **SPLIT, **model_settings) as running:
        first, usage = await ask(running, conversation(21))
        given = handoffs(prefill)["handoffs"]
        await running.until(lambda: running.idle)
        again, usage_again = await ask(running, conversation(21))
        assert handoffs(prefill)["handoffs"] == given
    assert again == first
    assert cached(usage) == 0
    assert cached(usage_again) == whole_pages(usage["prompt_tokens"])


async def test_a_client_that_leaves_frees_both_real_halves(gateway, embedded_halves, model_settings):
    for half in embedded_halves:
        half.flush()

    def used(half):
        with urlopen(f"{half.url}/v1/loads", timeout=10) as answer:
            return json.load(answer)["loads"][0]["num_running_reqs"]

    async with gateway(*embedded_halves, kind="embedded", **SPLIT, **model_settings) as running:
        body = {"model": MODEL, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        async with running.chat(messages=conversation(33), **body) as response:
            await response.content.readline()
            response.close()
        await running.until(lambda: running.idle)
        async with asyncio.timeout(60):
            for half in embedded_halves:
                while used(half):
                    await asyncio.sleep(0.02)


# Scripted ones.


async def test_the_settings_decide_whether_a_worker_prefills_or_decodes(gateway):
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        async with gateway(prefill, decode, roles=ROLES) as running:
            async with running.chat(LONG) as response:
                assert response.status == 200
        assert prefill.seen[0].body["bootstrap_room"] == decode.seen[0].body["bootstrap_room"]
        assert prefill.seen[0].body["bootstrap_host"] == "127.0.0.1"


async def test_a_vllm_pair_is_called_one_after_the_other(gateway):
    params = {"remote_block_ids": [[1, 2]], "remote_host": "h"}
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        prefill.then(more={"kv_transfer_params": params}, cached_tokens=3)
        async with gateway(prefill, decode, kind="vllm", roles=ROLES) as running:
            async with running.chat(LONG, stream=True) as response:
                assert response.status == 200
                assert b"[DONE]" in await response.read()
            await running.until(lambda: running.idle)
            async with running.http.get(running.admin + "/metrics") as response:
                metrics = await response.text()
        assert (prefill.seen[0].body["max_tokens"], prefill.seen[0].body["stream"]) == (1, False)
        assert decode.seen[0].body["kv_transfer_params"] == params
        # vLLM's decode worker would say that all of it was cached.
        assert 'radixgate_worker_cached_tokens_total{worker="w0"} 3.0' in metrics
        assert 'radixgate_worker_prefills_total{worker="w0"} 1.0' in metrics
        assert 'radixgate_worker_requests_total{worker="w1"} 1.0' in metrics


async def test_a_short_prompt_is_not_worth_two_workers(gateway):
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        async with gateway(prefill, decode, kind="vllm", roles=ROLES) as running:
            async with running.chat("hi") as response:
                assert response.status == 200
        assert (len(prefill.seen), len(decode.seen)) == (0, 1)
        assert "kv_transfer_params" not in decode.seen[0].body


async def test_load_is_counted_on_both_when_a_request_is_sent(gateway):
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        prefill.then(silent=True)
        decode.then(silent=True)
        async with gateway(prefill, decode, roles=ROLES) as running:
            asked = asyncio.create_task(running.chat(LONG).__aenter__())
            await running.until(lambda: prefill.seen and decode.seen)
            loads = {worker.id: worker.load for worker in running.here.gateway.fleet}
            assert loads["w0"].tokens_queued > 4000
            assert loads["w0"].kv_tokens == loads["w0"].tokens_queued
            assert loads["w1"].tokens_queued == 0
            assert loads["w1"].kv_tokens > loads["w0"].kv_tokens
            assert (loads["w0"].streams, loads["w1"].streams) == (1, 1)
            asked.cancel()
            await running.until(lambda: running.idle)


async def test_after_the_first_token_the_prefill_worker_is_free_for_the_next(gateway):
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        decode.then(tokens=1000, gap=0.02)
        async with gateway(prefill, decode, roles=ROLES) as running:
            async with running.chat(LONG, stream=True) as response:
                await response.content.readline()
                loads = {worker.id: worker.load for worker in running.here.gateway.fleet}
                assert (loads["w0"].streams, loads["w0"].kv_tokens, loads["w0"].tokens_queued) == (0, 0, 0)
                assert loads["w1"].streams == 1
                response.close()
            await running.until(lambda: running.idle)


async def test_concurrent_prompts_spread_over_the_prefill_workers(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two, ScriptedWorker() as decode:
        until = asyncio.Event()
        for worker in (one, two, decode):
            worker.then(until=until)
        async with gateway(one, two, decode, roles=("prefill", "prefill", "decode")) as running:
            asked = [asyncio.create_task(running.chat(f"{at} {LONG}").__aenter__()) for at in range(4)]
            await running.until(lambda: len(decode.seen) + len(one.seen) + len(two.seen) == 8)
            assert (len(one.seen), len(two.seen)) == (2, 2)
            until.set()
            for response in await asyncio.gather(*asked):
                response.close()


@pytest.mark.parametrize("kind", ["embedded", "vllm"])
async def test_when_prefill_fails_another_worker_computes_the_prompt(gateway, kind):
    async with ScriptedWorker() as broken, ScriptedWorker() as prefill, ScriptedWorker() as decode:
        broken.then(break_after=0)
        prefill.then(more={"kv_transfer_params": {}})
        roles = ("prefill", "prefill", "decode")
        async with gateway(
            broken, prefill, decode, kind=kind, roles=roles, **{"routing.policy": "round_robin"}
        ) as running:
            for at in range(3):
                # A decode worker has no answer before its prompt is computed; both fail on a clock of their own.
                decode.then(until=asyncio.Event())
                asked = asyncio.create_task(status(running, f"{at} {LONG}"))
                await running.until(lambda count=at + 1: len(prefill.seen) == count)
                room = prefill.seen[-1].body.get("bootstrap_room")
                earlier = [seen for seen in decode.seen if seen.body.get("bootstrap_room") != room]
                await asyncio.gather(*(asyncio.wait_for(seen.done.wait(), 60) for seen in earlier))
                decode.script.until.set()
                assert await asked == 200
            await running.until(lambda: running.idle)
            answers = [seen for seen in decode.seen if seen.ended == "finished"]
            assert len(answers) == len(prefill.seen) == 3
            failures = {worker.id: worker.failures for worker in running.here.gateway.fleet}
            assert failures["w0"] > 0
            assert failures["w2"] == 0


async def test_without_prefill_workers_a_decode_worker_that_can_does_it_all(gateway):
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        prefill.then(status=502)
        decode.then(until=asyncio.Event())
        async with gateway(prefill, decode, kind="embedded", roles=ROLES) as running:
            asked = asyncio.create_task(status(running, LONG))
            await running.until(lambda: any("bootstrap_room" not in seen.body for seen in decode.seen))
            decode.script.until.set()
            assert await asked == 200
            await running.until(lambda: running.idle)
        assert "bootstrap_room" not in decode.seen[-1].body


async def test_sglang_halves_serve_only_together(gateway):
    async with ScriptedWorker() as decode:
        async with gateway(decode, roles=("decode",)) as running:
            async with running.chat(LONG) as response:
                assert response.status == 503
                assert (await response.json())["error"]["code"] == "no_worker"


async def test_placements_on_both_are_announced_to_the_other_gateways(gateway, tmp_path):
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        prefill.then(silent=True)
        decode.then(silent=True)
        roles = {"roles": ROLES}
        async with gateway(prefill, decode, **roles) as one, gateway(prefill, decode, **roles) as two:
            queues = [running.here.gateway.services.dispatch.queue for running in (one, two)]
            await one.until(lambda: all(queue.shared for queue in queues))
            asked = asyncio.create_task(one.chat(LONG).__aenter__())
            await one.until(lambda: prefill.seen and decode.seen)
            others = {worker.id: worker.load for worker in two.here.gateway.fleet}
            await two.until(lambda: others["w1"].others.streams)
            assert others["w0"].others.tokens_queued > 4000
            assert others["w1"].others.tokens_queued == 0
            asked.cancel()
            await two.until(lambda: not others["w1"].others.streams and not others["w0"].others.streams)


@pytest.mark.parametrize("at", ["here", "another gateway"])
async def test_batch_work_gives_way_where_a_prefill_worker_is_full_of_it(gateway, at):
    window = {"queueing.release_window_tokens": "100", "queueing.preempts": "true", "roles": ROLES}
    async with (
        ScriptedWorker() as prefill,
        ScriptedWorker() as decode,
        gateway(prefill, decode, **window) as running,
        gateway(prefill, decode, **window) as beside,
    ):
        for each in (running, beside):
            queue = each.here.gateway.services.dispatch.queue
            await each.until(lambda queue=queue: queue.shared and queue.gateways == 2)
        for half in (prefill, decode):
            half.then(silent=True)
        there = running if at == "here" else beside
        batch = asyncio.create_task(there.chat("batch " * 60, service_tier="batch").__aenter__())
        await there.until(lambda: prefill.seen and decode.seen)
        for half in (prefill, decode):
            half.then(silent=False)
        async with running.chat("chatty " * 60, tenant="globex") as response:
            assert response.status == 200
        answer = await batch
        assert answer.status == 200
        await answer.read()
        assert there.here.gateway.services.dispatch.preemption.count == 1
        assert [[seen.ended for seen in half.seen] for half in (prefill, decode)] == [
            ["aborted", "finished", "finished"]
        ] * 2
        for each in (running, beside):
            await each.until(lambda each=each: each.idle)
