"""Requests that a real Envoy carries: everything that the gateway promises of a request holds."""

import asyncio
import gzip
import json

import aiohttp
import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.envoy import FULL_DUPLEX, by_metadata

LIMITS = [{"requests": 100, "per": "day"}, {"total_tokens": 100_000, "per": "day"}]
HELLO = [{"role": "user", "content": "hello"}]
ENDPOINT = "x-gateway-destination-endpoint"


def address(worker):
    return worker.url.removeprefix("http://")


async def read(request):
    async with request as response:
        return response.status, await response.json(content_type=None)


async def test_a_whole_answer_is_carried_and_settled_by_the_workers_usage(carried, records):
    async with ScriptedWorker() as worker, carried(worker, limits=LIMITS) as at:
        async with at.chat("hello", max_tokens=7) as response:
            body = await response.json()
            assert response.status == 200, body
            assert response.headers["x-ratelimit-remaining-requests"] == "99"
            assert response.headers["content-type"] == "application/json"
        assert body["choices"][0]["message"]["content"] == "w0 w1 w2 w3 "
        await at.gateway.settled()
    (seen,) = worker.seen
    assert seen.headers[ENDPOINT] == address(worker)
    assert seen.body["max_tokens"] == 7
    (record,) = records
    assert (record.code, record.worker, record.tenant) == ("ok", "w0", "acme")
    assert (record.prompt_tokens, record.output_tokens) == (10, 4)


async def test_the_worker_gets_what_the_gateway_would_send_and_nothing_of_the_clients_headers(carried):
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "cache_salt": "mine",
    }
    async with ScriptedWorker() as worker, carried(worker) as at:
        foreign = {"cookie": "a=b", "x-own": "1", ENDPOINT: "127.0.0.1:1"}
        assert (await at_end(at.post(headers=foreign, json=body)))[0] == 200
        relay = f"{at.gateway.url}/v1/chat/completions"
        assert (await at_end(at.gateway.http.post(relay, headers=at.gateway.headers(), json=body)))[0] == 200
    through_envoy, relayed = worker.seen
    assert {"authorization", "cookie", "x-own"} & {name.lower() for name in through_envoy.headers} == set()
    assert through_envoy.headers[ENDPOINT] == address(worker)
    assert through_envoy.headers["x-request-id"].startswith("req-")
    ids = {"rid", "request_id"}
    assert {name: value for name, value in through_envoy.body.items() if name not in ids} == {
        name: value for name, value in relayed.body.items() if name not in ids
    }


async def test_a_stream_arrives_as_it_is_written_with_its_usage_withheld_and_settled(carried, records):
    async with ScriptedWorker() as worker, carried(worker, limits=LIMITS) as at:
        the_first_has_come = asyncio.Event()
        worker.then(tokens=3, second_frame_until=the_first_has_come)
        async with at.chat(stream=True) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [await asyncio.wait_for(response.content.readline(), 60)]
            assert b'"w0 "' in lines[0]
            the_first_has_come.set()
            lines += [line async for line in response.content]
        assert [line for line in lines if line.strip()][-1] == b"data: [DONE]\n"
        assert b"".join(lines).count(b'"usage":{') == 0
        assert worker.seen[0].body["stream_options"]["include_usage"] is True
        await at.gateway.settled()
    (record,) = records
    assert (record.code, record.prompt_tokens, record.output_tokens) == ("ok", 10, 3)


async def test_refusals_come_in_the_shape_of_the_api_that_was_called(carried):
    async with ScriptedWorker() as worker, carried(worker) as at:
        wrong = {"Authorization": "Bearer wrong"}
        status, body = await read(at.post(headers=wrong, json={"model": "m", "messages": HELLO}))
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        status, body = await read(
            at.post("/v1/messages", headers=wrong, json={"model": "m", "messages": HELLO, "max_tokens": 1})
        )
        assert (status, body["type"], body["error"]["type"]) == (401, "error", "authentication_error")
        status, body = await read(at.post(data=b"{"))
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        status, body = await read(at.post(json={"model": "other", "messages": HELLO}))
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        status, body = await read(at.post("/v1/files", json={}))
        assert (status, body["error"]["code"]) == (404, "not_found")
        async with at.gateway.http.get(f"{at.envoy.url}/v1/chat/completions") as response:
            assert response.status == 405
        assert worker.seen == []
        await at.gateway.settled()


