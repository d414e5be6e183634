"""Two gateways follow a worker's KV events: one writes to the index, and the other takes over when it dies."""

import asyncio
import random
import subprocess
import sys
import time
from array import array
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.fleet.ranks import Ranks
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.own_feed_leases import LEASE_SECONDS
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.settings.stores import IndexSettings
from radix_cache import loop_yield
from radix_cache.shared.feed_lease_store import FeedState
from tests.fakes.feed_gateway import SPACE
from tests.integration.kv_index.test_kv_event_feeds import chain
from tests.integration.workers.test_event_subscriber import published, source_of, subscribed
from tests.stage.ports import free_port
from workers.engine.kv.kv_events import BlockRemoved, Cleared

PROMISED_SECONDS = 2.0


class Gateway:
    """What a gateway has of this, in this process."""

    def __init__(self, parts, feeds):
        self.parts, self.feeds, self.index = parts, feeds, parts.index
        self.tasks = [asyncio.create_task(parts.reader.follow())]

    @property
    def held(self):
        return self.index.replica.held.get(self.index.replica.tenures.get("w", 0), 0)

    @property
    def warm(self):
        feeds = self.feeds.rank_feeds("w")
        return bool(feeds) and all(feed.caught_up for feed in feeds)

    async def until(self, true, seconds=60.0):
        started = time.monotonic()
        while not true():
            assert time.monotonic() - started < seconds, "it does not become true"
            await asyncio.sleep(0.005)
        return time.monotonic() - started

    async def stop(self):
        """Stop the gateway as a kill would, but keep its sockets open: it sends nothing any more."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []

    async def close(self):
        await self.stop()
        await self.feeds.close()
        await self.parts.close()


@pytest.fixture
async def join(own_valkey):
    """Makes gateways on one server of their own."""
    made = []

    async def new(*publishers, replay=True):
        parts = SharedIndexParts.create(own_valkey.url, "t", IndexSettings())
        feeds = KvEventFeeds(
            index=parts.index,
            store=parts.feed_leases,
            resolve_namespace=lambda *_: SPACE,
            page_budget=parts.page_budget,
            ranks=Ranks(),
            replica_is_current=lambda: parts.reader.up,
        )
        here = Gateway(parts, feeds)
        made.append(here)
        await parts.wait_until_loaded()
        parts.index.enrol("w", "")
        feeds.follow("w", tuple(source_of(publisher, replay=replay) for publisher in publishers))
        here.tasks.append(asyncio.create_task(feeds.run()))
        return here

    yield new
    for here in made:
        await here.close()


@asynccontextmanager
async def process(valkey, publisher):
    """A gateway in a process of its own, which writes."""
    source = source_of(publisher)
    command = ["-m", "tests.fakes.feed_gateway", valkey.url, "t", source.endpoint, source.replay]
    child = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        async with asyncio.timeout(60):
            assert await child.stdout.readline() == b"writes\n"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def connections(port):
    """Open connections to a port of this machine."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(int(at[1].rsplit(":")[1], 16) == port and at[3] == "01" for at in fields)


async def test_when_the_writer_is_killed_the_other_writes_and_later_removals_apply(own_valkey, join):
    async with published() as publisher:
        publisher.publish(chain(10, 6))
        async with process(own_valkey, publisher) as writer:
            here = await join(publisher)
            await here.until(lambda: here.held == 6 and here.warm and here.feeds.role("w") == 1)
            publisher.publish([BlockRemoved(15)])
            await here.until(lambda: here.held == 5)
            writer.kill()
            await writer.wait()
            # Events before any gateway has noticed are not lost.
            publisher.publish([BlockRemoved(14), *chain(30, 2)])
            seconds = await here.until(lambda: here.held == 6)
            assert seconds < 10 * PROMISED_SECONDS
            assert here.feeds.role("w") == 2
            publisher.publish([BlockRemoved(31), BlockRemoved(30), BlockRemoved(13)])
            await here.until(lambda: here.held == 3)
            assert "w" in here.index.followed


async def test_what_a_dead_writer_recorded_and_the_worker_has_removed_is_cut(own_valkey, join):
    async with published() as publisher:
        publisher.publish(chain(10, 4))
        first = await join(publisher)
        await first.until(lambda: first.held == 4)
        second = await join(publisher)
        await second.until(lambda: second.warm and first.feeds.role("w") + second.feeds.role("w") == 3)
        writer, other = (first, second) if first.feeds.role("w") == 2 else (second, first)
        await writer.stop()
        # The last words of one that does not know yet that it is missed.
        extra = SPACE.hasher.of_tokens(array("I", [7, 7, 7, 8]))
        writer.index.hold(SPACE.namespace, extra, "w")
        publisher.publish([BlockRemoved(13)])
        await other.until(lambda: other.feeds.role("w") == 2 and other.held == 3)


