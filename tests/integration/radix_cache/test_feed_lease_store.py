"""Feed leases on a real server and on a cluster: living gateways, holders, and changes that come too late."""

import asyncio

import pytest

from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.feed_lease_store import (
    FeedLease,
    FeedLeaseChange,
    FeedLeaseStore,
    FeedLeaseTable,
    FeedState,
)
from radix_cache.shared.keys import Keys

A, B = b"gateway1", b"gateway2"


@pytest.fixture
async def stores(redis_url, tmp_path):
    scripts = ScriptCaller(redis_url)
    keys = Keys(prefix=tmp_path.name)
    yield FeedLeaseStore(scripts, keys, A), FeedLeaseStore(scripts, keys, B)
    await scripts.close()


def change(before, after, worker="w"):
    return FeedLeaseChange(worker, before, after)


async def test_a_gateway_with_the_current_version_reads_nothing_again(stores):
    one, other = stores
    table = await one.renew(FeedLeaseTable(), 5000)
    assert table.gateways == {A}
    assert await one.renew(table, 5000) is table
    both = await other.renew(FeedLeaseTable(), 5000)
    assert both.gateways == {A, B}
    assert (await one.renew(table, 5000)) == both


async def test_of_two_gateways_that_claim_a_lease_one_gets_it(stores):
    one, other = stores
    known = await one.renew(FeedLeaseTable(), 5000)
    mine, theirs = FeedLease(A, known=FeedState.WHOLE | FeedState.HYBRID, losses=255), FeedLease(B)
    first = await one.renew(known, 5000, [change(FeedLease(), mine)])
    second = await other.renew(known, 5000, [change(FeedLease(), theirs)])
    assert first.of("w") == second.of("w") == mine
    assert (await other.renew(second, 5000, [change(mine, theirs)])).of("w") == theirs


async def test_a_lease_without_a_gateway_is_gone(stores):
    one, _ = stores
    table = await one.renew(FeedLeaseTable(), 5000, [change(FeedLease(), FeedLease(A))])
    table = await one.renew(table, 5000, [change(FeedLease(A), FeedLease())])
    assert table.leases == {}


async def test_a_gateway_that_does_not_renew_is_dropped_and_one_that_leaves_is_gone_at_once(stores):
    one, other = stores
    await one.renew(FeedLeaseTable(), 60_000)
    assert (await other.renew(FeedLeaseTable(), 5000)).gateways == {A, B}
    await one.renew(FeedLeaseTable(), 20)
    await asyncio.sleep(0.1)
    table = await other.renew(FeedLeaseTable(), 5000)
    assert table.gateways == {B}
    assert (await one.renew(table, 5000)).gateways == {A, B}
    assert (await one.renew(table, 0)).gateways == {B}


async def test_a_version_never_comes_again_after_all_was_lost(stores, redis_url, tmp_path):
    one, _ = stores
    table = await one.renew(FeedLeaseTable(), 5000, [change(FeedLease(), FeedLease(A))])
    scripts = ScriptCaller(redis_url)
    for key in Keys(prefix=tmp_path.name).feed_leases:
        await scripts.ask("DEL", key)
    await scripts.close()
    await asyncio.sleep(0.01)
    again = await one.renew(table, 5000)
    assert again.version > table.version
    assert again.leases == {}