async def test_a_request_beyond_the_quota_is_refused_before_a_worker_is_picked(carried):
    limits = [{"requests": 1, "per": "day"}]
    async with ScriptedWorker() as worker, carried(worker, limits=limits) as at:
        assert (await read(at.chat()))[0] == 200
        async with at.chat() as response:
            assert response.status == 429
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
            assert int(response.headers["retry-after"]) > 0
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(worker.seen) == 1


async def test_a_message_of_anthropics_api_is_translated_both_ways(carried):
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    async with ScriptedWorker() as worker, carried(worker) as at:
        status, whole = await read(at.post("/v1/messages", json=body))
        assert (status, whole["content"][0]["text"]) == (200, "w0 w1 w2 w3 ")
        assert whole["usage"]["output_tokens"] == 4
        async with at.post("/v1/messages", json={**body, "stream": True}) as response:
            events = [line for line in (await response.text()).split("\n") if line.startswith("event: ")]
        assert (events[0], events[-1]) == ("event: message_start", "event: message_stop")
        assert all(seen.headers[ENDPOINT] for seen in worker.seen)


async def test_a_request_waits_for_its_turn_and_leaves_the_queue_with_its_client(carried, records):
    async with ScriptedWorker() as worker:
        async with carried(worker, **{"queueing.release_window_tokens": 1}) as at:
            worker.then(until=asyncio.Event())
            first = asyncio.create_task(read(at.chat(stream=False)))
            await at.gateway.until(lambda: worker.seen)
            rooms = at.gateway.here.gateway.services.dispatch.rooms
            second = asyncio.create_task(read(at.chat(stream=False)))
            third = asyncio.create_task(read(at.chat(stream=False)))
            await at.gateway.until(lambda: sum(len(room) for room in rooms.all().values()) == 2)
            third.cancel()
            await at.gateway.until(lambda: sum(len(room) for room in rooms.all().values()) == 1)
            assert len(worker.seen) == 1
            worker.script.until.set()
            assert [(await call)[0] for call in (first, second)] == [200, 200]
            await at.gateway.settled()
    assert sorted(record.code for record in records) == ["client_closed", "ok", "ok"]
    assert sum(record.queue_seconds is not None for record in records) == 2


async def test_prompts_go_to_the_worker_that_has_their_prefix(carried):
    prefixes = [f"{number} " + "shared words " * 400 for number in range(4)]
    async with ScriptedWorker() as one, ScriptedWorker() as other, carried(one, other) as at:
        await asyncio.gather(*(read(at.chat(prefix)) for prefix in prefixes))
        places = [
            next(
                worker
                for worker in (one, other)
                if any(prefix in json.dumps(seen.body) for seen in worker.seen)
            )
            for prefix in prefixes
        ]
        assert {id(place) for place in places} == {id(one), id(other)}
        for prefix, place in zip(prefixes, places, strict=True):
            before = len(place.seen)
            await read(at.chat(prefix + "and more"))
            assert len(place.seen) == before + 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_byte_frees_everything(carried, records, stream):
    async with ScriptedWorker() as worker, carried(worker, limits=LIMITS, concurrency=5) as at:
        worker.then(silent=True)
        call = asyncio.create_task(read(at.chat(stream=stream)))
        await at.gateway.until(lambda: worker.seen)
        call.cancel()
        await at.gateway.until(lambda: at.gateway.idle)
        await asyncio.wait_for(worker.seen[0].done.wait(), 10)
        assert worker.seen[0].ended == "aborted"
        await at.gateway.settled()
    assert [record.code for record in records] == ["client_closed"]


async def test_a_client_that_leaves_in_the_middle_of_a_stream_is_charged_what_came(carried, records):
    async with ScriptedWorker() as worker, carried(worker, limits=LIMITS, concurrency=5) as at:
        worker.then(tokens=1000, gap=0.02)
        async with at.chat(stream=True, max_tokens=1000) as response:
            async for line in response.content:
                if b"w4" in line:
                    break
            response.close()
        await at.gateway.until(lambda: at.gateway.idle)
        await asyncio.wait_for(worker.seen[0].done.wait(), 10)
        assert worker.seen[0].ended == "aborted"
        await at.gateway.settled()
    (record,) = records
    assert record.code == "client_closed"
    assert 4 <= record.output_tokens < 1000


