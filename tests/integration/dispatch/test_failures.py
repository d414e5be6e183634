"""Failures and the client's view of them: workers before and after the first byte, full queues, no Valkey."""

import asyncio
import json

import pytest
from aiohttp import web

from gateway.telemetry.metrics import RequestMetrics
from tests.fakes.scripted_worker import ScriptedWorker


async def status_of(running, **more):
    async with running.chat(**more) as response:
        await response.read()
        return response.status


def health(running):
    return [worker.health.state.value for worker in running.here.gateway.fleet]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", [{"break_after": 0}, {"status": 500}, {"status": 503}, {"status": 429}])
async def test_a_failure_before_the_first_byte_goes_to_the_next_worker(gateway, fault, stream):
    async with ScriptedWorker() as bad, ScriptedWorker() as good, gateway(bad, good) as running:
        bad.then(**fault)
        statuses = [await status_of(running, text=f"{n}" * 50, stream=stream) for n in range(8)]
        assert statuses == [200] * 8
        assert len(good.seen) == 8
        assert running.idle


async def test_a_worker_that_is_gone_costs_no_request(gateway):
    async with ScriptedWorker() as gone, ScriptedWorker() as good, gateway(gone, good) as running:
        await gone.stop()
        statuses = [await status_of(running, stream=True) for _ in range(10)]
        assert statuses == [200] * 10
        await running.until(lambda: health(running)[0] == "down")


