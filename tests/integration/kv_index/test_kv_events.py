"""KV events of real embedded workers with a small cache that evicts: the index follows them."""

import asyncio
import random

import pytest
import redis.asyncio as redis

from radix_cache.shared.keys import SHARDS
from tests.integration.conftest import MODEL, PAGE_SIZE, EmbeddedWorker
from tests.integration.published_events import feed_of, feeds_of, heard, held, index_of
from tests.integration.routing.test_prefix_cache_routing import ask, cached, conversation, text


@pytest.fixture
def small_of(checkpoint, tmp_path):
    """Starts a worker with room for 1,024 tokens, in pages of so many."""
    workers = []

    def start(page_size=PAGE_SIZE):
        options = ("--kv-tokens", str(64 * PAGE_SIZE), "--page-size", str(page_size))
        workers.append(EmbeddedWorker(checkpoint, tmp_path / "worker.log", *options))
        workers[-1].start()
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture(scope="module")
def small_for_all(checkpoint, tmp_path_factory):
    options = ("--kv-tokens", str(64 * PAGE_SIZE))
    worker = EmbeddedWorker(checkpoint, tmp_path_factory.mktemp("small") / "worker.log", *options)
    worker.start()
    yield worker
    worker.kill()


@pytest.fixture
def small(small_for_all):
    """A worker with room for 1,024 tokens and nothing in its cache, for tests that leave it running."""
    small_for_all.flush()
    return small_for_all


def asked(seed, turns=2):
    return [{"role": "user", "content": text(seed, words=30 + seed % 40)} for _ in range(turns)]


async def test_the_index_holds_exactly_what_the_worker_holds_also_when_it_evicts(
    gateway, small, model_settings
):
    chance = random.Random(5)
    async with gateway(small, kind="embedded", **model_settings) as running:
        overview = running.here.gateway.overview.tenants
        await ask(running, asked(0))
        await heard(running)
        for _ in range(40):
            before = overview["acme"].total
            predicted, reported = before.predicted_tokens, before.cached_tokens
            _, usage = await ask(running, asked(chance.randrange(12), turns=chance.randint(1, 3)))
            after = overview["acme"].total
            assert after.predicted_tokens - predicted == cached(usage) == after.cached_tokens - reported
            await heard(running)
            assert held(running) == len(feed_of(running).follower)
            assert held(running) <= 64
        assert held(running) > 30
        assert index_of(running).corrections == 0


@pytest.mark.parametrize(("page", "block"), [(PAGE_SIZE, 4 * PAGE_SIZE), (1, PAGE_SIZE)])
async def test_blocks_of_several_pages_count_when_all_of_their_pages_are_there(
    gateway, small_of, checkpoint, page, block
):
    entry = f'[{{"name": "{MODEL}", "tokenizer": "{checkpoint}", "block_size": {block}}}]'
    chance = random.Random(6)
    async with gateway(small_of(page), kind="embedded", models=entry) as running:
        overview = running.here.gateway.overview.tenants
        await ask(running, asked(0))
        await heard(running)
        for _ in range(25):
            predicted = overview["acme"].total.predicted_tokens
            _, usage = await ask(running, asked(chance.randrange(8), turns=chance.randint(1, 3)))
            predicted = overview["acme"].total.predicted_tokens - predicted
            # The rest of a block may be there as well, and is not counted.
            assert predicted <= cached(usage) < predicted + block
            await heard(running)
            assert held(running) == len(feed_of(running).follower.held_blocks())
        assert held(running) > 10


async def test_a_flush_is_received(gateway, small, model_settings):
    async with gateway(small, kind="embedded", **model_settings) as running:
        await ask(running, conversation(1))
        await heard(running)
        assert held(running) > 0
        await asyncio.to_thread(small.flush)
        await running.until(lambda: held(running) == 0)
        await running.until(lambda: "w0" in index_of(running).replica.tenures)
        _, usage = await ask(running, conversation(1))
        assert cached(usage) == 0
        await heard(running)
        assert held(running) == len(feed_of(running).follower) > 0


