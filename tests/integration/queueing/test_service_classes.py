"""Service classes, deadlines, preemption and keep-alive comments, through a whole gateway."""

import asyncio
import json

import pytest

from policies.latency_model import PrefillFit
from tests.fakes.scripted_worker import ScriptedWorker

HOUR = {"gap": 3600.0, "first_after": 3600.0}
WINDOW = {"queueing.release_window_tokens": "1"}
LONG = "x" * 300


def ask(running, text=LONG, *, headers=None, tenant="acme", **more):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    headers = {**running.headers(tenant), **(headers or {})}
    return asyncio.ensure_future(
        running.http.post(f"{running.url}/v1/chat/completions", json=body, headers=headers).__aenter__()
    )


def learn(worker, fixed_ms, ms_per_token):
    fit = PrefillFit(fixed_ms=fixed_ms, ms_per_token=ms_per_token, error_ms=1.0, samples=100)
    worker.learnt.own.fit, worker.learnt._speed = fit, fit.speed(worker.speed)


def known(running, ms_per_token=0.1, fixed_ms=1.0):
    """Workers' speeds have been learnt, and are these."""
    for worker in running.here.gateway.fleet:
        learn(worker, fixed_ms, ms_per_token)


async def occupied(running, worker, **more):
    """A first request holds the worker's window."""
    seen = len(worker.seen)
    task = ask(running, **more)
    await running.until(lambda: len(worker.seen) > seen)
    return task


async def left(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def rooms(running):
    return running.here.gateway.services.dispatch.rooms.all()


async def refusal(task):
    answer = await task
    return answer.status, (await answer.json())["error"]["code"], answer.headers.get("retry-after")


async def metric(running, text):
    async with running.http.get(running.admin + "/metrics") as response:
        return text in await response.text()


async def test_what_cannot_meet_its_target_is_turned_away_before_it_costs_a_prefill(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        known(running, fixed_ms=1000.0)
        assert await refusal(ask(running, headers={"x-radixgate-class": "voice"})) == (
            503,
            "target_missed",
            "1",
        )
        assert worker.seen == []
        assert (await ask(running, stream=True)).status == 200
        assert await metric(running, 'class_requests_total{class="voice",outcome="turned_away"} 1.0')
        assert await metric(running, 'class_requests_total{class="chat",outcome="met"} 1.0')


async def test_one_that_waits_is_turned_away_when_its_target_has_passed(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **WINDOW) as running:
        worker.then(**HOUR)
        first = await occupied(running, worker)
        assert (await refusal(ask(running, headers={"x-radixgate-class": "voice"})))[:2] in (
            (503, "target_missed"),
            (503, "admission_timeout"),
        )
        await left(first)
        await running.until(lambda: running.idle)
        assert len(worker.seen) == 1


async def test_a_demoted_request_waits_behind_the_others(gateway):
    settings = {**WINDOW, "classes.chat.late": "demote", "classes.chat.ttft_ms": "1"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(**HOUR)
        first = await occupied(running, worker)
        second = ask(running)
        await running.until(lambda: "m#batch" in rooms(running) and len(rooms(running)["m#batch"]) == 1)
        third = ask(running, headers={"x-radixgate-class": "code"})
        await running.until(lambda: len(rooms(running)["m"]) == 1 or third.done())
        await left(first, second, third)
        await running.until(lambda: running.idle)


async def test_the_next_choice_is_taken_where_it_keeps_the_target_and_the_first_does_not(gateway):
    async with ScriptedWorker() as slow, ScriptedWorker() as fast, gateway(slow, fast) as running:
        known(running, fixed_ms=10.0)
        fleet = list(running.here.gateway.fleet)
        # The first choice has the prompt cached, and has become slow.
        await (await ask(running, "p" * 4000)).read()
        chosen, other = (fleet[0], fleet[1]) if slow.seen else (fleet[1], fleet[0])
        known(running, fixed_ms=10.0)
        learn(chosen, 10_000.0, 0.001)
        await (await ask(running, "p" * 4000, headers={"x-radixgate-class": "code"})).read()
        assert (len(slow.seen), len(fast.seen)) == (1, 1)
        assert other.load.streams == 0


@pytest.mark.parametrize("kind", ["sglang", "vllm", "embedded"])
async def test_the_engine_gets_the_priority_of_the_class_and_never_the_clients(gateway, kind):
    async with ScriptedWorker() as worker, ScriptedWorker() as plain:
        settings = {
            "workers": json.dumps(
                [
                    {"id": "w0", "kind": kind, "url": worker.url, "priority": "on"},
                    {"id": "w1", "kind": "sglang", "url": plain.url, "models": ["other"]},
                ]
            )
        }
        plain.models = ["other"]
        async with gateway(**settings) as running:
            await (await ask(running, priority=99, headers={"x-radixgate-class": "voice"})).read()
            await (await ask(running, priority=99, headers={"x-radixgate-class": "batch"})).read()
            body = {"model": "other", "messages": [{"role": "user", "content": "hi"}], "priority": 99}
            url = f"{running.url}/v1/chat/completions"
            async with running.http.post(url, json=body, headers=running.headers()) as answer:
                assert answer.status == 200
    urgent, batch = (seen.body["priority"] for seen in worker.seen)
    assert (urgent > batch) is (kind == "sglang")
    assert "priority" not in plain.seen[0].body


async def test_batch_work_gets_what_the_others_leave(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **WINDOW) as running:
        gate = asyncio.Event()
        worker.then(until=gate)
        first = await occupied(running, worker)
        batch = ask(running, "batch" * 60, headers={"x-radixgate-class": "batch"})
        await running.until(lambda: "m#batch" in rooms(running) and len(rooms(running)["m#batch"]) == 1)
        chat = ask(running, "chatty" * 50, tenant="globex")
        await running.until(lambda: len(rooms(running)["m"]) == 1)
        gate.set()
        for task in (first, batch, chat):
            await (await task).read()
    assert ["batch" in seen.body["messages"][0]["content"] for seen in worker.seen] == [False, False, True]


async def test_batch_work_gives_way_before_its_first_token_and_is_done_later(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **WINDOW, **{"queueing.preempts": "true"}) as running,
    ):
        worker.then(**HOUR)
        batch = await occupied(running, worker, text="batch" * 60, headers={"x-radixgate-class": "batch"})
        worker.then(gap=0.0, first_after=0.0)
        chat = await ask(running, tenant="globex")
        assert chat.status == 200
        assert (await batch).status == 200
        await running.until(lambda: running.idle)
        assert await metric(running, "radixgate_preemptions_total 1.0")
    assert [seen.ended for seen in worker.seen] == ["aborted", "finished", "finished"]


async def test_batch_work_at_another_gateway_gives_way_once(gateway):
    preempts = {**WINDOW, "queueing.preempts": "true"}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **preempts) as running,
        gateway(worker, **preempts) as other,
        gateway(worker, **preempts) as third,
    ):
        for at in (running, other, third):
            queue = at.here.gateway.services.dispatch.queue
            await at.until(lambda queue=queue: queue.shared and queue.gateways == 3)
        worker.then(**HOUR)
        batch = await occupied(other, worker, text="batch" * 60, headers={"x-radixgate-class": "batch"})
        worker.then(gap=0.0, first_after=0.0)
        assert (await ask(running, tenant="globex")).status == 200
        assert (await batch).status == 200
        for at in (running, other, third):
            await at.until(lambda at=at: at.idle)
        assert await metric(other, "radixgate_preemptions_total 1.0")
        assert await metric(running, "radixgate_preemptions_total 0.0")
    assert [seen.ended for seen in worker.seen] == ["aborted", "finished", "finished"]


