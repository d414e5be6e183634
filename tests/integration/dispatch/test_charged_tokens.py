"""Charged tokens where the worker's count is missing or impossible: exactly the tokens that came."""

import asyncio
import json

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

STREAM = {"stream": True, "max_tokens": 2000}


async def leave_after(running, text, *, n=1, frames_left=0, **more):
    """Read a stream up to a text, and hang up."""
    got = ""
    async with running.chat(n=n, **STREAM, **more) as response:
        while text not in got:
            got += (await response.content.readany()).decode()
    return got


async def charged(running, records, count=1):
    await running.until(lambda: len(records) == count and running.idle)
    return records[-1].charged


async def test_a_client_that_leaves_before_the_usage_pays_by_the_engines_running_count(gateway, records):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=1000, frame_tokens=100, running_usage=True, gap=0.02)
        got = await leave_after(running, "w499 ")
        assert '"usage":{' not in got
        paid = await charged(running, records)
    assert records[-1].code == "client_closed"
    assert worker.seen[0].body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert paid.output_tokens in range(500, 1001, 100)
    assert (paid.prompt_tokens, paid.cached_tokens) == (10, 0)


async def test_each_choice_is_counted(gateway, records):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=1000, frame_tokens=100, choices=3, running_usage=True, gap=0.02)
        await leave_after(running, "w499 ", n=3)
        paid = await charged(running, records)
    assert 3 * 400 <= paid.output_tokens <= 3 * 1000
    assert paid.prompt_tokens == 10


async def test_text_is_counted_where_engines_have_no_running_count(gateway, records):
    async with ScriptedWorker() as worker, gateway(worker, kind="openai") as running:
        worker.then(tokens=1000, frame_tokens=100, gap=0.02)
        got = await leave_after(running, "w499 ")
        paid = await charged(running, records)
    assert "continuous_usage_stats" not in worker.seen[0].body["stream_options"]
    came = sum(
        len(json.loads(frame[6:])["choices"][0]["delta"]["content"]) for frame in got.split("\n\n")[:-1]
    )
    assert paid.output_tokens >= came // 4 > 500


async def test_text_is_counted_by_the_models_tokenizer(gateway, records, checkpoint):
    models = json.dumps([{"name": "m", "tokenizer": str(checkpoint), "context_length": 4096}])
    async with ScriptedWorker() as worker, gateway(worker, kind="openai", models=models) as running:
        worker.then(tokens=200, frame_tokens=50, break_after=3)
        async with running.chat(**STREAM) as response:
            assert "stream_interrupted" in await response.text()
        paid = await charged(running, records)
        encoder = running.here.gateway.services.catalogue.find("m").encoder
    assert encoder.exact
    assert (
        paid.output_tokens == encoder.count_answer_text("".join(f"w{number} " for number in range(150))) > 150
    )


async def test_frames_with_usage_pass_to_a_client_that_requested_them(gateway):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for asked, counts in ((options, [1, 2, 3, 4, 4]), ({"include_usage": True}, [4])):
        async with ScriptedWorker() as worker, gateway(worker) as running:
            worker.then(running_usage=True)
            async with running.chat(stream_options=asked, **STREAM) as response:
                frames = [json.loads(part[6:]) for part in (await response.text()).split("\n\n")[:-2]]
        assert [frame["usage"]["completion_tokens"] for frame in frames if frame.get("usage")] == counts
        assert len(frames) == 5


@pytest.mark.parametrize("streamed", [False, True], ids=["asked for whole", "put together from a stream"])
async def test_choices_abandoned_while_they_are_computed_are_paid(gateway, records, streamed):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        if streamed:
            running.knows_shapes()
        worker.then(tokens=1000, choices=16, running_usage=True, gap=0.02 / 16 if streamed else 0.02)
        call = running.chat(n=16, max_tokens=1000)
        task = asyncio.ensure_future(call.__aenter__())
        await running.until(lambda: worker.seen)
        await asyncio.sleep(1.0)
        task.cancel()
        paid = await charged(running, records)
    assert bool(worker.seen[0].body.get("stream")) is streamed
    assert records[-1].code == "client_closed"
    # 20 ms for each token of each choice, as workers are assumed to need before they are known.
    assert 16 * 10 <= paid.output_tokens <= 16 * 500


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "lie", [{"prompt_tokens": 2**39}, {"tokens": 7}], ids=["of the prompt", "of the answer"]
)
async def test_a_count_that_cannot_be_is_not_charged(gateway, records, lie, stream):
    limits = [{"total_tokens": 10_000, "per": "day"}]
    models = json.dumps([{"name": "m", "context_length": 4096}])
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, models=models) as running:
        worker.then(**lie)
        async with running.chat(stream=stream, max_tokens=5) as response:
            assert response.status == 200
            await response.read()
        paid = await charged(running, records)
        async with running.http.get(running.admin + "/metrics") as response:
            assert 'radixgate_worker_usage_refused_total{worker="w0"} 1.0' in await response.text()
        await running.settled()
        worker.then(prompt_tokens=10, tokens=4)
        async with running.chat(max_tokens=5) as response:
            assert response.status == 200
    assert records[0].code == "ok"
    assert paid.prompt_tokens < 100
    assert paid.output_tokens <= 5


async def test_a_count_at_its_bound_is_charged(gateway, records):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(tokens=5, choices=2)
        async with running.chat(stream=True, max_tokens=5, n=2) as response:
            await response.read()
        paid = await charged(running, records)
        assert paid.output_tokens == 10
        assert not records[-1].usage_impossible
