"""`radixgate requests`, `trace` and `top` against a serving gateway."""

import asyncio
import json

from typer.testing import CliRunner

from gateway.cli.main import app
from tests.fakes.scripted_worker import ScriptedWorker

SLOW = {"telemetry.requests.slow_seconds": "0.000001"}
TRACE = "ab" * 16


async def run(running, *words):
    """Run a command against the gateway; the lines that it prints."""
    result = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--url", running.admin])
    assert result.exit_code == 0, result.output
    return result.output


async def asked(running, **headers):
    url = running.url + "/v1/chat/completions"
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "a private question"}]}
    async with running.http.post(url, json=body, headers={**running.headers(), **headers}) as response:
        await response.read()
        return response.headers["x-request-id"]


async def test_requests_are_listed_and_shown_with_their_steps(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **SLOW) as running:
        identity = await asked(running)
        listed = await run(running, "requests", "list", "--slow", "--tenant", "acme")
        assert identity in listed
        assert identity not in await run(running, "requests", "list", "--failed")
        shown = await run(running, "requests", "show", identity)
        for words in ("prepare", "first_token", "ranking of the workers", "w0", "predicted"):
            assert words in shown
        assert "private" not in listed + shown
        found = json.loads(await run(running, "requests", "show", identity, "--json"))
        assert found["id"] == identity


async def test_a_request_is_found_by_the_id_of_its_trace(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **SLOW) as running:
        identity = await asked(running, traceparent=f"00-{TRACE}-{'cd' * 8}-01")
        shown = await run(running, "trace", TRACE)
        assert identity in shown
        assert "relay" in shown
        result = await asyncio.to_thread(
            CliRunner().invoke, app, ["trace", "00" * 16, "--url", running.admin]
        )
        assert "no gateway keeps" in str(result.exception)


async def test_top_shows_workers_and_tenants_of_all_gateways(gateway):
    async with ScriptedWorker() as worker:
        async with gateway(worker) as one, gateway(worker) as other:
            queue = one.here.gateway.services.dispatch.queue
            await one.until(lambda: queue.gateways == 2)
            await asked(one)
            await asked(other)
            picture = await run(one, "top", "--once")
            assert "2 gateways, 1 of 1 workers up" in picture
            (acme,) = [line.split() for line in picture.splitlines() if line.startswith("acme")]
            assert acme[2] == "2"
            state = json.loads(await run(other, "top", "--json"))
            assert state["all"]["total"]["requests"] == 2
