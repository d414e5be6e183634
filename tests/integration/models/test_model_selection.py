"""Model selection: weighted splits, and fallbacks to other models. Scripted workers, real Valkey."""

import asyncio
import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker


def models(*entries):
    return {"models": json.dumps(list(entries))}


async def asked(running, text="hello", **more):
    async with running.chat(text, **more) as response:
        return response.status, await response.json()


async def test_a_split_divides_conversations_by_weight_and_keeps_each_of_them_together(gateway):
    split = {"name": "m", "splits": {"m": 75, "m-next": 25}}
    async with ScriptedWorker() as now, ScriptedWorker(["m-next"]) as later:
        async with gateway(now, later, **models(split, {"name": "m-next"})) as running:
            for number in range(60):
                assert (await asked(running, f"question {number}"))[0] == 200
            assert 5 <= len(later.seen) <= 28
            assert all(seen.body["model"] == "m-next" for seen in later.seen)
            before = len(later.seen)
            first = {"role": "user", "content": later.seen[0].body["messages"][0]["content"]}
            longer = [{"role": "system", "content": "s"}, first, {"role": "assistant", "content": "a"}, first]
            await asked(running, messages=longer)
            assert len(later.seen) == before + 1
            for number in range(6):
                await asked(running, f"other words {number}", user="one and the same")
            assert len(later.seen) - before - 1 in (0, 6)


async def test_a_canary_that_is_down_or_not_allowed_gets_nothing(gateway):
    split = {"name": "m", "splits": {"m": 1, "m-next": 99, "nobody": 99}}
    tenants = {"acme": {}, "globex": {"models": {"deny": ["m-next"]}}}
    async with ScriptedWorker() as now, ScriptedWorker(["m-next"]) as later:
        async with gateway(now, later, tenants=tenants, **models(split, {"name": "m-next"})) as running:
            for number in range(5):
                assert (await asked(running, f"q {number}", tenant="globex"))[0] == 200
            assert (len(now.seen), len(later.seen)) == (5, 0)
            await later.stop()
            await running.until(lambda: running.here.gateway.fleet["w1"].health.state.value == "down", 60)
            for number in range(5):
                assert (await asked(running, f"q {number}"))[0] == 200
            assert len(now.seen) == 10


async def test_a_name_without_workers_of_its_own_may_stand_for_others(gateway):
    async with ScriptedWorker(["a"]) as one, ScriptedWorker(["b"]) as two:
        async with gateway(one, two, **models({"name": "m", "splits": {"a": 1, "b": 1}})) as running:
            answers = [await asked(running, f"q {number}") for number in range(16)]
            assert {status for status, _ in answers} == {200}
            assert one.seen
            assert two.seen


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_answers_where_no_worker_serves_the_model(gateway, stream):
    main = {"name": "m", "fallbacks": ["missing", "spare"]}
    async with ScriptedWorker() as first, ScriptedWorker(["spare"]) as spare:
        async with gateway(first, spare, **models(main)) as running:
            await first.stop()
            await running.until(lambda: running.here.gateway.fleet["w0"].health.state.value == "down", 60)
            async with running.chat("hello", stream=stream) as response:
                assert response.status == 200
                await response.read()
            assert spare.seen[0].body["model"] == "spare"
            await running.until(lambda: running.idle)


async def test_a_fallback_answers_where_all_workers_fail_before_the_first_byte_and_is_what_is_charged(
    gateway,
):
    main, spare_model = {"name": "m", "fallbacks": ["spare"]}, {"name": "spare"}
    limits = [{"total_tokens": 1000, "per": "hour"}]
    async with ScriptedWorker() as first, ScriptedWorker(["spare"]) as spare:
        async with gateway(first, spare, limits=limits, **models(main, spare_model)) as running:
            first.then(break_after=0)
            async with running.chat("hello", max_tokens=4) as response:
                assert response.status == 200
                await response.read()
            assert first.seen
            assert len(spare.seen) == 1
            await running.until(lambda: running.idle)
            tally = running.here.gateway.overview.workers["w1"]
            assert tally.total.requests == 1


async def test_without_a_fallback_that_can_the_first_failure_is_the_answer(gateway):
    main = {"name": "m", "fallbacks": ["spare"]}
    denied = {"acme": {"models": {"deny": ["spare"]}}}
    async with ScriptedWorker() as first, ScriptedWorker(["spare"]) as spare:
        async with gateway(first, spare, tenants=denied, **models(main)) as running:
            first.then(break_after=0)
            status, body = await asked(running)
            assert (status, body["error"]["code"]) == (502, "worker_error")
            assert spare.seen == []