async def test_a_writer_that_clears_its_cache_as_the_gateway_dies_holds_nothing(own_valkey, join):
    async with published() as publisher:
        publisher.publish(chain(10, 4))
        async with process(own_valkey, publisher) as writer:
            here = await join(publisher)
            await here.until(lambda: here.held == 4 and here.warm)
            writer.kill()
            await writer.wait()
            publisher.publish([Cleared()])
            await here.until(lambda: here.held == 0)
            publisher.publish(chain(20, 2))
            await here.until(lambda: here.held == 2)


async def test_of_many_gateways_two_listen(join):
    async with published() as publisher:
        gateways = [await join(publisher) for _ in range(6)]
        publisher.publish(chain(10, 3))

        def two_listen():
            roles = sorted(each.feeds.role("w") for each in gateways)
            followers = [each for each in gateways if each.feeds.rank_feeds("w")]
            return roles == [0, 0, 0, 0, 1, 2] and len(followers) == 2

        await gateways[0].until(two_listen)
        await gateways[0].until(lambda: all(each.held == 3 for each in gateways))
        await gateways[0].until(lambda: connections(publisher.port) == 2)
        # And all know that answers need not confirm what this worker holds.
        await gateways[0].until(lambda: all("w" in each.index.followed for each in gateways))


async def test_a_gateway_that_leaves_is_followed_at_once(join):
    async with published() as publisher:
        publisher.publish(chain(10, 3))
        first, second = await join(publisher), await join(publisher)
        await first.until(lambda: {first.feeds.role("w"), second.feeds.role("w")} == {1, 2} and second.warm)
        writer, other = (first, second) if first.feeds.role("w") == 2 else (second, first)
        await other.until(lambda: other.held == 3 and other.warm)
        await writer.stop()
        await writer.feeds.leases.leave()
        publisher.publish([BlockRemoved(12)])
        await other.until(lambda: other.held == 2)


async def test_without_a_warm_second_the_worker_is_in_doubt_until_it_restarts(join):
    async with published() as publisher:
        publisher.publish(chain(10, 4))
        first = await join(publisher)
        await first.until(lambda: first.held == 4)
        # A writer that knows everything, and says so, is replaced only when its lease has ended.
        await first.until(lambda: first.feeds.leases.table.of("w").known & FeedState.WHOLE)
        await first.stop()
        publisher._kept.clear()  # What it has said so far cannot be heard any more.
        second = await join(publisher)
        await second.until(lambda: second.feeds.role("w") == 2 and second.warm)
        publisher.publish([BlockRemoved(13), *chain(20, 2)])
        await second.until(lambda: second.feeds.feed_state("w") is FeedState.UNCERTAIN)
        await second.until(lambda: second.feeds.match_confidence.of("w") == 0.5)
        assert "w" not in second.index.followed
        # What is known is not thrown away, and what is said is taken.
        await second.until(lambda: second.held == 6)
        publisher.publish([Cleared(), *chain(30, 1)])
        await second.until(lambda: second.held == 1 and second.feeds.match_confidence.of("w") == 1.0)
        assert "w" in second.index.followed


async def test_a_gap_that_no_replay_fills_is_known_to_all_and_live_events_continue(join):
    async with published() as publisher:
        gateways = [await join(publisher, replay=False) for _ in range(3)]
        writer = gateways[0]
        await writer.until(lambda: all(each.warm for each in gateways if each.feeds.role("w")))
        await writer.until(lambda: sorted(each.feeds.role("w") for each in gateways) == [0, 1, 2])
        await subscribed(publisher, 2)
        publisher.publish(chain(10, 2))
        await writer.until(lambda: all("w" in each.index.followed and each.held == 2 for each in gateways))
        publisher._sequence += 3
        publisher.publish(chain(20, 2))
        await writer.until(lambda: all(each.held == 4 for each in gateways))
        await writer.until(lambda: all(each.feeds.match_confidence.of("w") == 0.5 for each in gateways))
        assert not any("w" in each.index.followed for each in gateways)


async def test_while_redis_is_away_followers_continue_and_record_it_afterwards(own_valkey, join):
    async with published() as publisher:
        publisher.publish(chain(10, 4))
        here = await join(publisher)
        await here.until(lambda: here.held == 4)
        own_valkey.kill()
        await here.until(lambda: "w" not in here.index.followed)
        publisher.publish([BlockRemoved(13), *chain(20, 2)])
        await here.until(lambda: len(here.feeds.rank_feeds("w")[0].follower) == 5)
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert here.feeds.rank_feeds("w")
        own_valkey.start()
        await here.until(lambda: "w" in here.index.followed)
        here.index.enrol("w", "")  # As the next probe does: this server knows of nothing.
        await here.until(lambda: here.held == 5)


