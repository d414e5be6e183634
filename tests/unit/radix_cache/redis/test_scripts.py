"""The bound of calls that are kept for a slow or absent server."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.scripted_redis import ScriptedRedis

PART = bytes(100_000)
BYTES_MAX = 10 * len(PART)
LOADED = Script.from_text("#!lua\nreturn 1")
FUNCTION = library_functions("verbs.keep = function() end", ("keep",))["keep"]


@pytest.fixture(autouse=True)
def bound(monkeypatch):
    """Bound what waits by ten parts."""
    monkeypatch.setattr("radix_cache.redis.scripts.BYTES_WAITING_MAX", BYTES_MAX)


@asynccontextmanager
async def silent_server():
    """Yield the port of a server that accepts connections, reads nothing and answers nothing."""
    accepted = []
    server = await asyncio.start_server(
        lambda reader, writer: (reader._transport.pause_reading(), accepted.append(writer)), "127.0.0.1"
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in accepted:
            writer.transport.abort()


def refused(calls):
    """Return the reasons of the calls that have failed."""
    return [str(call.exception()) for call in calls if call.done()]


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_calls_that_wait_for_a_silent_server_are_bounded_in_bytes(scheme):
    async with silent_server() as port:
        caller = ScriptCaller(f"{scheme}://127.0.0.1:{port}")
        calls = [caller.ask("SET", "{a}", PART) for _ in range(50)]
        # Some more after the connection was made, when they are written and not held.
        await asyncio.sleep(0.2)
        calls += [caller.ask("SET", "{a}", PART) for _ in range(50)]
        assert len(refused(calls)) == 90
        assert set(refused(calls)) == {"too many calls wait for Redis, in number or in bytes"}
        await caller.close()
        assert all(isinstance(call.exception(), RedisDown) for call in calls)


async def test_calls_that_leave_together_are_bounded_in_bytes():
    async with silent_server() as port:
        caller = ScriptCaller(f"redis://127.0.0.1:{port}")
        calls = []
        for _ in range(30):
            calls.append(caller.call(FUNCTION, ["{a}"], [PART], urgent=False))
            caller.flush()
        assert len(refused(calls)) == 20
        await caller.close()


@pytest.mark.parametrize("cluster", [False, True])
async def test_calls_that_were_answered_make_room_for_others(cluster):
    async with ScriptedRedis() as server:
        caller = ScriptCaller(server.url if cluster else server.url.replace("redis+cluster", "redis"))
        for _ in range(5):
            calls = [caller.ask("SET", "{a}", PART) for _ in range(10)]
            assert await asyncio.gather(*calls) == [b"OK"] * 10
        await caller.close()


async def test_calls_that_come_back_unserved_and_fail_make_room_for_others(monkeypatch):
    monkeypatch.setattr("radix_cache.redis.cluster.RETRY_SECONDS_MAX", 0.1)
    async with ScriptedRedis() as server:
        caller = ScriptCaller(server.url)
        assert await caller.ask("GET", "{a}") == b"OK"
        server.always = "-CLUSTERDOWN down"
        for _ in range(3):
            calls = [caller.ask("SET", "{a}", PART) for _ in range(20)]
            assert len(refused(calls)) == 10
            await asyncio.gather(*calls, return_exceptions=True)
            assert set(refused(calls[:10])) == {"CLUSTERDOWN down"}
        server.always = None
        calls = [caller.ask("SET", "{a}", PART) for _ in range(10)]
        assert await asyncio.gather(*calls) == [b"OK"] * 10
        await caller.close()


async def test_a_call_that_is_larger_than_the_bound_is_made_if_no_other_waits():
    async with ScriptedRedis() as server:
        caller = ScriptCaller(server.url.replace("redis+cluster", "redis"))
        assert await caller.ask("SET", "{a}", bytes(2 * BYTES_MAX)) == b"OK"
        await caller.close()
