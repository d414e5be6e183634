"""KV events in the shared index: a real publisher, a real Valkey, tenures that end."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import redis.asyncio as redis

from gateway.fleet.ranks import Ranks
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.settings.stores import IndexSettings
from radix_cache.blocks import BlockHasher
from radix_cache.namespace import HashedNamespace, Namespace
from radix_cache.shared.replica_reader import CHECK_SECONDS
from tests.integration.workers.test_event_subscriber import published, source_of
from workers.engine.kv.kv_events import BlockRemoved, BlockStored, Cleared

SPACE = HashedNamespace(Namespace(model="m", block_size=2), BlockHasher(block_size=2, salt=b"s"))


def chain(first, pages):
    """Pages that follow each other."""
    return [BlockStored(first + n, first + n - 1 if n else None, (first, n), "") for n in range(pages)]


class Following:
    def __init__(self, parts, feeds):
        self.parts, self.feeds = parts, feeds

    @property
    def held(self):
        copy = self.parts.index.replica
        return copy.held.get(copy.tenures.get("w", 0), 0)

    @property
    def tenure(self):
        return self.parts.index.replica.tenures["w"]

    def probed(self, publisher):
        """The worker has said that it serves, as it does every two seconds."""
        self.parts.index.enrol("w", "")
        self.feeds.follow("w", (source_of(publisher),))

    async def until(self, true):
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.01)

    async def holds_and_keeps(self, pages):
        await self.until(lambda: self.held == pages)
        await asyncio.sleep(0.2)
        assert self.held == pages


@pytest.fixture
def following(valkey, tmp_path):
    @asynccontextmanager
    async def start(publisher, server=valkey):
        parts = SharedIndexParts.create(server.url, tmp_path.name, IndexSettings())
        feeds = KvEventFeeds(
            index=parts.index,
            store=parts.feed_leases,
            resolve_namespace=lambda *_: SPACE,
            page_budget=parts.page_budget,
            ranks=Ranks(),
        )
        reading = asyncio.create_task(parts.reader.follow())
        try:
            await parts.wait_until_loaded()
            parts.index.enrol("w", "")
            feeds.follow("w", (source_of(publisher),))
            leasing = asyncio.create_task(feeds.run())
            yield Following(parts, feeds)
        finally:
            leasing.cancel()
            await feeds.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await parts.close()

    return start


async def test_what_is_stored_in_the_batch_that_clears_the_cache_is_held(following):
    async with published() as publisher, following(publisher) as here:
        publisher.publish(chain(10, 3))
        await here.holds_and_keeps(3)
        # vLLM tells of a reset with its next step, and of what that step stored.
        publisher.publish([Cleared(), *chain(20, 2)])
        await here.holds_and_keeps(2)
        publisher.publish([BlockRemoved(21)])
        await here.holds_and_keeps(1)


async def test_a_history_with_clears_in_it_ends_where_the_worker_is(following):
    async with published() as publisher:
        for first in (10, 20, 30):
            publisher.publish([Cleared(), *chain(first, 4)])
        async with following(publisher) as one:
            await one.holds_and_keeps(4)
            tenure = one.parts.index.replica.tenures["w"]
            async with following(publisher) as other:
                await other.holds_and_keeps(4)
            # A later gateway hears of clears that are long past, and takes nothing from the others.
            assert one.parts.index.replica.tenures["w"] == tenure


async def test_a_worker_that_was_away_and_kept_its_cache_is_recorded_again(following):
    async with published() as publisher, following(publisher) as here:
        publisher.publish(chain(10, 3))
        await here.holds_and_keeps(3)
        here.parts.index.forget("w")
        await here.until(lambda: here.held == 0 and "w" in here.parts.index.replica.tenures)
        here.feeds.follow("w", (source_of(publisher),))
        await here.holds_and_keeps(3)


async def test_a_worker_that_was_away_and_lost_its_cache_holds_nothing(following):
    async with published() as publisher, following(publisher) as here:
        publisher.publish(chain(10, 3))
        await here.holds_and_keeps(3)
        publisher._kept.clear()
        here.parts.index.forget("w")
        await here.until(lambda: here.held == 0 and "w" in here.parts.index.replica.tenures)
        here.feeds.follow("w", (source_of(publisher),))
        await here.holds_and_keeps(0)


async def test_what_the_index_has_of_a_past_whose_end_no_gateway_received_is_removed(following):
    async with published() as publisher:
        publisher.publish(chain(10, 4))
        async with following(publisher) as one:
            await one.holds_and_keeps(4)
        publisher.publish([BlockRemoved(13), BlockRemoved(12)])
        async with following(publisher) as other:
            await other.holds_and_keeps(2)


async def test_a_worker_that_publishes_elsewhere_now_holds_nothing_until_it_reports_it(following):
    async with published() as publisher, published() as another, following(publisher) as here:
        publisher.publish(chain(10, 3))
        await here.holds_and_keeps(3)
        here.feeds.follow("w", (source_of(another),))
        await here.holds_and_keeps(0)
        another.publish(chain(20, 2))
        await here.holds_and_keeps(2)


FULL = ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0")
CLOSED = ("ACL SETUSER default -fcall", "ACL SETUSER default +fcall")


@pytest.mark.parametrize(
    "missed",
    [
        [chain(10, 5)[3:], chain(20, 2)],
        [[BlockRemoved(12)], [BlockRemoved(11)]],
        [[BlockRemoved(12), *chain(20, 2)]],
    ],
    ids=["stored", "removed", "both"],
)
@pytest.mark.parametrize(("refuse", "take"), [FULL, CLOSED], ids=["full", "closed"])
async def test_what_redis_did_not_take_is_sent_when_it_does(following, own_valkey, missed, refuse, take):
    async with published() as publisher, following(publisher, own_valkey) as here:
        publisher.publish(chain(10, 3))
        await here.holds_and_keeps(3)
        tenure = here.tenure
        async with redis.from_url(own_valkey.url) as client:
            await client.execute_command(*refuse.split())
            for events in missed:
                publisher.publish(events)
            (feed,) = here.feeds.rank_feeds("w")
            await here.until(lambda: feed.batches == 1 + len(missed))
            # Meanwhile it is tried, and in vain.
            await asyncio.sleep(CHECK_SECONDS + 0.5)
            here.probed(publisher)
            # What is known is not thrown away for that.
            assert here.tenure == tenure
            await client.execute_command(*take.split())
        await here.until(lambda: here.probed(publisher) or here.held == len(feed.follower))
        await here.holds_and_keeps(len(feed.follower))
        assert here.tenure == tenure
