"""Namespaces come with their first path and go with their last block, in Redis and in every copy."""

import asyncio
import time
from array import array
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, Keys, tree_id
from radix_cache.shared.older_layouts import drop_older_layouts
from tests.fakes.replica import replica

SPACE = Namespace(model="m", block_size=16)
OTHER = Namespace(model="other", block_size=16)
BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 10, "idle_seconds_max": 1000}
W, V = WorkerId("w"), WorkerId("v")
PATH, LONGER = array("Q", [1, 2, 3]), array("Q", [1, 2, 4, 5])


@pytest.fixture
async def two(redis_url):
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    replicas = [await replica(redis_url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    for worker in (W, V):
        replicas[0].index.enrol(worker, "first")
    await caught_up(replicas)
    yield replicas
    for each in replicas:
        await each.close()


async def caught_up(replicas):
    for each in replicas:
        await each.caught_up()
    await replicas[0].arrived()


async def names(each):
    """As Redis has them, as its copy has them."""
    keys = each.index.store.keys
    stored = await each.scripts.ask("HKEYS", keys.names(0))
    return set(stored), set(each.index.replica.shards[0].names)


EMPTYING = {
    "its holders are forgotten and swept": lambda index: (index.forget(W), index.forget(V)),
    "it is shortened to nothing": lambda index: (
        index.shorten(SPACE, PATH, W, 0),
        index.shorten(SPACE, LONGER, V, 0),
    ),
    "it is cleared": lambda index: index.store.clear(tree_id(SPACE)),
}


@pytest.mark.parametrize("how", EMPTYING)
async def test_a_namespace_that_has_emptied_has_no_name_until_its_next_path(two, how):
    one, other = two
    index, space = one.index, tree_id(SPACE)
    index.hold(SPACE, PATH, W)
    index.hold(SPACE, LONGER, V)
    await caught_up(two)
    assert await names(other) == ({space}, {space})
    EMPTYING[how](index)
    await caught_up(two)
    assert await names(other) == (set(), set())
    assert not await one.scripts.ask("EXISTS", index.store.keys.tree(space))
    for worker in (W, V):
        index.enrol(worker, "first")
    await caught_up(two)
    index.hold(SPACE, PATH, W)
    await caught_up(two)
    assert await names(other) == ({space}, {space})
    assert other.index.match(SPACE, PATH).confirmed == {W: 3}


async def test_the_name_of_another_namespace_of_the_shard_stays(two):
    one, other = two
    one.index.hold(SPACE, PATH, W)
    one.index.hold(OTHER, array("Q", [7, 8]), W)
    await caught_up(two)
    one.index.shorten(SPACE, PATH, W, 0)
    await caught_up(two)
    assert await names(other) == ({tree_id(OTHER)}, {tree_id(OTHER)})


async def test_evicted_namespaces_leave_nothing_behind(two):
    """Tenants that came once."""
    one, other = two
    for number in range(200):
        one.index.hold(Namespace(model=f"m{number}", block_size=16), array("Q", [1000 + number]), W)
    await caught_up(two)
    assert len((await names(other))[1]) == 200
    one.maintenance._blocks_max = 3
    await caught_up(two)
    stored, known = await names(other)
    assert len(stored) == len(known) == 3


async def test_what_an_older_layout_has_left_goes_when_no_gateway_uses_it(redis_url):
    prefix = f"t{uuid4().hex}"
    old, new = Keys(prefix=prefix, shards=2, layout=1), Keys(prefix=prefix, shards=2)
    scripts = ScriptCaller(redis_url)
    space = tree_id(SPACE)
    shard = old.shard(space)
    theirs = [
        old.tree(space),
        old.log(shard),
        old.meta(shard),
        old.names(shard),
        old.workers,
        old.meta(REGISTRY),
    ]
    ours = [new.tree(space), new.names(shard), new.workers]
    for key in theirs + ours:
        await scripts.ask("HSET", key, space, "x")
    await scripts.ask("SET", old.maintenance_lease, "an old gateway", "PX", 60_000)
    await drop_older_layouts(scripts, new)
    assert await asyncio.gather(*(scripts.ask("EXISTS", key) for key in theirs)) == [1] * len(theirs)
    await scripts.ask("DEL", old.maintenance_lease)
    await drop_older_layouts(scripts, new)
    assert await asyncio.gather(*(scripts.ask("EXISTS", key) for key in theirs)) == [0] * len(theirs)
    assert await asyncio.gather(*(scripts.ask("EXISTS", key) for key in ours)) == [1] * len(ours)
    await scripts.close()
