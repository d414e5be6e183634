"""A gateway whose reader has lost Redis while its calls arrive there: what it keeps and sends is bounded."""

import asyncio
import time
from array import array
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.connection import ConnectionLost
from radix_cache.redis.pubsub import ShardedSubscriber
from radix_cache.shared.keys import Keys, tree_id
from radix_cache.shared.replica_reader import ReplicaReader
from radix_cache.shared.unseen_changes import UNSEEN_MAX
from tests.fakes.replica import replica

W = WorkerId("w")
SPACE = Namespace(model="m", block_size=16)
NODE_BLOCKS = 9
BOUNDS = {"blocks_max": 1000, "predicted_seconds": 60.0, "idle_seconds_max": 1000.0}
PREFIXES = 500
"""Five times as many as fit, with the weight of their nodes."""


def path(number):
    return array("Q", [1_000_000 + number])


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def one(valkey):
    """A replica with one worker."""
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one = await replica(valkey.url, keys, time.monotonic, node_blocks=NODE_BLOCKS, **BOUNDS)
    one.index.enrol(W, "first")
    await one.arrived()
    yield one
    await one.close()


@pytest.fixture
async def deaf(one, monkeypatch):
    """The replica, whose reader cannot subscribe any more; `undo` of the result lets it again."""
    with monkeypatch.context() as patched:

        async def refused(_):
            raise ConnectionLost("refused")

        patched.setattr(ShardedSubscriber, "subscribe", refused)
        await until(lambda: not one.reader.up)
        yield one, patched.undo


async def nodes_in_redis(one):
    fields = await one.scripts.ask("HKEYS", one.index.store.keys.tree(tree_id(SPACE)))
    return sum(field.startswith(b"N") for field in fields)


async def test_a_gateway_that_cannot_read_the_tree_adds_nothing_to_it(deaf):
    """Nothing would be evicted: what the index has too much is found in the replica."""
    one, _ = deaf
    for number in range(PREFIXES):
        one.index.hold(SPACE, path(number), W)
    await one.scripts.ping()
    assert await nodes_in_redis(one) == 0
    assert one.index.match(SPACE, path(PREFIXES - 1)).confirmed == {W: 1}


async def test_what_a_gateway_learns_without_its_reader_stays_within_the_bound_and_is_sent_afterwards(deaf):
    one, undo = deaf
    for number in range(PREFIXES):
        one.index.hold(SPACE, path(number), W)
        one.index.record(SPACE, path(number), W, str(number))
        one.index.withdraw(W, str(number))
    kept = one.index._away.index.stats()
    assert 0 < kept.blocks + NODE_BLOCKS * kept.nodes <= BOUNDS["blocks_max"]
    undo()
    await until(lambda: one.reader.up)
    await one.caught_up()
    assert one.index.match(SPACE, path(PREFIXES - 1)).confirmed == {W: 1}
    assert 0 < await nodes_in_redis(one) * (1 + NODE_BLOCKS) <= BOUNDS["blocks_max"]


async def test_paths_that_wait_to_be_sent_are_bounded_in_blocks(deaf, monkeypatch):
    one, undo = deaf
    monkeypatch.setattr("radix_cache.shared.learnt_while_away.BLOCKS_MAX", 10)
    for number in range(0, 500, 5):
        one.index.hold(SPACE, array("Q", range(10_000 + number, 10_000 + number + 5)), W)
    assert len(one.index._away.paths) == 2
    undo()
    await until(lambda: one.reader.up)
    await one.caught_up()
    assert one.index.replica.blocks == 10


async def test_changes_that_the_replica_never_shows_are_not_remembered_without_end(valkey, monkeypatch):
    """As with a reader that falls behind and does not notice."""
    monkeypatch.setattr(ReplicaReader, "_on_message", lambda *heard: None)
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one = await replica(valkey.url, keys, time.monotonic, check_seconds=3600.0, **BOUNDS)
    one.index.enrol(W, "first")
    await until(lambda: W in one.index.replica.tenures)
    for number in range(UNSEEN_MAX + 100):
        one.index.hold(SPACE, path(number), W)
        if number % 500 == 0:
            await one.scripts.ping()
    await until(lambda: not one.scripts.busy)
    assert one.index.refused == 0
    assert sum(map(len, one.index._unseen.by_shard.values())) == UNSEEN_MAX
    await one.close()


async def test_messages_that_are_not_applied_yet_are_bounded_in_bytes(one, monkeypatch):
    monkeypatch.setattr("radix_cache.shared.replica_reader.INBOX_BYTES_MAX", 1000)
    channel = one.index.store.keys.tag(0).encode()
    for _ in range(100):
        one.reader._on_message(channel, bytes(100))
    assert sum(len(data) for _, _, data in one.reader._inbox) <= 1000
