"""The tree in Redis and its copies against the tree in memory, under random operations, crashes and losses.

The vocabulary has two symbols and paths are short, so that they collide, diverge and nest all the time; runs and
holders are bounded far below their usual bounds, so that long runs and crowded nodes are met as well.
"""

import asyncio
import random
import time
from array import array
from uuid import uuid4

import pytest
import redis.asyncio as redis

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys, tree_id
from radix_cache.tiers import Tier, TierBlocks
from radix_cache.tree import RadixTree
from tests.fakes.replica import CROWDED, replica

SPACE = Namespace(model="m", block_size=16)
WORKERS = [WorkerId(name) for name in ("w1", "w2", "w3", "w4", "w5")]
TIERS = (Tier.GPU, Tier.GPU, Tier.HOST, Tier.DISK)
BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 10, "idle_seconds_max": 1000, "library": CROWDED}


def chained(path: str) -> "array[int]":
    """A hash a prefix, as BlockHasher would give: equal only where everything before is equal."""
    return array(
        "Q", [int("1" + path[: end + 1].translate({97: "0", 98: "1"}), 2) for end in range(len(path))]
    )


def a_path(chance: random.Random) -> str:
    return "".join(chance.choice("ab") for _ in range(chance.randint(0, 9)))


async def enrolled(*replicas):
    for each in replicas:
        for worker in WORKERS:
            each.index.enrol(worker, "first")
        await each.arrived()


def agree(model, replicas, chance):
    """Every replica says what the model says, of everything that can be asked."""
    for each in replicas:
        copy = each.index.replica
        assert copy.blocks == model.blocks
        for _ in range(6):
            path = chained(a_path(chance))
            match, slower = copy.match(path), model.slower(path)
            assert match.confirmed == model.match(path)
            for worker, held in match.confirmed.items():
                assert match.tiers(worker) == slower.get(worker, TierBlocks(held, held, held))
        for worker in WORKERS:
            assert copy.held.get(copy.tenures.get(worker, 0), 0) == model.held(worker)


@pytest.mark.parametrize("seed", range(12))
async def test_redis_and_every_copy_hold_what_the_tree_in_memory_holds(seed, redis_url):
    chance = random.Random(seed)
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    replicas = [await replica(redis_url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    await enrolled(*replicas)
    model: RadixTree[WorkerId] = RadixTree()
    for step in range(80):
        each, path, worker = chance.choice(replicas), chained(a_path(chance)), chance.choice(WORKERS)
        await each.arrived()
        action = chance.random()
        if action < 0.62:
            tier = chance.choice(TIERS)
            each.index.hold(SPACE, path, worker, tier)
            model.record(path, worker, step, tier)
        elif action < 0.94:
            blocks, tier = chance.randint(0, 9), chance.choice(TIERS)
            each.index.shorten(SPACE, path, worker, blocks, tier)
            model.shorten(path, worker, blocks, tier)
        else:
            each.index.forget(worker)
            model.forget(worker)
            model.sweep(1000)
        await each.arrived()
        if step % 5 == 4:
            for one in replicas:
                await one.caught_up()
            for one in replicas:
                await one.arrived()
            model.check()
            agree(model, replicas, chance)
    for each in replicas:
        await each.close()


async def is_in_redis(keys, client):
    """What Redis itself says: nodes by key, as a snapshot would load them."""
    return {
        field: value
        for field, value in (await client.hgetall(keys.tree(tree_id(SPACE)))).items()
        if field[:1] == b"R"
    }


DUMP = """
local found = {}
for _, key in ipairs(redis.call('KEYS', 't:*')) do
    found[#found + 1] = key
    found[#found + 1] = redis.call('DUMP', key)
end
return found
"""
"""All keys at one moment: with a write between two of them the tree would be older than the tip that names it."""


async def all_agree(replicas, keys, client):
    """Whether all replicas have arrived at what is in Redis."""
    for each in replicas:
        await each.arrived()
    in_redis = await is_in_redis(keys, client)
    return (
        all(
            {
                b"R" + key.to_bytes(8, "little"): node.run.tobytes()
                for key, node in each.index.replica.nodes.items()
            }
            == in_redis
            for each in replicas
        )
        and replicas[0].index.replica.tenures == replicas[1].index.replica.tenures
    )


@pytest.mark.parametrize("seed", range(10))
async def test_replicas_agree_with_redis_after_whatever_happened(seed, own_valkey):
    """Changes, restarts, lost connections, trimmed logs, flushes, a failover that lost the last writes."""
    chance = random.Random(seed)
    keys = Keys(prefix="t", shards=2)
    replicas = [await replica(own_valkey.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    await enrolled(*replicas)
    saved: dict[bytes, bytes] = {}
    async with redis.from_url(own_valkey.url) as client:
        for _ in range(60):
            each, path, worker = chance.choice(replicas), chained(a_path(chance)), chance.choice(WORKERS)
            action = chance.random()
            if action < 0.6:
                each.index.hold(SPACE, path, worker, chance.choice(TIERS))
            elif action < 0.75:
                each.index.shorten(SPACE, path, worker, chance.randint(0, 9), chance.choice(TIERS))
            elif action < 0.80:
                await client.client_kill_filter(_type="pubsub")
            elif action < 0.84:
                for shard in range(keys.shards):
                    await client.xtrim(keys.log(shard), maxlen=chance.randint(0, 3), approximate=False)
            elif action < 0.88:
                number = replicas.index(each)
                await each.close()
                replicas[number] = await replica(own_valkey.url, keys, time.monotonic, **BOUNDS)
            elif action < 0.92:
                found = await client.eval(DUMP, 0)
                saved = dict(zip(found[::2], found[1::2], strict=True))
            elif action < 0.96 and saved:
                # A failover: a primary comes up that has not seen the last writes.
                async with client.pipeline(transaction=True) as pipe:
                    pipe.flushall()
                    for key, value in saved.items():
                        pipe.restore(key, 0, value)
                    await pipe.execute()
            elif action < 0.98:
                await client.flushall()
            await asyncio.sleep(chance.choice([0, 0, 0.002]))
        async with asyncio.timeout(60):
            # What a replica learnt while it had lost Redis is sent once it follows again.
            while not await all_agree(replicas, keys, client):
                await asyncio.sleep(0.3)
        first, second = (each.index.replica for each in replicas)
        assert first.tenures == second.tenures
        for key, node in first.nodes.items():
            assert dict(node.holders()) == dict(second.nodes[key].holders())
            assert node.parent is None or second.nodes[key].parent.key == node.parent.key
        for _ in range(30):
            path = chained(a_path(chance))
            assert first.match(path).confirmed == second.match(path).confirmed
    for each in replicas:
        await each.close()