async def test_batch_work_that_has_begun_to_answer_keeps_its_place(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **WINDOW, **{"queueing.preempts": "true"}) as running,
    ):
        worker.then(gap=0.2)
        batch = await occupied(running, worker, stream=True, headers={"x-radixgate-class": "batch"})
        answer = await batch
        chat = await ask(running, tenant="globex")
        assert chat.status == 200
        assert b"[DONE]" in await answer.read()
    assert [seen.ended for seen in worker.seen] == ["finished", "finished"]


@pytest.mark.parametrize("name", ["x-stainless-read-timeout", "x-stainless-timeout", "x-request-timeout"])
async def test_a_request_with_a_client_that_would_be_gone_is_not_sent_to_a_worker(gateway, name):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        known(running, fixed_ms=5000.0)
        assert (await refusal(ask(running, headers={name: "2"})))[:2] == (504, "deadline_exceeded")
        assert worker.seen == []
        assert (await ask(running, headers={name: "60"})).status == 200


async def test_waiting_ends_when_the_clients_own_time_is_over(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **WINDOW) as running:
        worker.then(**HOUR)
        first = await occupied(running, worker)
        assert (await refusal(ask(running, headers={"x-request-timeout": "0.2"})))[:2] == (
            504,
            "deadline_exceeded",
        )
        await left(first)
        await running.until(lambda: running.idle)


async def test_a_tenant_with_too_much_waiting_gets_429_and_others_do_not(gateway):
    settings = {**WINDOW, "queueing.tenant_waiting_requests_max": "1"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(**HOUR)
        first = await occupied(running, worker)
        second = ask(running)
        await running.until(lambda: len(rooms(running)["m"]) == 1)
        assert (await refusal(ask(running)))[:2] == (429, "too_many_waiting")
        third = ask(running, tenant="globex")
        await running.until(lambda: len(rooms(running)["m"]) == 2)
        await left(first, second, third)


async def test_a_stream_that_requests_them_gets_comments_while_it_waits(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **WINDOW) as running:
        gate = asyncio.Event()
        worker.then(until=gate)
        first = await occupied(running, worker)
        second = await ask(running, stream=True, headers={"x-radixgate-keep-alive": "0.1"})
        assert (second.status, second.headers["content-type"]) == (200, "text/event-stream")
        assert await second.content.readline() == b": waiting\n"
        gate.set()
        rest = await second.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert (await first).status == 200


async def test_an_error_after_signs_of_life_comes_in_the_stream(gateway):
    settings = {**WINDOW, "queueing.waiting_seconds_max": "3"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(**HOUR)
        first = await occupied(running, worker)
        second = await ask(running, stream=True, headers={"x-radixgate-keep-alive": "0.1"})
        text = await second.read()
        assert second.status == 200
        assert json.loads(text.split(b"data: ")[1])["error"]["code"] == "admission_timeout"
        await left(first)
        await running.until(lambda: running.idle)


async def test_a_stream_that_does_not_request_comments_gets_none(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **WINDOW) as running:
        gate = asyncio.Event()
        worker.then(until=gate)
        first = await occupied(running, worker)
        second = ask(running, stream=True)
        await running.until(lambda: len(rooms(running)["m"]) == 1)
        gate.set()
        assert b": waiting" not in await (await second).read()
        await first