LIMITS = [{"total_tokens": 1000, "per": "day"}]
NO_ANSWERS = {"no JSON": b"<html>", "no object": b"[]"}


async def test_a_fallback_without_a_place_is_not_charged_for_what_the_first_model_was_sent(gateway, records):
    main, spare_model = {"name": "m", "fallbacks": ["spare"]}, {"name": "spare"}
    bounds = {"queueing.release_window_tokens": 1, "queueing.waiting_seconds_max": "0.05"}
    async with ScriptedWorker() as first, ScriptedWorker(["spare"]) as spare:
        settings = {**bounds, **models(main, spare_model)}
        async with gateway(first, spare, kind="openai", limits=LIMITS, **settings) as running:
            first.then(whole=b"<html>")
            spare.then(until=asyncio.Event())
            fills = asyncio.create_task(asked(running, model="spare", max_tokens=4))
            await running.until(lambda: spare.seen)
            status, body = await asked(running, "a longer prompt than the other", max_tokens=4)
            assert (status, body["error"]["code"]) == (503, "admission_timeout")
            assert (len(first.seen), len(spare.seen)) == (1, 1)
            (refused,) = records
            assert (refused.model, refused.worker, refused.attempts) == ("spare", None, 1)
            assert (refused.charged, refused.spend, refused.answered) == (None, 0, False)
            spare.script.until.set()
            assert (await fills)[0] == 200
            await running.until(lambda: running.idle)
            async with running.chat(model="spare", max_tokens=4) as response:
                # Of the one that was answered, 14, and what is reserved for this one.
                assert int(response.headers["x-ratelimit-remaining-tokens"]) >= 1000 - 14 - 14
                await response.read()


@pytest.mark.parametrize("whole", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_what_is_no_answer_is_not_charged_and_the_next_worker_gets_the_call(gateway, records, whole):
    async with ScriptedWorker() as bad, ScriptedWorker() as good:
        rules = {"routing.policy": "round_robin"}
        async with gateway(bad, good, kind="openai", limits=LIMITS, **rules) as running:
            bad.then(whole=whole)
            for _ in range(2):
                assert (await asked(running, max_tokens=4))[0] == 200
            assert (len(bad.seen), len(good.seen)) == (1, 2)
            assert sorted(record.attempts for record in records) == [1, 2]
            assert {record.worker for record in records} == {"w1"}
            good.then(whole=whole)
            status, body = await asked(running, max_tokens=4)
            assert (status, body["error"]["code"]) == (502, "worker_error")
            assert (records[-1].charged, records[-1].spend) == (None, 0)
            await running.until(lambda: running.idle)


async def test_a_message_that_is_none_is_requested_elsewhere_and_its_usage_not_charged(gateway, records):
    main, spare_model = {"name": "m", "fallbacks": ["spare"]}, {"name": "spare"}
    async with ScriptedWorker() as first, ScriptedWorker(["spare"]) as spare:
        async with gateway(
            first, spare, kind="openai", limits=LIMITS, **models(main, spare_model)
        ) as running:
            first.then(more={"choices": []}, prompt_tokens=900)
            body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
            async with running.http.post(
                f"{running.url}/v1/messages", json=body, headers=running.headers()
            ) as response:
                assert (response.status, (await response.json())["type"]) == (200, "message")
            assert (len(first.seen), len(spare.seen)) == (1, 1)
            (record,) = records
            assert (record.worker, record.charged.prompt_tokens) == ("w1", 10)
            await running.until(lambda: running.idle)
            async with running.chat(model="spare", max_tokens=4) as response:
                assert int(response.headers["x-ratelimit-remaining-tokens"]) >= 1000 - 14 - 14
                await response.read()


@pytest.mark.parametrize("path", ["messages", "responses"])
async def test_a_stream_that_has_begun_is_never_continued_by_another_model(gateway, records, path):
    main, spare_model = {"name": "m", "fallbacks": ["spare"]}, {"name": "spare"}
    async with ScriptedWorker() as first, ScriptedWorker(["spare"]) as spare:
        async with gateway(first, spare, **models(main, spare_model)) as running:
            first.then(tokens=0, last_frame=b"data: <html>\n\n")
            body = {"model": "m", "stream": True, "max_tokens": 4}
            said = [{"role": "user", "content": "hi"}]
            body |= {"messages": said} if path == "messages" else {"input": said, "store": False}
            async with running.http.post(
                f"{running.url}/v1/{path}", json=body, headers=running.headers()
            ) as response:
                text = await response.text()
            assert (len(first.seen), len(spare.seen)) == (1, 0)
            assert text.count("event: message_start") + text.count("event: response.created") == 1
            (record,) = records
            assert (record.code, record.model, record.worker) == ("stream_interrupted", "m", "w0")
