"""Logouts that all gateways know: in a real Redis, and without it."""

import time
from uuid import uuid4

import pytest
import redis

from gateway.adminapi.ended_sessions import EndedSessions
from radix_cache.redis.scripts import ScriptCaller


@pytest.fixture
async def scripts(valkey):
    made = ScriptCaller(valkey.url)
    yield made
    await made.close()


async def test_what_ended_in_one_gateway_has_ended_in_the_others(scripts):
    here, there = EndedSessions(scripts, "rg"), EndedSessions(scripts, "rg")
    one, other = uuid4().hex, uuid4().hex
    assert await here.add(one, time.time() + 60)
    assert (await there.has(one), await there.has(other)) == (True, False)


async def test_it_is_kept_for_as_long_as_the_session_would_have_lasted(scripts, valkey):
    ended, identity = EndedSessions(scripts, "rg"), uuid4().hex
    await ended.add(identity, time.time() + 60)
    with redis.from_url(valkey.url) as client:
        assert 0 < client.pttl(f"{{rg:sessions}}:ended:{identity}") <= 60_000


async def test_a_session_that_is_over_needs_no_memory(scripts, valkey):
    ended, identity = EndedSessions(scripts, "rg"), uuid4().hex
    assert await ended.add(identity, time.time() - 1)
    with redis.from_url(valkey.url) as client:
        assert not client.exists(f"{{rg:sessions}}:ended:{identity}")


async def test_without_redis_a_gateway_has_only_its_own_ended_sessions():
    scripts = ScriptCaller("redis://127.0.0.1:1")
    ended = EndedSessions(scripts, "rg")
    assert not await ended.add("one", time.time() + 60)
    assert (await ended.has("one"), await ended.has("other")) == (True, False)
    await scripts.close()
