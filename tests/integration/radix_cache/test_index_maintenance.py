"""Index maintenance keeps the tree in Redis within its memory, and removes what dead gateways left."""

import asyncio
import time
from array import array
from collections import Counter
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.feed_lease_store import FeedLeaseStore, FeedLeaseTable
from radix_cache.shared.index_maintenance import EVICTIONS_AT_ONCE_MAX
from radix_cache.shared.keys import Keys, tree_id
from tests.fakes.replica import replica

W = WorkerId("w")
SPACE = Namespace(model="m", block_size=16)
SPACES = [Namespace(model=f"m{number}", block_size=16) for number in range(8)]


async def kept(valkey, node_blocks):
    """Nodes that stay of 100 with a block each, where 200 blocks are allowed."""
    bounds = {"blocks_max": 200, "predicted_seconds": 10, "idle_seconds_max": 1000}
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one = await replica(valkey.url, keys, time.monotonic, node_blocks=node_blocks, **bounds)
    one.index.enrol(W, "first")
    await one.arrived()
    for number in range(100):
        one.index.hold(SPACE, array("Q", [1000 + number]), W)
    await one.caught_up()
    nodes = len(one.index.replica.nodes)
    await one.close()
    return nodes


async def test_nodes_count_towards_the_bound_as_much_as_they_weigh(valkey):
    assert await kept(valkey, node_blocks=0) == 100
    assert await kept(valkey, node_blocks=9) == 20


async def test_evictions_do_not_wait_for_each_other_so_that_a_flood_is_kept_up_with(valkey, monkeypatch):
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    bounds = {"blocks_max": 200, "predicted_seconds": 10, "idle_seconds_max": 1000}
    one = await replica(valkey.url, keys, time.monotonic, **bounds)
    one.index.enrol(W, "first")
    await one.arrived()
    for number in range(5000):
        one.index.hold(SPACE, array("Q", [1000 + number]), W)
    await one.arrived()
    evict, under_way, most = one.index.store.evict, 0, 0

    def counted(namespace, nodes):
        nonlocal under_way, most
        call = evict(namespace, nodes)
        under_way += 1
        most = max(most, under_way)

        def ended(_):
            nonlocal under_way
            under_way -= 1

        call.add_done_callback(ended)
        return call

    monkeypatch.setattr(one.index.store, "evict", counted)
    await one.caught_up()
    assert len(one.index.replica.nodes) == 200
    assert 1 < most <= EVICTIONS_AT_ONCE_MAX
    await one.close()


BRIEFLY = {"blocks_max": 200, "predicted_seconds": 0.2, "idle_seconds_max": 1000}


async def predicted(each, keys):
    """How many predictions Redis has."""
    return sum([await each.scripts.ask("HLEN", keys.predictions(shard)) for shard in range(keys.shards)])


async def test_predictions_of_a_gateway_that_died_go_though_no_replica_read_them_in_time(valkey):
    keys = Keys(prefix=f"t{uuid4().hex}", shards=2)
    dead = await replica(valkey.url, keys, time.monotonic, **BRIEFLY)
    dead.index.enrol(W, "first")
    await dead.arrived()
    dead.index.record(SPACE, array("Q", [1, 2]), W, "r")
    await dead.arrived()
    await dead.close()
    await asyncio.sleep(0.3)
    later = await replica(valkey.url, keys, time.monotonic, **BRIEFLY)
    assert await predicted(later, keys) == 1
    await later.caught_up()
    assert await predicted(later, keys) == 0
    await later.close()


async def test_predictions_that_lapsed_without_maintenance_go_with_the_next_one(valkey, monkeypatch):
    monkeypatch.setattr("radix_cache.shared.index_maintenance.ROUND_SECONDS", 0.02)
    keys = Keys(prefix=f"t{uuid4().hex}", shards=2)
    one, other = [await replica(valkey.url, keys, time.monotonic, **BRIEFLY) for _ in range(2)]
    one.index.enrol(W, "first")
    await one.arrived()
    one.index.record(SPACE, array("Q", [1, 2]), W, "r")
    await one.arrived()
    await one.close()  # It was the keeper, and its lease goes on for a while.
    await other.scripts.ask("SET", keys.maintenance_lease, b"another gateway", "PX", 60_000)
    keeping = asyncio.create_task(other.maintenance.run())
    await asyncio.sleep(0.25)
    assert not other.index.match(SPACE, array("Q", [1, 2])).pending
    await asyncio.sleep(0.05)
    assert not other.maintenance.is_leader
    assert await predicted(other, keys) == 1
    await other.scripts.ask("DEL", keys.maintenance_lease)
    async with asyncio.timeout(60):
        while await predicted(other, keys):
            await asyncio.sleep(0.01)
    assert other.maintenance.is_leader
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await other.close()