@pytest.mark.parametrize("stream", [True, False])
async def test_another_worker_answers_where_the_picked_one_cannot_be_reached(carried, records, stream):
    async with ScriptedWorker() as gone, ScriptedWorker() as there, carried(gone, there) as at:
        await gone.stop()
        answers = [await at_end(at.chat(f"{number}", stream=stream)) for number in range(4)]
        assert [status for status, _ in answers] == [200] * 4
        assert all("w3" in text for _, text in answers)
        await at.gateway.settled()
    assert {record.worker for record in records} == {"w1"}
    assert any(record.attempts == 2 for record in records)


@pytest.mark.parametrize("script", [{"status": 500}, {"status": 503}, {"break_after": 0}])
async def test_another_worker_answers_where_the_picked_one_fails_before_the_first_byte(
    carried, records, script
):
    async with ScriptedWorker() as bad, ScriptedWorker() as good, carried(bad, good) as at:
        bad.then(**script)
        answers = [await at_end(at.chat(f"{number}", stream=True)) for number in range(4)]
        assert [status for status, _ in answers] == [200] * 4
        assert all(text.endswith("data: [DONE]\n\n") for _, text in answers)
        await at.gateway.settled()
    assert {record.worker for record in records} == {"w1"}


async def test_a_stream_that_ends_early_ends_with_an_error_frame(carried, records):
    async with ScriptedWorker() as worker, carried(worker) as at:
        worker.then(tokens=3, last_frame=b"", finish_reason=None)
        status, text = await at_end(at.chat(stream=True))
        assert status == 200
        assert "w2" in text
        assert '"code":"stream_interrupted"' in text
        assert "[DONE]" not in text
        await at.gateway.settled()
    assert [record.code for record in records] == ["stream_interrupted"]


async def test_a_stream_whose_connection_breaks_is_cut_by_envoy_and_charged_what_came(carried, records):
    async with ScriptedWorker() as worker, carried(worker, limits=LIMITS) as at:
        worker.then(tokens=10, break_after=2, gap=0.05)
        with pytest.raises(aiohttp.ClientPayloadError):
            await at_end(at.chat(stream=True))
        await at.gateway.settled()
    (record,) = records
    assert record.code == "client_closed"
    assert record.output_tokens >= 2


async def test_a_worker_that_answers_nothing_in_time_is_answered_for(carried, records):
    async with ScriptedWorker() as worker:
        async with carried(worker, **{"requests.first_token_seconds_max": 1}) as at:
            worker.then(silent=True)
            status, text = await at_end(at.chat(stream=True))
            assert status == 504
            assert json.loads(text)["error"]["code"] == "worker_timeout"
            await asyncio.wait_for(worker.seen[0].done.wait(), 10)
            assert worker.seen[0].ended == "aborted"
            await at.gateway.settled()


async def test_a_workers_refusal_is_answered_in_the_gateways_words(carried):
    async with ScriptedWorker() as worker, carried(worker) as at:
        worker.then(status=400, body={"object": "error", "message": "no such thing", "code": 400})
        status, text = await at_end(at.chat())
        assert status == 400
        assert json.loads(text)["error"]["message"] == "no such thing"


async def test_long_prompts_and_long_answers_pass_whole(carried):
    long = "word " * 200_000
    async with ScriptedWorker() as worker, carried(worker) as at:
        worker.then(whole=json.dumps({"choices": [{"index": 0, "message": {"content": long}}]}).encode())
        status, body = await read(at.chat(long))
        assert status == 200
        assert body["choices"][0]["message"]["content"] == long
        assert worker.seen[0].body["messages"][0]["content"] == long
        packed = gzip.compress(
            json.dumps({"model": "m", "messages": [{"role": "user", "content": long}]}).encode()
        )
        status, _ = await read(at.post(data=packed, headers={"content-encoding": "gzip"}))
        assert status == 200
        assert worker.seen[1].body["messages"][0]["content"] == long


async def test_a_body_beyond_the_bound_is_refused(carried):
    async with ScriptedWorker() as worker:
        async with carried(worker, **{"requests.body_bytes_max": 100_000}) as at:
            status, body = await read(at.chat("word " * 100_000))
            assert (status, body["error"]["code"]) == (413, "payload_too_large")
            assert worker.seen == []


