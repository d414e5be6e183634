"""Real engines that stop, die and restart."""

import asyncio
import json
import signal

from tests.engines.test_caches import foretold, heard
from tests.integration.kv_index.test_kv_events import feed_of, held
from tests.integration.routing.test_prefix_cache_routing import ask, conversation


def health(running, worker="w0"):
    return running.here.gateway.fleet[worker].health.state.value


async def test_an_engine_that_was_away_and_kept_its_cache_is_known_as_before(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        await foretold(running, conversation(1))
        pages = held(running)
        engine.signal(signal.SIGSTOP)
        try:
            await running.until(lambda: health(running) == "down")
        finally:
            engine.signal(signal.SIGCONT)
        await running.until(lambda: health(running) == "up")
        await heard(running)
        assert held(running) == pages == len(feed_of(running).follower)
        predicted, reported = await foretold(running, conversation(1))
        assert predicted == reported > 0


async def test_when_an_engine_dies_another_answers_and_it_comes_back_with_nothing(
    gateway, engine, engines, model_of
):
    (other,) = (each for each in engines.values() if each is not engine)
    workers = [{"id": f"w{at}", "kind": w.kind, "url": w.url} for at, w in enumerate((engine, other))]
    async with gateway(engine, other, workers=json.dumps(workers), **model_of(32)) as running:
        for seed in range(4):
            await ask(running, conversation(seed))
        await heard(running)
        await asyncio.to_thread(engine.kill)
        said = [await ask(running, conversation(seed)) for seed in range(4)]
        assert all(usage["completion_tokens"] == 8 for _, usage in said)
        await running.until(lambda: health(running) == "down")
        assert health(running, "w1") == "up"
        assert held(running) == 0
        engine.start()
        await asyncio.to_thread(engine.wait)
        await running.until(lambda: health(running) == "up")
        await asyncio.to_thread(other.signal, signal.SIGSTOP)
        try:
            await running.until(lambda: health(running, "w1") == "down")
            assert await foretold(running, conversation(1)) == (0, 0)
            predicted, reported = await foretold(running, conversation(1))
            assert predicted == reported // 32 * 32 > 0
            assert held(running) == len(feed_of(running).follower.held_blocks())
        finally:
            other.signal(signal.SIGCONT)
