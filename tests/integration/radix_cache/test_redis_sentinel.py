"""A Redis that sentinels watch: calls go on at the new primary after a failover."""

import asyncio
import time

import pytest

from gateway.settings.redis_address import redis_url_problem
from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from tests.fakes.redis_cluster import until
from tests.fakes.redis_sentinel import WatchedServers
from tests.fakes.replica import replica

APPEND = Script.from_text("#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])")
SECONDS_MAX = 60
BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 10, "idle_seconds_max": 1000}


@pytest.fixture
def watched(tmp_path):
    """Start a primary, its replica and a sentinel."""
    servers = WatchedServers(tmp_path, down_after_ms=300)
    servers.start()
    yield servers
    servers.close()


async def appended(caller):
    """Append until a call succeeds, and return the length of the list."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return await caller.call(APPEND, ["list"], ["x"])
            except RedisDown:
                await asyncio.sleep(0.05)


async def test_calls_go_to_the_primary_and_after_a_failover_to_the_new_one(watched):
    primary, replica = watched.primary(), watched.replica()
    caller = ScriptCaller(watched.url)
    try:
        assert await appended(caller) == 1
        until(lambda: replica.client.llen("list") == 1, "nothing is replicated")
        primary.kill()
        assert await appended(caller) >= 2
        assert replica.replication["role"] == "master"
    finally:
        await caller.close()


async def test_a_primary_that_was_replaced_without_noticing_gets_no_calls(watched):
    first, second = watched.nodes
    sentinel = watched.sentinel.client
    caller = ScriptCaller(watched.url)
    try:
        assert await appended(caller) == 1
        second.client.execute_command("REPLICAOF", "NO", "ONE")
        sentinel.execute_command("SENTINEL", "REMOVE", "main")
        sentinel.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", second.port, 1)
        async with asyncio.timeout(SECONDS_MAX):
            while second.client.llen("list") < 2:
                await appended(caller)
                await asyncio.sleep(0.05)
        assert first.replication["role"] == "master"
    finally:
        await caller.close()


async def test_the_index_is_followed_before_and_after_a_failover_although_a_sentinel_is_away(watched):
    primary, following = watched.primary(), None
    try:
        following = await replica(watched.url, Keys(prefix="rg"), time.monotonic, **BOUNDS)
        async with asyncio.timeout(SECONDS_MAX):
            while not following.reader.up:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(primary.kill)
            while following.reader.up or watched.primary() is primary:
                await asyncio.sleep(0.05)
            while not following.reader.up:
                await asyncio.sleep(0.05)
    finally:
        if following is not None:
            await following.close()


async def test_sentinels_that_are_away_are_an_answer_not_a_hang():
    caller = ScriptCaller("redis+sentinel://127.0.0.1:1/main")
    try:
        with pytest.raises(RedisDown, match="no sentinel names a primary of main"):
            await caller.ping()
    finally:
        await caller.close()


@pytest.mark.parametrize(
    ("url", "valid"),
    [
        ("redis+sentinel://one:26379,two/main", True),
        ("rediss+sentinel://user:word@one/main/2", True),
        ("redis+sentinel://one:26379", False),
        ("redis+sentinel:///main", False),
        ("redis+sentinel://one:port/main", False),
    ],
)
def test_addresses_of_sentinels_are_checked_before_any_connection(url, valid):
    assert (redis_url_problem(url) is None) == valid
