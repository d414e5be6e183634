"""KV events of real engines: the index predicts the cached tokens of every request."""

import asyncio
import random

import pytest

from tests.engines.processes import MODEL
from tests.integration.kv_index.test_kv_events import feed_of, feeds_of, held, index_of
from tests.integration.routing.test_prefix_cache_routing import ask, cached, conversation, text

TENANTS = ("acme", "globex")


def all_heard(feeds):
    return bool(feeds) and all(feed.caught_up for feed in feeds)


async def heard(running):
    """What was published has been heard, and is in the index: nothing has come for a while."""
    await running.until(lambda: all_heard(feeds_of(running).rank_feeds("w0")))
    batches = -1
    while batches != feed_of(running).batches:
        batches = feed_of(running).batches
        await asyncio.sleep(0.3)
    parts = running.here.gateway.index
    await running.until(lambda: not parts.scripts.busy)
    await asyncio.sleep(0.05)


async def foretold(running, messages, tenant="acme", **more):
    """Asks; gives the cached tokens that were foretold and those that were reported."""
    before = running.here.gateway.overview.tenants[tenant].total.predicted_tokens
    _, usage = await ask(running, messages, tenant=tenant, **more)
    predicted = running.here.gateway.overview.tenants[tenant].total.predicted_tokens - before
    await heard(running)
    return predicted, cached(usage)


async def test_every_turn_of_every_tenant_is_foretold(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        await foretold(running, conversation(0))
        feed = feed_of(running)
        assert "w0" in index_of(running).followed
        for tenant in TENANTS:
            hits = 0
            messages = conversation(1, turns=0)
            for turn in range(4):
                messages.append({"role": "user", "content": text(100 + turn, words=12)})
                said, _ = await ask(running, messages, tenant=tenant)
                await heard(running)
                messages.append({"role": "assistant", "content": said})
                predicted, reported = await foretold(running, messages[:-1], tenant)
                assert predicted == reported > hits
                hits = reported
        # Requests straight at the engine have no salt, which no tenant has here.
        assert held(running) == len(feed.follower) > 0
        assert feed.subscriber.unreadable == feed.subscriber.gaps == 0


@pytest.mark.parametrize("pages", [1, 2])
async def test_the_index_holds_exactly_what_the_engine_holds_also_when_it_evicts(
    gateway, engine, model_of, pages
):
    chance = random.Random(5)
    size = pages * engine.page_size
    async with gateway(engine, kind=engine.kind, **model_of(size)) as running:
        evicted = 0
        await foretold(running, conversation(0))
        follower = feed_of(running).follower
        for _ in range(40):
            before = set(follower._pages)
            messages = [{"role": "user", "content": text(chance.randrange(14), words=40)}]
            messages += [{"role": "user", "content": text(chance.randrange(3), words=30)}] * chance.randint(
                0, 2
            )
            predicted, reported = await foretold(running, messages, chance.choice(TENANTS))
            # What is there of a block that is not all there is not counted.
            assert predicted == reported // size * size
            assert len(follower) <= engine.kv_tokens // engine.page_size
            assert held(running) == len(follower.held_blocks())
            evicted += len(before - set(follower._pages))
        assert evicted >= 15
        assert held(running) > 10
        assert index_of(running).corrections == 0


async def test_requests_at_the_same_time_leave_the_index_exact(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        for round_ in range(6):
            questions = [conversation(round_ * 10 + caller // 2) for caller in range(6)]
            await asyncio.gather(
                *(ask(running, question, tenant=TENANTS[at % 2]) for at, question in enumerate(questions)),
                *(ask(running, questions[0]) for _ in range(3)),
            )
            await heard(running)
            for at, question in enumerate(questions):
                predicted, reported = await foretold(running, question, TENANTS[at % 2])
                assert predicted == reported
        assert held(running) == len(feed_of(running).follower)


async def test_a_client_that_leaves_leaves_the_index_exact(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        async with running.chat(
            model=MODEL, messages=conversation(7), stream=True, max_tokens=800, ignore_eos=True
        ) as response:
            for _ in range(80):
                await response.content.readline()
            response.close()
        await heard(running)
        predicted, reported = await foretold(running, conversation(7))
        assert predicted == reported > 0
        assert held(running) == len(feed_of(running).follower)


async def test_a_flush_is_received(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        await foretold(running, conversation(1))
        assert held(running) > 0
        await asyncio.to_thread(engine.flush)
        # vLLM says so with its next step.
        await asyncio.to_thread(engine.complete)
        await running.until(lambda: held(running) == 0)
        await running.until(lambda: "w0" in index_of(running).replica.tenures)
        assert await foretold(running, conversation(1)) == (0, 0)
        predicted, reported = await foretold(running, conversation(1))
        assert predicted == reported > 0
        assert held(running) == len(feed_of(running).follower) > 0


async def test_a_gateway_that_starts_later_gets_earlier_events(gateway, engine, model_of):
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as first:
        await foretold(first, conversation(1))
        pages = len(feed_of(first).follower)
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as second:
        await heard(second)
        assert feed_of(second).complete_from_start
        assert len(feed_of(second).follower) == pages == held(second)
        predicted, reported = await foretold(second, conversation(1))
        assert predicted == reported > 0
