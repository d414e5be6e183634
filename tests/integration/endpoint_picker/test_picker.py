"""The endpoint picker protocol, message by message, with a scripted proxy; tests/envoy has a real one."""

import json

import grpc
import pytest

from gateway.endpoint_picker import ext_proc_pb2 as messages
from tests.fakes.scripted_envoy import (
    END,
    ScriptedEnvoy,
    headers_of,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.fakes.scripted_worker import ScriptedWorker

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
ANSWER = json.dumps({"choices": [{"index": 0, "message": {"content": "hi"}}], "usage": {"prompt_tokens": 3}})
PICKER = {"listen.endpoint_picker": '{"port": 0}', "queueing.whole_from_streams": "false"}
ENDPOINT = "x-gateway-destination-endpoint"


def asked(running, **more):
    return {
        ":method": "POST",
        ":path": "/v1/chat/completions?a=b",
        ":authority": "models.example.com",
        "content-type": "application/json",
        "authorization": running.headers()["Authorization"],
        **more,
    }


def at(running):
    return ScriptedEnvoy(running.here.endpoint_picker.url)


def address(worker):
    return worker.url.removeprefix("http://")


async def picked(stream):
    """Return the head and the body that the worker is to get."""
    head, body, end = await stream.read(), b"", False
    assert head.WhichOneof("response") == "request_headers", head
    while not end:
        piece = (await stream.read()).request_body.response.body_mutation.streamed_response
        body, end = body + piece.body, piece.end_of_stream
    return head, body


async def test_the_pick_is_named_in_a_header_and_in_the_metadata(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **PICKER) as running, at(running) as envoy:
        stream = envoy.stream()
        await stream.write(request_headers(asked(running, **{"x-own": "1"})))
        await stream.write(request_body(BODY[:10], end=False))
        await stream.write(request_body(BODY[10:]))
        head, body = await picked(stream)
        mutation = head.request_headers.response.header_mutation
        sent = headers_of(mutation)
        assert sent[ENDPOINT] == head.dynamic_metadata["envoy.lb"][ENDPOINT] == address(worker)
        assert sent[":path"] == "/v1/chat/completions"
        assert {"authorization", "x-own"} <= set(mutation.remove_headers)
        assert json.loads(body)["model"] == "m"
        await stream.write(response_headers({":status": "200", "content-type": "application/json", "a": "b"}))
        await stream.write(response_body(ANSWER.encode()))
        answered = (await stream.read()).response_headers.response.header_mutation
        assert headers_of(answered)[":status"] == "200"
        assert headers_of(answered)["x-request-id"].startswith("req-")
        assert "a" in answered.remove_headers
        piece = (await stream.read()).response_body.response.body_mutation.streamed_response
        assert (json.loads(piece.body)["choices"][0]["message"]["content"], piece.end_of_stream) == (
            "hi",
            True,
        )
        assert await stream.read() is END
        await running.settled()


async def test_trailers_end_bodies_and_are_answered(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **PICKER) as running, at(running) as envoy:
        stream = envoy.stream()
        await stream.write(request_headers(asked(running)))
        await stream.write(request_body(BODY, end=False))
        await stream.write(request_trailers())
        assert (await stream.read()).WhichOneof("response") == "request_headers"
        piece = (await stream.read()).request_body.response.body_mutation.streamed_response
        assert not piece.end_of_stream
        assert (await stream.read()).WhichOneof("response") == "request_trailers"
        await stream.write(response_headers({":status": "200", "content-type": "application/json"}))
        await stream.write(response_body(ANSWER.encode(), end=False))
        await stream.write(response_trailers())
        kinds = [(await stream.read()).WhichOneof("response") for _ in range(3)]
        assert kinds == ["response_headers", "response_body", "response_trailers"]
        assert await stream.read() is END
        await running.settled()


async def test_only_workers_of_the_named_subset_are_picked(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, **PICKER) as running, at(running) as envoy:
            for worker in (one, other, one, other):
                stream = envoy.stream()
                await stream.write(request_headers(asked(running), subset=["10.9.9.9:80", address(worker)]))
                await stream.write(request_body(BODY))
                head, _ = await picked(stream)
                assert headers_of(head.request_headers.response.header_mutation)[ENDPOINT] == address(worker)
                stream.cancel()
            stream = envoy.stream()
            await stream.write(request_headers(asked(running), subset=["10.9.9.9:80"]))
            await stream.write(request_body(BODY))
            refused = (await stream.read()).immediate_response
            assert (refused.status.code, json.loads(refused.body)["error"]["code"]) == (503, "no_worker")
            await running.settled()


async def test_the_client_leaves_when_its_stream_is_closed_or_reset(gateway, records):
    async with ScriptedWorker() as worker, gateway(worker, **PICKER) as running, at(running) as envoy:
        for leave in ("done_writing", "cancel"):
            stream = envoy.stream()
            await stream.write(request_headers(asked(running)))
            await stream.write(request_body(BODY))
            await picked(stream)
            left = getattr(stream, leave)()
            if leave == "done_writing":
                await left
            await running.until(lambda: running.idle)
        await running.settled()
    assert [record.code for record in records] == ["client_closed"] * 2


async def test_envoys_own_answer_counts_as_a_failure_of_the_worker(gateway, records):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, **PICKER) as running, at(running) as envoy:
            stream = envoy.stream()
            await stream.write(request_headers(asked(running)))
            await stream.write(request_body(BODY))
            await picked(stream)
            await stream.write(response_headers({":status": "503", "content-type": "text/plain"}))
            await stream.write(response_body(b"upstream connect error or disconnect/reset before headers"))
            head = await stream.read()
            assert headers_of(head.response_headers.response.header_mutation)[":status"] == "200"
            piece = (await stream.read()).response_body.response.body_mutation.streamed_response
            assert json.loads(piece.body)["choices"]
            assert len(one.seen) + len(other.seen) == 1
            await running.settled()
    assert [(record.code, record.attempts) for record in records] == [("ok", 2)]


