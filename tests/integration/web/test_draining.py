"""A gateway that will stop has clients open new connections, which load balancers send to another gateway."""

import pytest

from tests.fakes.scripted_worker import ScriptedWorker


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_close_their_connections_once_the_gateway_is_not_ready(gateway, stream):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat(stream=stream) as answer:
            await answer.read()
            assert (answer.status, answer.headers.get("connection")) == (200, None)
        running.here.gateway.drain_state.ready = False
        async with running.chat(stream=stream) as answer:
            await answer.read()
            assert (answer.status, answer.headers.get("connection")) == (200, "close")
        for path, status in (("models", 200), ("nothing", 404)):
            async with running.http.get(f"{running.url}/v1/{path}", headers=running.headers()) as answer:
                assert (answer.status, answer.headers.get("connection")) == (status, "close")
        body = {"model": "m", "input": "hello", "stream": stream}
        async with running.http.post(
            f"{running.url}/v1/responses", json=body, headers=running.headers()
        ) as answer:
            await answer.read()
            assert (answer.status, answer.headers.get("connection")) == (200, "close")
