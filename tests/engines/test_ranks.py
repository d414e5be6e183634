"""A launched SGLang of two data-parallel ranks: where each publishes, and how a gateway follows it."""

import pytest

from tests.engines.launched import LaunchedWorker
from tests.engines.processes import MODEL, SglangOfTwoRanks
from tests.engines.test_launched import is_up, listening
from tests.integration.routing.test_prefix_cache_routing import ask, cached, conversation


@pytest.fixture
def worker(checkpoint, tmp_path, valkey):
    worker = LaunchedWorker(SglangOfTwoRanks(checkpoint, tmp_path / "engine.log"), tmp_path, valkey.url)
    worker.start()
    yield worker
    worker.close()


def ports(addresses):
    return {int(at.rpartition(":")[2]) for at in addresses}


async def test_each_rank_has_feeds_at_ports_of_its_own(worker, gateway, model_of):
    found = {"discovery": '[{"kind": "redis"}]', "redis.prefix": worker.prefix}
    async with gateway(**found, **model_of(SglangOfTwoRanks.page_size)) as running:
        await is_up(running, worker)
        (one,) = running.here.gateway.fleet
        assert (one.ranks, len(one.report.events), len(one.report.loads)) == (2, 2, 2)
        events = ports(at for source in one.report.events for at in (source.endpoint, source.replay))
        assert (len(events), listening(events)) == (4, {"127.0.0.1"})
        await running.until(lambda: one.load.has_load_feed)
        # Each conversation goes on where it began.
        for seed in range(4):
            await ask(running, conversation(seed))
            _, usage = await ask(running, conversation(seed))
            assert cached(usage) > 0
        url = f"{running.here.gateway.discovery.settings_of(one.id).url}/v1/completions"
        for rank in (0, 1):
            prompt = {"model": MODEL, "prompt": "so " * 100, "max_tokens": 1, "routed_dp_rank": rank}
            async with running.http.post(url, json=prompt) as response:
                assert response.status == 200
        feeds = running.here.gateway.event_feeds.rank_feeds(one.id)
        await running.until(lambda: len(feeds) == 2 and all(feed.batches for feed in feeds))
        # Requests past the gateway keep one of them busy.
        at = running.here.gateway.event_feeds.ranks
        busy = {"model": MODEL, "prompt": "once", "max_tokens": 600, "ignore_eos": True, "stream": True}
        async with running.http.post(url, json={**busy, "routed_dp_rank": 1}) as response:
            await response.content.readline()
            await running.until(lambda: [load.streams for load in at.loads(one.id)] == [0, 1])
        await running.until(lambda: [load.streams for load in at.loads(one.id)] == [0, 0])