async def test_a_worker_that_comes_back_is_used_again_and_starts_with_an_empty_cache(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        index = running.here.gateway.services.dispatch.index
        assert await status_of(running, text="long " * 500) == 200
        await running.until(lambda: index.stats().blocks > 0)
        port = int(worker.url.rsplit(":", 1)[1])
        await worker.stop()
        await running.until(lambda: health(running) == ["down"], seconds=60)
        assert await status_of(running) == 503
        worker.instance = "second"
        await worker.start(port)
        await running.until(lambda: health(running) == ["up"], seconds=60)
        assert await status_of(running) == 200


async def test_a_restart_between_two_probes_is_noticed(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        at = running.here.gateway.services.dispatch
        assert await status_of(running, text="long " * 500) == 200
        await running.until(lambda: at.index.stats().blocks > 0)
        worker.instance = "second"
        (only,) = at.fleet
        await at.fleet.probe(only)
        assert await status_of(running, text="long " * 500) == 200
        async with running.http.get(running.admin + "/metrics") as response:
            metrics = await response.text()
        assert 'radixgate_worker_predicted_cached_tokens_total{worker="w0"} 0.0' in metrics


async def test_after_the_first_byte_there_is_an_error_frame_and_no_done(gateway):
    async with ScriptedWorker() as worker, ScriptedWorker() as other, gateway(worker, other) as running:
        for each in (worker, other):
            each.then(break_after=2, tokens=10)
        async with running.chat(stream=True) as response:
            text = await response.text()
        frames = [frame for frame in text.split("\n\n") if frame]
        error = json.loads(frames[-1].removeprefix("data: "))["error"]
        assert response.status == 200
        assert (error["code"], error["type"]) == ("stream_interrupted", "server_error")
        assert set(error) == {"message", "type", "param", "code"}
        assert "[DONE]" not in text
        assert len(worker.seen) + len(other.seen) == 1
        await running.until(lambda: running.idle)


async def test_a_connection_outlives_an_interrupted_stream(gateway):
    """A client that has read to the end may reuse its connection; closing it would cost its next request."""
    async with ScriptedWorker() as worker, gateway(worker) as running:
        for _ in range(20):
            worker.then(break_after=1)
            async with running.chat(stream=True) as response:
                assert "stream_interrupted" in await response.text()
            worker.then(break_after=None)
            assert await status_of(running) == 200


BOUNDS = {
    True: {"requests.first_token_seconds_max": "0.2"},
    False: {"requests.first_token_seconds_max": "0.2", "requests.whole_answer_seconds_max": "0.2"},
}


@pytest.mark.parametrize("stream", BOUNDS)
async def test_a_worker_that_never_answers_is_given_up(gateway, stream):
    async with ScriptedWorker() as worker, gateway(worker, **BOUNDS[stream]) as running:
        worker.then(silent=True)
        async with running.chat(stream=stream) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (504, "worker_timeout")
        await asyncio.wait_for(worker.seen[0].done.wait(), 60)
        assert worker.seen[0].ended == "aborted"


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}], ids=["the first of a worker", "with tools"])
async def test_an_answer_that_comes_at_once_may_take_longer_than_a_first_token(gateway, more):
    settings = {"requests.first_token_seconds_max": "0.2"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(gap=0.1, tokens=5)
        async with running.chat(**more) as response:
            assert response.status == 200, await response.text()
        assert not worker.seen[0].body.get("stream")


async def test_a_request_without_a_first_byte_of_a_worker_that_goes_down_gets_it_from_another(gateway):
    async with ScriptedWorker() as stalled, ScriptedWorker() as good, gateway(stalled, good) as running:
        for worker in (stalled, good):
            worker.then(silent=True)
        calls = [
            asyncio.create_task(status_of(running, text=f"{n}" * 50, stream=n % 2 == 0)) for n in range(8)
        ]
        await running.until(lambda: stalled.seen and len(stalled.seen) + len(good.seen) == 8)
        good.then(silent=False)
        # What the good one has taken already it never answers; only the others are looked at.
        left = len(good.seen)
        stalled.ready = False
        await running.until(lambda: health(running)[0] == "down", seconds=60)
        await running.until(lambda: sum(call.done() for call in calls) == 8 - left)
        assert {call.result() for call in calls if call.done()} == {200}
        for call in calls:
            call.cancel()


async def test_where_there_is_no_other_worker_one_goes_on_waiting(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(first_after=6.0)
        call = asyncio.create_task(status_of(running, stream=True))
        await running.until(lambda: worker.seen)
        worker.ready = False
        await running.until(lambda: health(running) == ["down"], seconds=60)
        assert await call == 200


async def test_a_stream_that_falls_silent_is_ended(gateway):
    settings = {"requests.idle_seconds_max": "0.2"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(gap=30.0)
        async with running.chat(stream=True) as response:
            text = await asyncio.wait_for(response.text(), 60)
        assert "stream_interrupted" in text
        await asyncio.wait_for(worker.seen[0].done.wait(), 60)


async def test_a_request_that_two_workers_fail_at_is_tried_no_more_and_counts_against_no_worker(gateway):
    workers = [ScriptedWorker() for _ in range(4)]
    async with workers[0] as a, workers[1] as b, workers[2] as c, workers[3] as d:
        for worker in workers:
            worker.then(status=500)
        async with gateway(a, b, c, d) as running:
            for asked in range(1, 9):
                async with running.chat() as response:
                    error = (await response.json())["error"]
                assert (response.status, error["code"]) == (502, "worker_error")
                assert sum(len(worker.seen) for worker in workers) == 2 * asked
            assert health(running) == ["up"] * 4
            assert running.idle


async def test_a_worker_alone_is_not_blamed_for_a_status_500(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(status=500)
        assert [await status_of(running) for _ in range(5)] == [502] * 5
        assert health(running) == ["up"]
        worker.then(status=200)
        assert await status_of(running) == 200


async def test_a_worker_that_fails_where_another_does_not_is_blamed(gateway):
    async with ScriptedWorker() as bad, ScriptedWorker() as good, gateway(bad, good) as running:
        bad.then(status=500)
        for n in range(20):
            assert await status_of(running, text=f"{n}" * 50) == 200
            if health(running)[0] != "up":
                break
        assert health(running) == ["suspect", "up"]


async def test_a_worker_that_fails_where_another_refuses_is_not_blamed(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other) as running:
        one.then(status=500)
        other.then(status=400)
        for n in range(10):
            assert await status_of(running, text=f"{n}" * 50) == 400
        assert one.seen
        assert health(running) == ["up", "up"]


@pytest.mark.parametrize("status", [429, 503])
async def test_when_all_workers_are_busy_the_client_is_told_when_to_come_back(gateway, status):
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other) as running:
        one.then(status=status, headers={"Retry-After": "9"})
        other.then(status=status, headers={"Retry-After": "7"})
        for said in ("7", "7", "1"):
            if said == "1":
                one.then(headers={})
                other.then(headers={"Retry-After": "soon"})
            async with running.chat() as response:
                error = (await response.json())["error"]
            assert (response.status, error["code"]) == (503, "overloaded")
            assert response.headers["retry-after"] == said
        assert health(running) == ["up", "up"]
        assert [worker.failures for worker in running.here.gateway.fleet] == [0, 0]
        assert running.idle


async def test_a_failure_of_the_only_worker_keeps_its_words_without_addresses(gateway):
    body = {"error": {"message": "CUDA error at http://10.0.0.1:8000 in /opt/engine/run.py: out of memory"}}
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(status=500, body=body)
        async with running.chat() as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (502, "worker_error")
        assert (
            error["message"] == "The worker failed on this request: CUDA error at ... in ...: out of memory"
        )
        worker.then(body={})
        async with running.chat() as response:
            assert (await response.json())["error"]["message"] == "No worker could answer the request."
        await running.until(lambda: running.idle)


async def test_too_many_requests_at_the_only_worker_are_too_many_requests_of_the_client(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(status=429, headers={"Retry-After": "9"})
        async with running.chat() as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (429, "rate_limited_by_worker")
        assert response.headers["retry-after"] == "9"
        headers = {**running.headers(), "anthropic-version": "2023-06-01"}
        body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        async with running.http.post(f"{running.url}/v1/messages", json=body, headers=headers) as response:
            error = (await response.json())["error"]
        assert (response.status, error["type"]) == (429, "rate_limit_error")


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_refusal_without_words_is_passed_on_and_not_tried_again(gateway, status):
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other) as running:
        for worker in (one, other):
            worker.then(status=status, body={})
        async with running.chat() as response:
            error = (await response.json())["error"]
        assert (response.status, error["type"]) == (status, "invalid_request_error")
        assert error["message"] == "The worker refused the request."
        assert len(one.seen) + len(other.seen) == 1
        assert health(running) == ["up", "up"]


async def test_a_worker_that_talks_nonsense_leaves_the_others_alone(gateway):
    async with ScriptedWorker() as bad, ScriptedWorker() as good, gateway(bad, good) as running:
        bad.listed = b'{"data":[{"id":"\xff"}]}'
        await running.until(lambda: health(running) == ["down", "up"], seconds=60)
        assert await status_of(running) == 200
        assert running.here.gateway.supervisor.loops["probes"].restarts == 0


async def test_no_more_workers_are_tried_than_the_settings_allow(gateway):
    workers = [ScriptedWorker() for _ in range(4)]
    async with workers[0] as a, workers[1] as b, workers[2] as c, workers[3] as d:
        for worker in workers:
            worker.then(status=502)
        async with gateway(a, b, c, d, **{"requests.attempts_max": "2"}) as running:
            async with running.chat() as response:
                error = (await response.json())["error"]
            assert (response.status, error["code"]) == (502, "worker_error")
            assert sum(len(worker.seen) for worker in workers) == 2


async def test_when_too_many_are_tried_again_the_first_failure_is_the_answer(gateway):
    """Where all workers fail for one reason, trying again would only be more of it."""
    settings = {
        "routing.policy": "round_robin",
        "requests.retries": json.dumps({"share": 0.0, "at_least": 2, "seconds": 3600}),
    }
    async with ScriptedWorker() as full, ScriptedWorker() as good, gateway(full, good, **settings) as running:
        full.then(status=503, body={}, headers={"Retry-After": "7"})
        statuses = [await status_of(running) for _ in range(12)]
        assert statuses.count(200) == len(good.seen)
        assert statuses.count(503) == len(full.seen) - 2
        assert len(full.seen) + len(good.seen) == len(statuses) + 2
        async with running.http.get(running.admin + "/metrics") as response:
            metrics = await response.text()
        assert "radixgate_retries_total 2.0" in metrics
        assert f"radixgate_retries_refused_total {statuses.count(503)}.0" in metrics
        assert running.idle


async def test_what_is_tried_again_grows_with_what_comes(gateway):
    settings = {
        "routing.policy": "round_robin",
        "requests.retries": json.dumps({"share": 1.0, "at_least": 0, "seconds": 3600}),
    }
    async with ScriptedWorker() as full, ScriptedWorker() as good, gateway(full, good, **settings) as running:
        full.then(status=503, body={})
        assert [await status_of(running) for _ in range(12)] == [200] * 12
        assert full.seen


async def test_a_fallback_after_a_failure_is_a_try_more(gateway):
    models = json.dumps([{"name": "m", "fallbacks": ["other"]}, {"name": "other"}])
    settings = {
        "models": models,
        "requests.retries": json.dumps({"share": 0.0, "at_least": 1, "seconds": 3600}),
    }
    async with (
        ScriptedWorker() as bad,
        ScriptedWorker(models=["other"]) as good,
        gateway(bad, good, **settings) as running,
    ):
        bad.then(status=500)
        assert [await status_of(running) for _ in range(3)] == [200, 502, 502]
        assert (len(bad.seen), len(good.seen)) == (3, 1)
        await running.until(lambda: running.idle)


async def test_without_a_worker_for_a_model_the_error_comes_at_once(gateway):
    models = json.dumps([{"name": "unserved"}])
    async with ScriptedWorker() as worker, gateway(worker, models=models) as running:
        async with running.chat(model="unserved") as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (503, "no_worker")
        assert response.headers["retry-after"] == "1"


async def test_a_model_that_a_silent_worker_may_have_is_no_unknown_one(gateway):
    """Clients try again after 503, and never after 404."""
    async with ScriptedWorker() as worker, ScriptedWorker(models=["late"]) as silent:
        silent.ready = False
        async with gateway(worker, silent, all_up=False) as running:
            assert await status_of(running) == 200
            async with running.chat(model="late") as response:
                error = (await response.json())["error"]
            assert (response.status, error["code"]) == (503, "no_worker")
            silent.ready = True
            await running.until(lambda: health(running) == ["up", "up"])
            assert await status_of(running, model="late") == 200
            assert await status_of(running, model="nobody") == 404
            silent.ready = False
            await running.until(lambda: health(running)[1] != "up")
            assert await status_of(running, model="nobody") == 404


async def test_a_worker_whose_models_are_in_the_settings_need_not_have_answered(gateway):
    async with ScriptedWorker() as worker, ScriptedWorker() as silent:
        silent.ready = False
        workers = [
            {"id": f"w{n}", "kind": "sglang", "url": each.url, "models": ["m"]}
            for n, each in enumerate((worker, silent))
        ]
        async with gateway(workers=json.dumps(workers), all_up=False) as running:
            assert await status_of(running, model="nobody") == 404


async def test_a_full_queue_refuses_with_the_time_to_come_back(gateway):
    settings = {"queueing.release_window_tokens": "1", "queueing.waiting_requests_max": "2"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(first_after=0.3)
        room = running.here.gateway.services.dispatch.rooms.of("m")
        calls = [asyncio.create_task(status_of(running, stream=True))]
        await running.until(lambda: worker.seen)
        calls += [asyncio.create_task(status_of(running, stream=True)) for _ in range(2)]
        await running.until(lambda: len(room) == 2)
        async with running.chat() as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (429, "too_many_waiting")
            assert int(response.headers["retry-after"]) >= 1
        async with running.chat(tenant="globex") as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (503, "overloaded")
        assert await asyncio.gather(*calls) == [200, 200, 200]


async def test_waiting_too_long_is_an_answer_of_its_own(gateway):
    settings = {"queueing.release_window_tokens": "1", "queueing.waiting_seconds_max": "0.1"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(silent=True)
        first = asyncio.create_task(status_of(running))
        await running.until(lambda: worker.seen)
        async with running.chat() as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (503, "admission_timeout")
        first.cancel()


async def test_requests_in_the_window_go_out_together_and_the_rest_in_turn(gateway):
    """The window counts uncached prompt tokens; a first token makes room for the next."""
    settings = {"queueing.release_window_tokens": "64"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(first_after=0.1)
        calls = [asyncio.create_task(status_of(running, text="x" * 60, stream=True)) for _ in range(6)]
        await running.until(lambda: worker.seen)
        assert len(worker.seen) <= 3
        assert await asyncio.gather(*calls) == [200] * 6
        await running.until(lambda: running.idle)


async def test_a_valkey_that_dies_under_load_costs_no_request_and_comes_back(gateway, own_valkey):
    limits = [{"requests": 100_000, "per": "minute"}]
    settings = {"redis.url": own_valkey.url, "redis.timeout_ms": "100"}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=limits, concurrency=1000, **settings) as running,
    ):
        quotas = running.here.gateway.quotas.store
        statuses = []
        going = True

        async def load():
            while going:
                statuses.append(await status_of(running, stream=True))

        callers = [asyncio.create_task(load()) for _ in range(4)]
        await running.until(lambda: len(statuses) > 20)
        own_valkey.kill()
        await running.until(lambda: quotas.away)
        async with running.http.get(running.admin + "/health/ready") as response:
            ready = await response.json()
            assert (response.status, ready["ready"], ready["redis"]) == (200, True, "away")
        async with running.http.get(running.admin + "/metrics") as response:
            assert "radixgate_redis_up 0.0" in await response.text()
        seen = len(statuses)
        await running.until(lambda: len(statuses) > seen + 20)
        own_valkey.start()
        await running.until(lambda: not quotas.away)
        seen = len(statuses)
        await running.until(lambda: len(statuses) > seen + 20)
        going = False
        await asyncio.gather(*callers)
        assert set(statuses) == {200}
        await running.until(lambda: running.idle)
        assert quotas.local_decisions > 0


async def test_a_slow_valkey_is_not_waited_for(gateway, own_valkey):
    import signal

    limits = [{"requests": 100_000, "per": "minute"}]
    settings = {"redis.url": own_valkey.url, "redis.timeout_ms": "50"}
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **settings) as running:
        assert await status_of(running) == 200
        own_valkey.process.send_signal(signal.SIGSTOP)
        statuses = await asyncio.wait_for(asyncio.gather(*(status_of(running) for _ in range(10))), 60)
        assert statuses == [200] * 10
        await running.until(lambda: running.here.gateway.quotas.store.away)
        own_valkey.process.send_signal(signal.SIGCONT)
        await running.until(lambda: not running.here.gateway.quotas.store.away, seconds=60)
        assert await status_of(running) == 200


async def test_limits_hold_while_valkey_is_away(gateway, own_valkey):
    limits = [{"requests": 5, "per": "day"}]
    settings = {"redis.url": own_valkey.url, "redis.timeout_ms": "100"}
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **settings) as running:
        own_valkey.kill()
        statuses = [await status_of(running) for _ in range(8)]
        assert statuses == [200] * 5 + [429] * 3


async def test_a_bug_in_the_gateway_is_an_error_with_its_request_id_and_no_traceback(
    gateway, monkeypatch, caplog
):
    from gateway.routing.router import Router

    def broken(*_args, **_more):
        raise RuntimeError("a bug with a rg-7Kq3-" + "A" * 49)

    async with ScriptedWorker() as worker, gateway(worker) as running:
        monkeypatch.setattr(Router, "rank", broken)
        async with running.chat() as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (500, "internal_error")
        assert response.headers["x-request-id"] in error["message"]
        assert "bug with" not in error["message"]
        assert running.idle
        assert "a bug with" in caplog.text


async def test_a_bug_in_any_handler_is_answered_in_the_listeners_own_shape(gateway, monkeypatch, caplog):
    def broken(*_args, **_more):
        raise RuntimeError("a bug")

    async with ScriptedWorker() as worker, gateway(worker) as running:
        monkeypatch.setattr("gateway.web.model_list.ModelHandlers._visible", broken)
        monkeypatch.setattr("gateway.web.operator_views.overview_of", broken)
        async with running.http.get(running.url + "/v1/models", headers=running.headers()) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (500, "internal_error")
        async with running.http.get(running.admin + "/admin/v1/overview") as response:
            assert response.status == 500
            assert response.content_type == "application/problem+json"
            assert (await response.json(content_type=None))["detail"].startswith("The gateway failed")
        assert caplog.text.count("RuntimeError: a bug") == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_worker_that_reports_nonsense_is_charged_as_one_that_reports_nothing(gateway, stream):
    limits = [{"total_tokens": 1000, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        for nonsense in ({"prompt_tokens": -(10**6)}, {"prompt_tokens": 2**60}, {"cached_tokens": 11}):
            worker.then(prompt_tokens=10, cached_tokens=0)
            worker.then(**nonsense)
            assert await status_of(running, stream=stream) == 200
            await running.until(lambda: running.idle)
        async with running.http.get(running.admin + "/metrics") as response:
            metrics = await response.text()
        assert 'radixgate_requests_total{code="ok",model="m",tenant="acme"} 3.0' in metrics
        assert 'radixgate_cached_tokens_total{model="m",tenant="acme"} 0.0' in metrics
        async with running.chat(max_tokens=1) as response:
            assert 800 < int(response.headers["x-ratelimit-remaining-tokens"]) < 1000


async def test_an_observer_that_fails_keeps_the_record_from_no_other_observer(gateway, monkeypatch, caplog):
    def broken(self, record):
        raise ValueError("cannot observe")

    monkeypatch.setattr(RequestMetrics, "observe", broken)
    async with ScriptedWorker() as worker, gateway(worker) as running:
        assert await status_of(running) == 200
        assert running.here.gateway.overview.all.total.requests == 1
    assert caplog.text.count("ValueError: cannot observe") == 1


async def test_a_refusal_that_is_no_text_is_a_refusal_all_the_same(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                web, "json_response", lambda *_, **__: web.Response(status=400, body=b'{"message":"\xff"}')
            )
            worker.then(status=400)
            async with running.chat() as response:
                error = (await response.json())["error"]
        assert (response.status, error["message"]) == (400, "The worker refused the request.")
