"""The index in shared memory against the replica that is published there, under random changes.

The vocabulary has two symbols and paths are short, so that they collide, diverge and nest all the time; runs and
holders are bounded far below their usual bounds, so that long runs and crowded nodes are met as well.
"""

import os
import random
import time
from uuid import uuid4

import pytest

from radix_cache.machine.mapped_replica import MappedReplica
from radix_cache.machine.segment import IndexSegment, create_segments
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from radix_cache.tiers import Tier
from tests.fakes.replica import CROWDED, replica
from tests.property.test_shared_tree import a_path, chained

SPACES = [Namespace(model=name, block_size=16) for name in ("m", "n")]
WORKERS = [WorkerId(f"w{number}") for number in range(7)]
TIERS = (Tier.GPU, Tier.GPU, Tier.HOST, Tier.DISK)
BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 100, "idle_seconds_max": 1000, "library": CROWDED}


@pytest.fixture
def segments():
    """The segment of a writer, and the same as a reader has it."""
    descriptors = create_segments(8 * 1024**2)
    yield IndexSegment(descriptors[0], writable=True), IndexSegment(descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)


def agree(published, mapped, paths):
    """Both say the same of everything that a router can ask."""
    for path in paths:
        known, seen = published.match(path), mapped.match(path)
        assert [(node.key, common) for node, common in seen.path] == [
            (node.key, common) for node, common in known.path
        ]
        assert (seen.confirmed, seen.pending) == (known.confirmed, known.pending)
        assert list(seen.shared) == list(known.shared)
        assert sorted(seen.holders(9)) == sorted(known.holders(9))
        for worker in WORKERS:
            assert seen.tiers(worker) == known.tiers(worker)
            assert seen.walk_start(worker, len(path), Tier.GPU, 0) == known.walk_start(
                worker, len(path), Tier.GPU, 0
            )
        for blocks in range(len(path) + 1):
            assert seen.last_node(blocks) == known.last_node(blocks)
            assert seen.holder_count(blocks) == known.holder_count(blocks)
            if blocks:
                assert seen.is_held(blocks) == any(held >= blocks for held in known.confirmed.values())
            above, below = published.node_at(path, blocks), mapped.node_at(path, blocks)
            assert (above and (above.key, above.sequence)) == (below and (below.key, below.sequence))
    assert mapped.repeated_blocks(WORKERS) == published.repeated_blocks(WORKERS)
    assert (mapped.blocks, len(mapped.nodes), mapped.predictions) == (
        published.blocks,
        len(published.nodes),
        published.predictions,
    )
    assert sorted(mapped.namespaces()) == sorted(published.namespaces())
    assert {number: shard.sequence for number, shard in mapped.shards.items()} == {
        number: shard.sequence for number, shard in published.shards.items()
    }


@pytest.mark.parametrize("seed", range(10))
async def test_shared_memory_shows_what_the_published_replica_has(seed, redis_url, segments):
    chance = random.Random(seed)
    keys = Keys(prefix=f"t{uuid4().hex}", shards=2)
    ours = await replica(redis_url, keys, time.monotonic, segment=segments[0], **BOUNDS)
    other = await replica(redis_url, keys, time.monotonic, **BOUNDS)
    published, mapped = ours.index.replica, MappedReplica(time.monotonic, 100)
    mapped.use(segments[1])
    mapped.set_current(is_current=True)
    for worker in WORKERS:
        ours.index.enrol(worker, "first")
    await ours.arrived()
    await other.arrived()
    writers: list[tuple[WorkerId, str]] = []
    for step in range(120):
        each, path, worker = chance.choice((ours, other)), chained(a_path(chance)), chance.choice(WORKERS)
        space = SPACES[bool(path and path[0] & 1)]
        action = chance.random()
        if action < 0.4:
            each.index.hold(space, path, worker, chance.choice(TIERS))
        elif action < 0.6:
            each.index.shorten(space, path, worker, chance.randint(0, 9), chance.choice(TIERS))
        elif action < 0.8:
            writers.append((worker, f"writer {step}"))
            each.index.record(space, path, *writers[-1])
        elif action < 0.95 and writers:
            gone = writers.pop(chance.randrange(len(writers)))
            for one in (ours, other):
                one.index.withdraw(*gone)
        elif action > 0.98:
            each.index.forget(worker)
        await each.arrived()
        if step % 3 == 2:
            await other.arrived()
            await ours.caught_up()
            for worker, tenure in published.tenures.items():
                if mapped.tenures.get(worker) != tenure:
                    mapped.enrol(worker, tenure, "")
            published.publish()
            published.publish_namespaces()
            mapped.refresh(keys.shards)
            agree(published, mapped, [chained(a_path(chance)) for _ in range(8)])
    for each in (ours, other):
        await each.close()