async def test_a_redis_that_lost_everything_is_filled_again(gateway, small, model_settings, own_valkey):
    async with gateway(small, kind="embedded", **model_settings, **{"redis.url": own_valkey.url}) as running:
        await ask(running, conversation(1))
        await heard(running)
        pages = len(feed_of(running).follower)
        async with redis.from_url(own_valkey.url) as client:
            await client.flushall()
        await running.until(lambda: held(running) == 0)
        await running.until(lambda: held(running) == pages, seconds=60)


async def test_a_tenure_that_ends_for_another_reason_costs_nothing_that_is_there(
    gateway, small, model_settings
):
    async with gateway(small, kind="embedded", **model_settings) as running:
        await ask(running, conversation(1))
        await heard(running)
        pages, tenure = held(running), index_of(running).replica.tenures["w0"]
        index_of(running).forget("w0")
        await running.until(lambda: index_of(running).replica.tenures.get("w0", tenure) != tenure)
        await running.until(lambda: held(running) == pages == len(feed_of(running).follower))


async def test_a_gateway_that_starts_later_gets_earlier_events(gateway, small, model_settings):
    async with gateway(small, kind="embedded", **model_settings) as first:
        await ask(first, conversation(1))
        await heard(first)
        pages = len(feed_of(first).follower)
    async with gateway(small, kind="embedded", **model_settings) as second:
        await heard(second)
        assert feed_of(second).complete_from_start
        assert len(feed_of(second).follower) == pages == held(second)


async def test_a_worker_that_restarts_is_noticed_by_its_events(gateway, small_of, model_settings):
    small = small_of()
    async with gateway(small, kind="embedded", **model_settings) as running:
        await ask(running, conversation(1))
        await heard(running)
        port = int(small.url.rsplit(":", 1)[1])
        await asyncio.to_thread(small.kill)
        await asyncio.to_thread(small.start, port)
        await running.until(lambda: running.here.gateway.fleet["w0"].health.state.value == "up", seconds=60)
        await running.until(lambda: held(running) == 0, seconds=60)
        _, usage = await ask(running, conversation(1))
        assert cached(usage) == 0
        await heard(running)
        assert held(running) == len(feed_of(running).follower) > 0


async def test_tenants_are_kept_apart_by_their_salt(gateway, small, model_settings):
    async with gateway(small, kind="embedded", **model_settings) as running:
        await ask(running, conversation(1), tenant="acme")
        await ask(running, conversation(1), tenant="globex")
        await heard(running)
        assert len(running.here.gateway.index.index.replica.shards) == SHARDS
        names = {name for shard in index_of(running).replica.shards.values() for name in shard.names.values()}
        assert len(names) == 2
        assert feed_of(running).follower.foreign_pages == 0


@pytest.mark.parametrize("fitting", ["no tokenizer here", "blocks are no multiple of pages"])
async def test_events_of_which_no_blocks_can_be_made_leave_it_to_the_answers(
    gateway, small, checkpoint, fitting
):
    entry = f'[{{"name": "{MODEL}", "tokenizer": "{checkpoint}", "block_size": 24}}]'
    models = "[]" if fitting == "no tokenizer here" else entry
    async with gateway(small, kind="embedded", models=models) as running:
        for seed in range(3):
            await ask(running, asked(seed))
        await heard(running, followed=False)
        assert "w0" not in index_of(running).followed
        assert feed_of(running).uncertain
        await running.until(lambda: held(running) > 0)


async def test_a_worker_that_comes_back_without_events_is_followed_no_more(
    gateway, checkpoint, tmp_path, model_settings
):
    talking = EmbeddedWorker(checkpoint, tmp_path / "talking.log")
    silent = EmbeddedWorker(checkpoint, tmp_path / "silent.log", "--no-kv-events")
    talking.start()
    try:
        async with gateway(talking, kind="embedded", **model_settings) as running:
            await ask(running, asked(1))
            await heard(running)
            port = int(talking.url.rsplit(":", 1)[1])
            await asyncio.to_thread(talking.kill)
            await asyncio.to_thread(silent.start, port)
            await running.until(lambda: not feeds_of(running).rank_feeds("w0"), seconds=60)
            assert "w0" not in index_of(running).followed
            await running.until(lambda: "w0" in index_of(running).replica.tenures)
            await ask(running, asked(2))
            await running.until(lambda: held(running) > 0)
    finally:
        talking.kill()
        silent.kill()