async def test_bodies_that_are_not_passed_on_are_refused(gateway, caplog):
    async with ScriptedWorker() as worker, gateway(worker, **PICKER) as running, at(running) as envoy:
        first = request_headers(asked(running))
        first.protocol_config.request_body_mode = messages.BUFFERED
        stream = envoy.stream()
        await stream.write(first)
        assert (await stream.read()).immediate_response.status.code == 500
        assert "FULL_DUPLEX_STREAMED" in caplog.text


async def test_background_responses_are_refused(gateway, tmp_path):
    body = json.dumps({"model": "m", "input": "hello", "background": True}).encode()
    database = {"database.url": f"sqlite:///{tmp_path}/t.db"}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **PICKER, **database) as running,
        at(running) as envoy,
    ):
        stream = envoy.stream()
        await stream.write(request_headers(asked(running, **{":path": "/v1/responses"})))
        await stream.write(request_body(body))
        refused = (await stream.read()).immediate_response
        assert (refused.status.code, json.loads(refused.body)["error"]["param"]) == (400, "background")


async def test_health_checks_follow_readiness(gateway):
    serving, not_serving = messages.HealthCheckResponse.SERVING, messages.HealthCheckResponse.NOT_SERVING
    async with ScriptedWorker() as worker, gateway(worker, **PICKER) as running, at(running) as envoy:
        names = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
        assert [await envoy.health(name) for name in ("liveness", *names)] == [serving] * 4
        running.here.gateway.stop_accepting()
        assert [await envoy.health(name) for name in names] == [not_serving] * 3
        assert await envoy.health("liveness") == serving
        with pytest.raises(grpc.aio.AioRpcError) as err:
            await envoy.health("other")
        assert err.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_line_of_the_access_log_is_written(gateway, tmp_path):
    log = tmp_path / "access.log"
    settings = {**PICKER, "telemetry.access_log": str(log)}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running, at(running) as envoy:
        stream = envoy.stream()
        await stream.write(request_headers(asked(running)))
        await stream.write(request_body(b"{"))
        assert (await stream.read()).immediate_response.status.code == 400
        assert await stream.read() is END
        await running.until(lambda: log.exists() and log.read_text())
    line = json.loads(log.read_text())
    assert (line["tenant"], line["route"], line["status"]) == ("acme", "/v1/chat/completions", 400)
