"""Stalled workers: requests go elsewhere, begun streams end; workers that are only slow are kept."""

import asyncio
import time

from gateway.fleet import stalls
from tests.fakes.scripted_worker import ScriptedWorker

ROUND_ROBIN = {"routing.policy": "round_robin"}


def frozen_streams(running, worker, count):
    return [asyncio.ensure_future(read(running, f"long {at}", stream=True)) for at in range(count)]


async def read(running, text, **more):
    async with running.chat(text, **more) as response:
        return response.status, await response.text()


async def test_requests_at_a_frozen_worker_are_answered_by_another_and_begun_streams_end(gateway, caplog):
    async with ScriptedWorker() as frozen, ScriptedWorker() as good:
        async with gateway(frozen, good, **ROUND_ROBIN) as running:
            frozen.then(tokens=10_000, gap=0.02)
            good.then(tokens=200, gap=0.02)
            begun = frozen_streams(running, frozen, 4)
            await running.until(lambda: len(frozen.seen) == 2 and all(one.frames > 5 for one in frozen.seen))
            frozen.frozen = asyncio.Event()
            good.then(gap=0.0, tokens=4)
            waiting = [asyncio.ensure_future(read(running, f"question {at}")) for at in range(4)]
            assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 4
            assert running.here.gateway.fleet["w0"].health.state.value == "down"
            # Its silence says so, before three probes in a row have failed.
            assert "nothing has come from it for" in caplog.text
            texts = [text for _, text in await asyncio.gather(*begun)]
            assert sum("stream_interrupted" in text for text in texts) == 2
            assert sum(text.rstrip().endswith("[DONE]") for text in texts) >= 2
            frozen.frozen.set()
            frozen.frozen = None
            frozen.then(tokens=4, gap=0.0)
            await running.until(lambda: running.here.gateway.fleet["w0"].health.routable)
            for at in range(4):
                assert (await read(running, f"again {at}"))[0] == 200
            assert running.here.gateway.fleet["w0"].health.state.value == "up"
            await running.until(lambda: running.idle)


async def test_a_worker_that_computes_long_prompts_and_answers_probes_is_left_in_peace(gateway, monkeypatch):
    monkeypatch.setattr(stalls, "QUIET_SECONDS_MIN", 0.25)
    monkeypatch.setattr(stalls, "QUIET_STEPS", 0)
    monkeypatch.setattr(stalls, "PROBE_ANSWER_SECONDS_MAX", 1.5)
    async with ScriptedWorker() as slow, ScriptedWorker() as other:
        async with gateway(slow, other, **ROUND_ROBIN) as running:
            slow.then(first_after=4.0)
            other.then(first_after=4.0)
            answers = await asyncio.gather(*(read(running, f"long {at}", stream=True) for at in range(4)))
            assert [status for status, _ in answers] == [200] * 4
            assert (len(slow.seen), len(other.seen)) == (2, 2)
            assert [worker.failures for worker in running.here.gateway.fleet] == [0, 0]


async def test_a_gateway_that_is_held_up_itself_blames_no_worker(gateway, monkeypatch):
    monkeypatch.setattr(stalls, "QUIET_SECONDS_MIN", 0.5)
    monkeypatch.setattr(stalls, "QUIET_STEPS", 0)
    monkeypatch.setattr(stalls, "PROBE_ANSWER_SECONDS_MAX", 0.5)
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        async with gateway(one, two, **ROUND_ROBIN) as running:
            for worker in (one, two):
                worker.then(tokens=60, gap=0.02)
            streams = [asyncio.ensure_future(read(running, f"{at}", stream=True)) for at in range(4)]
            for _ in range(4):
                await asyncio.sleep(0.1)
                time.sleep(1.2)  # noqa: ASYNC251
            assert [status for status, _ in await asyncio.gather(*streams)] == [200] * 4
            assert [worker.failures for worker in running.here.gateway.fleet] == [0, 0]
            assert {worker.health.state.value for worker in running.here.gateway.fleet} == {"up"}
