"""Models that answer for others: weighted splits, and fallbacks. Scripted workers, real Valkey."""

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
            await running.until(lambda: running.here.gateway.fleet["w1"].health.health.value == "down", 20)
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
async def test_a_fallback_answers_where_nobody_serves_the_model(gateway, stream):
    main = {"name": "m", "fallbacks": ["missing", "spare"]}
    async with ScriptedWorker() as first, ScriptedWorker(["spare"]) as spare:
        async with gateway(first, spare, **models(main)) as running:
            await first.stop()
            await running.until(lambda: running.here.gateway.fleet["w0"].health.health.value == "down", 20)
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
