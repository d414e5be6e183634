"""The log and the predictions of a shard are bounded in bytes, and a replica that falls behind misses nothing."""

import asyncio
import time
from array import array
from itertools import pairwise
from random import Random
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from radix_cache.shared.log_records import LogEntry
from radix_cache.shared.tree_store import LIBRARY
from tests.fakes.replica import replica

W = WorkerId("w")
SPACE = Namespace(model="m", block_size=16)
BOUNDS = {"blocks_max": 10**7, "predicted_seconds": 600.0, "idle_seconds_max": 3600.0}
LOG_BYTES_MAX, PREDICTED_BYTES_MAX = 2 * 2**20, 4 * 2**20
BLOCKS = 8192
"""Of a prompt of 131,072 tokens."""
ENTRY_BYTES_MAX = 9 * BLOCKS
RANDOM = Random(5)


def path(blocks=BLOCKS):
    return array("Q", RANDOM.randbytes(8 * blocks))


@pytest.fixture
async def pair(valkey):
    """Two replicas of one shard."""
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one, other = [await replica(valkey.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    one.index.enrol(W, "one")
    await one.arrived()
    await until(lambda: W in other.index.replica.tenures)
    yield one, other
    for each in (one, other):
        await each.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def log_entries(gateway):
    """Return the entries of the shard's log as bytes."""
    return [
        data
        for _, (_, data) in await gateway.scripts.ask("XRANGE", gateway.index.store.keys.log(0), "-", "+")
    ]


async def holds(gateway, paths):
    """Let the worker hold paths, some at a time."""
    for at in range(0, len(paths), 20):
        for each in paths[at : at + 20]:
            gateway.index.hold(SPACE, each, W)
        await gateway.arrived()


async def test_a_log_of_long_paths_stays_within_its_bytes(pair):
    one, other = pair
    paths, most = [path() for _ in range(100)], 0
    for at in range(0, 100, 4):
        await holds(one, paths[at : at + 4])
        most = max(most, sum(map(len, await log_entries(one))))
    assert LOG_BYTES_MAX / 2 < most < LOG_BYTES_MAX + 2 * ENTRY_BYTES_MAX
    key = one.index.store.keys.log(0)
    assert await one.scripts.ask("MEMORY", "USAGE", key, "SAMPLES", 0) < 1.5 * LOG_BYTES_MAX
    await other.arrived()
    assert other.index.replica.blocks == one.index.replica.blocks == 100 * BLOCKS


async def test_a_log_of_short_paths_keeps_its_entries(pair):
    one, _ = pair
    await holds(one, [path(4) for _ in range(1000)])
    entries = [LogEntry.decode(data) for data in await log_entries(one)]
    assert len(entries) >= 1000
    assert all(after.before == before.tip for before, after in pairwise(entries))


async def test_a_replica_behind_what_the_log_still_has_reads_the_shard_again(pair):
    one, other = pair
    await holds(one, [path() for _ in range(3)])
    await other.arrived()
    snapshots = other.reader.snapshots
    other.reading.cancel()
    await holds(one, [path() for _ in range(100)])
    assert len(await log_entries(one)) < 100
    other.reading = asyncio.create_task(other.reader.follow())
    await other.arrived()
    assert other.reader.snapshots == snapshots + 1
    assert other.index.replica.blocks == 103 * BLOCKS
    assert {key: node.run for key, node in other.index.replica.nodes.items()} == {
        key: node.run for key, node in one.index.replica.nodes.items()
    }


async def test_a_log_that_a_gateway_without_this_bound_has_written_is_bounded_from_now_on(valkey):
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    unbounded = LIBRARY.replace("LOG_BYTES_MAX = 2 * 2 ^ 20", "LOG_BYTES_MAX = 2 ^ 40")
    assert unbounded != LIBRARY
    former = await replica(valkey.url, keys, time.monotonic, library=unbounded, **BOUNDS)
    former.index.enrol(W, "one")
    await former.arrived()
    await until(lambda: W in former.index.replica.tenures)
    await holds(former, [path() for _ in range(50)])
    assert sum(map(len, await log_entries(former))) > LOG_BYTES_MAX + 2 * ENTRY_BYTES_MAX
    await former.scripts.ask("HDEL", keys.meta(0), "bytes", "half")
    one = await replica(valkey.url, keys, time.monotonic, **BOUNDS)
    await until(lambda: W in one.index.replica.tenures)
    await holds(one, [path() for _ in range(50)])
    assert sum(map(len, await log_entries(one))) < LOG_BYTES_MAX + 2 * ENTRY_BYTES_MAX
    for each in (former, one):
        await each.close()


async def test_predictions_of_long_prompts_stay_within_their_bytes_and_make_room_when_they_end(pair):
    one, other = pair
    keys = one.index.store.keys

    async def kept():
        found = await one.scripts.ask("HVALS", keys.predictions(0))
        return sum(map(len, found))

    for number in range(200):
        one.index.record(SPACE, path(), W, f"writer {number}")
        if number % 20 == 19:
            await one.arrived()
    assert PREDICTED_BYTES_MAX - ENTRY_BYTES_MAX < await kept() <= PREDICTED_BYTES_MAX
    for number in range(200):
        one.index.withdraw(W, f"writer {number}")
    await one.arrived()
    assert await kept() == 0
    for number in range(50):
        one.index.record(SPACE, path(), W, f"another writer {number}")
    await one.arrived()
    await other.arrived()
    assert await one.scripts.ask("HLEN", keys.predictions(0)) == other.index.replica.predictions == 50


async def test_a_prediction_that_is_sent_again_counts_once(pair):
    one, _ = pair
    store, keys, tenure = one.index.store, one.index.store.keys, one.index.replica.tenures[W]
    for _ in range(300):
        await store.predict(SPACE, path(), tenure, b"p" * 16, 60_000)
    await store.predict(SPACE, path(), tenure, b"q" * 16, 60_000)
    assert await one.scripts.ask("HLEN", keys.predictions(0)) == 2