async def test_a_group_that_fills_the_index_evicts_its_own_paths(valkey):
    bounds = {"blocks_max": 60, "predicted_seconds": 10, "idle_seconds_max": 1000}
    keys = Keys(prefix=f"t{uuid4().hex}", shards=2)
    one = await replica(valkey.url, keys, time.monotonic, **bounds)
    one.index.enrol(W, "first")
    await one.arrived()

    async def hold(group, first, paths):
        for number in range(paths):
            space = Namespace(model="m", block_size=16, group=group)
            one.index.hold(space, array("Q", [first + number]), W)
        await one.arrived()

    def left():
        groups = one.maintenance._groups()
        return Counter(groups[node.tree] for node in one.index.replica.nodes.values())

    await hold("small", 1000, 10)  # The least recently used of all.
    await hold("middle", 2000, 20)
    await hold("large", 3000, 100)
    await one.caught_up()
    assert left() == {"small": 10, "middle": 20, "large": 30}
    await hold("middle", 4000, 40)
    await one.caught_up()
    assert left() == {"small": 10, "middle": 25, "large": 25}
    await one.close()


async def test_while_a_shard_is_away_the_others_are_kept_within_the_bound(valkey):
    bounds = {"blocks_max": 30, "predicted_seconds": 10, "idle_seconds_max": 1000}
    keys = Keys(prefix=f"t{uuid4().hex}", shards=2)
    one = await replica(valkey.url, keys, time.monotonic, **bounds)
    one.index.enrol(W, "first")
    await one.arrived()
    spaces = {keys.shard(tree_id(space)): space for space in SPACES}
    for shard, first in ((0, 1000), (1, 2000)):  # The shard that is away has the older ones.
        for number in range(20):
            one.index.hold(spaces[shard], array("Q", [first + number]), W)
            await one.arrived()
    one.maintenance._lost_shards = lambda: {0}
    await one.caught_up()
    left = Counter(keys.shard(node.tree) for node in one.index.replica.nodes.values())
    assert left == {0: 20, 1: 10}
    await one.close()


async def test_a_gateway_that_cannot_follow_a_shard_leaves_the_lease_to_one_that_follows_all(
    valkey, monkeypatch
):
    """Else no gateway would evict anything of that shard."""
    monkeypatch.setattr("radix_cache.shared.index_maintenance.ROUND_SECONDS", 0.02)
    monkeypatch.setattr("radix_cache.shared.index_maintenance.LEASE_MS", 60)
    keys = Keys(prefix=f"t{uuid4().hex}", shards=2)
    bounds = {"blocks_max": 30, "predicted_seconds": 10, "idle_seconds_max": 1000}
    one, other = [await replica(valkey.url, keys, time.monotonic, **bounds) for _ in range(2)]
    maintaining = [asyncio.create_task(one.maintenance.run())]

    async def until(condition):
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)

    await until(lambda: one.maintenance.is_leader)
    one.maintenance._lost_shards = lambda: {0}
    # Alone it goes on with the other shards, now and then.
    await until(lambda: not one.maintenance.is_leader)
    await until(lambda: one.maintenance.is_leader)
    maintaining.append(asyncio.create_task(other.maintenance.run()))
    await until(lambda: other.maintenance.is_leader)
    for task in maintaining:
        task.cancel()
    await asyncio.gather(*maintaining, return_exceptions=True)
    await asyncio.gather(one.close(), other.close())


@pytest.mark.parametrize("forgets", [False, True], ids=["known", "new"])
async def test_a_server_without_memory_still_frees_nodes_without_holders(own_valkey, forgets):
    """Also one that does not know this version of the functions yet, and has no room for them."""
    bounds = {"blocks_max": 30, "predicted_seconds": 10, "idle_seconds_max": 1000}
    keys = Keys(prefix="t", shards=2)
    one = await replica(own_valkey.url, keys, time.monotonic, **bounds)
    one.index.enrol(W, "first")
    await one.arrived()
    for number in range(40):
        one.index.hold(SPACE, array("Q", [1000 + number, 2000 + number]), W)
    one.index.record(SPACE, array("Q", [1, 2]), W, "r")
    await one.arrived()
    await one.scripts.ask("CONFIG", "SET", "maxmemory", "1")
    if forgets:
        await one.scripts.ask("FUNCTION", "FLUSH")
        await one.scripts.ask("SCRIPT", "FLUSH")
    assert await one.maintenance._acquire_lease()  # The gateway that maintained it may be gone.
    one.index.withdraw(W, "r")
    one.index.shorten(SPACE, array("Q", [1039, 2039]), W, 1)
    await one.caught_up()
    assert await predicted(one, keys) == 0
    assert 28 < one.index.replica.blocks <= 30
    one.index.forget(W)
    await one.caught_up()
    assert one.index.replica.blocks == 0
    assert one.index.refused == 0
    leases = FeedLeaseStore(one.scripts, keys, b"gateway1")
    assert (await leases.renew(FeedLeaseTable(), 1000)).gateways == {b"gateway1"}
    # What would take room is refused, and remembered until there is some.
    one.index.hold(SPACE, array("Q", [7, 8]), W)
    await one.arrived()
    assert one.index.refused >= 1
    # Now and then it is told again: then it is pending for a moment.
    assert one.index.match(SPACE, array("Q", [7, 8])).blocks(W) == 2
    await one.close()
