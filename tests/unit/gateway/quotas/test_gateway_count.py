"""The number of gateways, as each of them knows it."""

import asyncio

import pytest

from gateway.quotas import gateway_count
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller


async def test_gateways_count_how_many_they_are(own_valkey, monkeypatch):
    scripts = ScriptCaller(own_valkey.url)
    one, two = gateway_count.GatewayCount(scripts), gateway_count.GatewayCount(scripts)
    await one.announce()
    assert one.count == 1
    await two.announce()
    await one.announce()
    assert (one.count, two.count) == (2, 2)
    monkeypatch.setattr(gateway_count, "GONE_MS", 100)
    await two.announce()
    await asyncio.sleep(0.2)
    await one.announce()
    assert one.count == 1
    own_valkey.kill()
    with pytest.raises(RedisDown):
        await two.announce()
    assert two.count == 2
    await scripts.close()


async def test_a_redis_that_has_lost_its_data_does_not_make_one_gateway_of_many(own_valkey):
    """Else each would grant the whole of every limit, should Redis go away before the others are counted again."""
    scripts = ScriptCaller(own_valkey.url)
    one, two = gateway_count.GatewayCount(scripts), gateway_count.GatewayCount(scripts)
    await two.announce()
    await one.announce()
    await scripts.ask("FLUSHALL")
    await one.announce()
    assert one.count == 2
    await scripts.close()


async def test_a_gateway_that_was_closed_no_longer_counts(own_valkey):
    """Else a gateway that is started in its place grants only a part of every limit while Redis is away."""
    scripts = ScriptCaller(own_valkey.url)
    stopped, started = gateway_count.GatewayCount(scripts), gateway_count.GatewayCount(scripts)
    await stopped.announce()
    stopped.close()
    await started.announce()
    assert started.count == 1
    await scripts.close()


async def test_a_gateway_closes_also_while_redis_is_away(own_valkey):
    scripts = ScriptCaller(own_valkey.url)
    own_valkey.kill()
    gateway_count.GatewayCount(scripts).close()
    await scripts.close()