async def test_gateways_that_come_and_go_leave_the_tree_as_the_worker_is(join):
    chance = random.Random(3)
    async with published() as publisher:
        publisher.publish(chain(10, 2))
        gateways = [await join(publisher)]
        pages = {10: 2}
        for step in range(6):
            first = 100 * (step + 1)
            pages[first] = chance.randint(1, 5)
            publisher.publish(chain(first, pages[first]))
            if step % 2:
                gateways.append(await join(publisher))
            elif len(gateways) > 1:
                await gateways.pop(chance.randrange(len(gateways))).close()
            gone = chance.choice(list(pages))
            publisher.publish([BlockRemoved(gone + at) for at in reversed(range(pages.pop(gone)))])
        here = gateways[-1]
        await here.until(lambda: here.held == sum(pages.values()) and "w" in here.index.followed)


async def test_a_large_cache_is_recorded_in_short_steps(join, monkeypatch):
    paths, depth = 400, 50
    async with published() as publisher:
        for at in range(paths):
            publisher.publish(chain(10_000 * (at + 1), depth))
        here = await join(publisher)
        await here.until(lambda: here.held == paths * depth)
        # All of it is to be told once more, to a tree that has forgotten it.
        tenure = here.index.replica.tenures["w"]
        store = type(here.index.store)
        hold, calls, longest, running = store.hold, 0, 0, True

        def counted(*arguments):
            nonlocal calls
            calls += 1
            return hold(*arguments)

        async def watch():
            nonlocal longest
            while running:
                before = calls
                await asyncio.sleep(0)
                longest = max(longest, calls - before)

        # The time of one turn is over at once, however fast the machine is.
        monkeypatch.setattr(loop_yield, "WORK_SECONDS_MAX", 0.0)
        monkeypatch.setattr(store, "hold", counted)

        watching = asyncio.create_task(watch())
        here.index.forget("w")
        await here.until(lambda: here.index.replica.tenures.get("w", tenure) != tenure)
        here.feeds.follow("w", (source_of(publisher),))
        await here.until(lambda: here.held == paths * depth)
        running = False
        await watching
        assert calls >= paths
        assert longest < 10


@pytest.mark.parametrize("hearing", [1, 2])
async def test_a_gateway_that_receives_the_workers_events_follows_it(join, hearing):
    async with published() as publisher:
        publisher.publish(chain(10, 3))
        nowhere = SimpleNamespace(port=free_port(), replay_port=free_port())
        deaf = [await join(nowhere) for _ in range(2)]
        await deaf[0].until(lambda: {each.feeds.role("w") for each in deaf} == {1, 2})
        others = [await join(publisher) for _ in range(hearing)]
        here = others[0]

        def followed():
            for each in deaf:
                each.feeds.follow("w", (source_of(nowhere),))
            for each in others:
                each.feeds.follow("w", (source_of(publisher),))
            writers = [each for each in others if each.feeds.role("w") == 2]
            return writers and all(each.held == 3 for each in (*deaf, *others))

        await here.until(followed)
        publisher.publish([BlockRemoved(12)])
        await here.until(lambda: all(each.held == 2 for each in (*deaf, *others)))
        # And answers need not confirm what it holds, at any of them.
        await here.until(lambda: all("w" in each.index.followed for each in (*deaf, *others)))


async def test_all_feeds_share_one_context_of_zmq(join):
    async with published() as one, published() as other:
        here = await join(one, other)  # Two ranks of one worker.
        here.index.enrol("v", "")
        here.feeds.follow("v", (source_of(one),))
        await here.until(
            lambda: len(here.feeds.rank_feeds("w")) == 2 and len(here.feeds.rank_feeds("v")) == 1
        )
        contexts = {
            id(feed.subscriber._context) for worker in ("w", "v") for feed in here.feeds.rank_feeds(worker)
        }
        assert len(contexts) == 1


async def test_a_worker_of_several_ranks_is_known_in_full_when_all_of_them_are(join):
    async with published() as one, published() as other:
        one.publish(chain(10, 2))
        other.publish(chain(10, 2))
        other.publish(chain(40, 1))
        here = await join(one, other)
        await here.until(lambda: here.held == 3 and "w" in here.index.followed)
        other._sequence += 2
        other.publish(chain(50, 1))
        await here.until(lambda: here.held == 4 and "w" not in here.index.followed)
