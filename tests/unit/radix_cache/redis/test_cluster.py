"""The cluster client: redirects, loading servers and other replies that are no answers."""

import asyncio

import pytest

from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.scripted_redis import ScriptedRedis


@pytest.fixture
async def server():
    async with ScriptedRedis() as scripted:
        yield scripted


@pytest.fixture
async def other():
    async with ScriptedRedis() as scripted:
        yield scripted


@pytest.fixture
async def scripts(server):
    caller = ScriptCaller(server.url)
    assert await caller.ask("GET", "{a}warm") == b"OK"
    server.seen.clear()
    yield caller
    await caller.close()


@pytest.mark.parametrize("error", ["TRYAGAIN later", "CLUSTERDOWN down", "LOADING data", "MASTERDOWN x"])
async def test_a_call_that_is_not_served_now_is_sent_again_before_later_calls(server, scripts, error):
    server.replies.extend([f"-{error}", f"-{error}", f"-{error}"])
    calls = [scripts.ask("SET", "{a}", number) for number in range(2)]
    # The first call is tried a second time: the caller has seen that both were refused.
    while len(server.seen) < 3:
        await asyncio.sleep(0.001)
    calls += [scripts.ask("SET", "{a}", number) for number in range(2, 5)]
    assert await asyncio.gather(*calls) == [b"OK"] * 5
    assert server.named == ["0", "1", "0", "0", "1", "2", "3", "4"]


async def test_other_slots_do_not_wait_for_a_stuck_one(server, scripts, monkeypatch):
    # The stuck call rests for so long that the other one is answered in between, also on a slow machine.
    monkeypatch.setattr("radix_cache.redis.cluster.PAUSE_SECONDS", 1.0)
    monkeypatch.setattr("radix_cache.redis.cluster.PAUSE_SECONDS_MAX", 1.0)
    monkeypatch.setattr("radix_cache.redis.cluster.RETRY_SECONDS_MAX", 60.0)
    server.replies.append("-TRYAGAIN later")
    stuck = scripts.ask("SET", "{a}", "stuck")
    while not server.seen:
        await asyncio.sleep(0.001)
    assert await scripts.ask("SET", "{b}", "other") == b"OK"
    assert not stuck.done()
    assert await stuck == b"OK"
    assert server.named == ["stuck", "other", "stuck"]


async def test_a_call_that_a_later_one_of_its_key_has_overtaken_fails(server, scripts):
    server.replies.extend(["-CLUSTERDOWN down", "+OK"])
    first, second = scripts.ask("SET", "{a}", "1"), scripts.ask("SET", "{a}", "2")
    assert await second == b"OK"
    with pytest.raises(RedisDown, match="overtaken"):
        await first
    assert await scripts.ask("SET", "{a}", "3") == b"OK"
    assert server.named == ["1", "2", "3"]


async def test_a_call_that_one_of_another_key_has_overtaken_is_made_again(server, scripts):
    server.replies.extend(["-CLUSTERDOWN down", "+OK"])
    first, second = scripts.ask("SET", "{a}x", "1"), scripts.ask("SET", "{a}y", "2")
    assert await asyncio.gather(first, second) == [b"OK", b"OK"]
    assert server.named == ["1", "2", "1"]


async def test_a_slot_that_is_never_served_fails_its_calls_in_time_and_then_each_at_its_first_attempt(
    server, scripts, monkeypatch
):
    monkeypatch.setattr("radix_cache.redis.cluster.RETRY_SECONDS_MAX", 0.2)
    server.always = "-CLUSTERDOWN down"
    calls = [scripts.ask("SET", "{a}", number) for number in range(20)]
    await asyncio.sleep(0.05)
    calls += [scripts.ask("SET", "{a}", number) for number in range(20)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {"CLUSTERDOWN down"}
    # They wait together: one of them is tried again and again, and not each.
    assert len(server.seen) < 60
    server.seen.clear()
    with pytest.raises(RedisDown):
        await scripts.ask("SET", "{a}", "x")
    assert server.named == ["x"]
    server.always = None
    assert await scripts.ask("SET", "{a}", "y") == b"OK"
    server.replies.append("-CLUSTERDOWN down")
    assert await scripts.ask("SET", "{a}", "z") == b"OK"
    assert not scripts.busy


async def test_a_slot_that_has_moved_is_followed_with_all_that_was_under_way(server, other, scripts):
    server.replies.extend([f"-MOVED 15495 127.0.0.1:{other.port}"] * 3)
    calls = [scripts.ask("SET", "{a}", number) for number in range(3)]
    assert await asyncio.gather(*calls) == [b"OK"] * 3
    assert other.named == ["0", "1", "2"]


async def test_a_call_for_a_moving_slot_is_sent_once_to_its_new_server(server, other, scripts):
    server.replies.extend([f"-ASK 15495 127.0.0.1:{other.port}"] * 2)
    calls = [scripts.ask("SET", "{a}", number) for number in range(2)]
    assert await asyncio.gather(*calls) == [b"OK"] * 2
    assert await scripts.ask("SET", "{a}", "2") == b"OK"
    assert other.named == ["ASKING", "0", "ASKING", "1"]
    assert server.named == ["0", "1", "2"]


async def test_servers_that_send_a_call_to_each_other_forever_fail_it_in_time(
    server, other, scripts, monkeypatch
):
    monkeypatch.setattr("radix_cache.redis.cluster.RETRY_SECONDS_MAX", 0.3)
    server.always = f"-MOVED 15495 127.0.0.1:{other.port}"
    other.always = f"-MOVED 15495 127.0.0.1:{server.port}"
    with pytest.raises(RedisDown, match="MOVED"):
        await scripts.ask("SET", "{a}", "x")
    assert len(server.seen) + len(other.seen) < 60


async def test_an_error_of_the_command_itself_is_no_reason_to_send_it_again(server, scripts):
    server.replies.append("-WRONGTYPE no")
    with pytest.raises(RedisDown, match="WRONGTYPE"):
        await scripts.ask("SET", "{a}", "x")
    assert server.named == ["x"]


async def test_closing_fails_what_is_held(server, scripts):
    server.always = "-TRYAGAIN later"
    calls = [scripts.ask("SET", "{a}", number) for number in range(3)]
    await asyncio.sleep(0.01)
    await scripts.close()
    assert {type(each) for each in await asyncio.gather(*calls, return_exceptions=True)} == {RedisDown}
    assert not scripts.busy