async def test_envoy_may_choose_the_endpoint_by_metadata(carried):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        addresses = [
            (worker.url.split("/")[2].split(":")[0], int(worker.url.rpartition(":")[2]))
            for worker in (one, other)
        ]
        async with carried(one, other, envoy={"workers": by_metadata(addresses)}) as at:
            for number in range(6):
                assert (await read(at.chat(f"{number}")))[0] == 200
            for worker in (one, other):
                assert all(seen.headers[ENDPOINT] == address(worker) for seen in worker.seen)
            assert len(one.seen) + len(other.seen) == 6


async def test_an_envoy_that_sends_no_bodies_is_refused_with_the_reason_in_the_log(carried, caplog):
    mode = {**FULL_DUPLEX, "response_body_mode": "NONE", "response_trailer_mode": "SKIP"}
    async with ScriptedWorker() as worker, carried(worker, envoy={"mode": mode}) as at:
        status, body = await read(at.chat())
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert "FULL_DUPLEX_STREAMED" in caplog.text
        assert worker.seen == []


async def at_end(request):
    async with request as response:
        return response.status, await response.text()


async def test_a_provider_answers_through_the_gateway_at_once_also_a_stream(carried, records):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        provider = {"models": {"m": {"name": "their/m", "prices": {"input": 1, "output": 2}}}, "after_ms": 10}
        workers = [
            {"id": "w0", "kind": "sglang", "url": here.url},
            {"id": "p0", "kind": "openai", "url": theirs.url + "/v1", "provider": provider},
        ]
        settings = {"workers": json.dumps(workers), "queueing.release_window_tokens": 1}
        async with carried(tenants={"acme": {"overflow": "allow"}}, **settings) as at:
            here.then(until=asyncio.Event())
            first = asyncio.create_task(at_end(at.chat(stream=True)))
            await at.gateway.until(lambda: here.seen)
            status, text = await at_end(at.chat(stream=True))
            assert (status, len(theirs.seen)) == (200, 1)
            assert text.endswith("data: [DONE]\n\n")
            assert "w3" in text
            assert (await read(at.chat(stream=False)))[1]["choices"][0]["message"][
                "content"
            ] == "w0 w1 w2 w3 "
            assert all(ENDPOINT not in seen.headers for seen in theirs.seen)
            here.script.until.set()
            assert (await first)[0] == 200
            await at.gateway.settled()
    assert sorted(record.worker for record in records) == ["p0", "p0", "w0"]


async def test_the_decode_leg_of_a_pair_is_carried_and_the_prefill_leg_is_the_gateways(carried, records):
    split = {"routing.prefill_tokens_min": "16"}
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        prefill.info = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998}
        decode.info = {"disaggregation_mode": "decode"}
        async with carried(prefill, decode, roles=("prefill", "decode"), **split) as at:
            assert (await at_end(at.chat("word " * 4000, stream=True)))[0] == 200
            await at.gateway.settled()
    (one,), (other,) = prefill.seen, decode.seen
    assert one.body["bootstrap_room"] == other.body["bootstrap_room"]
    assert ENDPOINT not in one.headers
    assert other.headers[ENDPOINT] == address(decode)
    assert [record.code for record in records] == ["ok"]


async def test_many_requests_at_a_time_are_carried_and_nothing_is_left(carried, records):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with carried(one, other, limits=LIMITS, envoy={"threads": 2}) as at:
            one.then(tokens=8, gap=0.01)
            other.then(tokens=8, gap=0.01)
            answers = await asyncio.gather(
                *(at_end(at.chat(f"{n} {'word ' * (n * 20)}", stream=bool(n % 2))) for n in range(60))
            )
            assert {status for status, _ in answers} == {200}
            assert all("w7" in text for _, text in answers)
            await at.gateway.settled()
    assert [record.code for record in records] == ["ok"] * 60


async def test_a_gateway_that_stops_refuses_new_requests_and_ends_the_running_ones(carried):
    async with ScriptedWorker() as worker, carried(worker) as at:
        worker.then(until=asyncio.Event())
        first = asyncio.create_task(at_end(at.chat(stream=True)))
        await at.gateway.until(lambda: worker.seen)
        at.gateway.here.gateway.stop_accepting()
        status, body = await read(at.chat())
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        draining = asyncio.create_task(at.gateway.here.endpoint_picker.drain(30))
        await asyncio.sleep(0.1)
        worker.script.until.set()
        status, text = await first
        assert (status, text.endswith("data: [DONE]\n\n")) == (200, True)
        await draining
