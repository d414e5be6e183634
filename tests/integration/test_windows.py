"""What counts of a worker's window in one gateway alone: a prompt that is nearly computed keeps nobody out."""

import asyncio

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

LONG = "a long story " * 200


@pytest.mark.parametrize("kv_tokens_max", [100_000, 500])
async def test_a_short_prompt_follows_a_long_one_that_is_nearly_computed_unless_kv_is_short(
    gateway, kv_tokens_max
):
    async with ScriptedWorker() as worker:
        worker.kv_tokens_max = kv_tokens_max
        release = asyncio.Event()
        worker.then(until=release)
        settings = {"queueing.release_window_tokens": "400", "workers[0].prefill_tokens_per_second": "1e8"}
        async with gateway(worker, **settings) as running:
            (one,) = running.here.gateway.fleet

            async def asked(text):
                async with running.chat(text) as response:
                    await response.read()
                    return response.status

            long = asyncio.create_task(asked(LONG))
            await running.until(lambda: worker.seen)
            assert one.load.all_tokens_queued > 400
            short = asyncio.create_task(asked("hello"))
            if kv_tokens_max == 100_000:
                await running.until(lambda: len(worker.seen) == 2)
            else:
                room = running.here.gateway.services.reservations.room("m")
                await running.until(lambda: len(room) == 1)
                assert len(worker.seen) == 1
            release.set()
            assert await asyncio.gather(long, short) == [200, 200]
