"""A prediction is withdrawn from Redis also when Redis has lost its withdrawal."""

import asyncio
import time
from array import array
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from tests.fakes.replica import replica
from tests.stage.valkey import ValkeyServer

W = WorkerId("w")
SPACE = Namespace(model="m", block_size=16)
PATH = array("Q", [1, 2, 3])
BOUNDS = {"blocks_max": 200, "predicted_seconds": 600.0, "idle_seconds_max": 1000}


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def stage(tmp_path_factory):
    """A Valkey that keeps its data, and two gateways' replicas; one of them has sent two requests to a worker."""
    server = ValkeyServer(tmp_path_factory.mktemp("v"), keeps=True)
    server.start()
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one, other = [await replica(server.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    one.index.enrol(W, "first")
    await one.arrived()
    for writer in ("ends", "goes on"):
        one.index.record(SPACE, PATH, W, writer)
    await one.arrived()
    await until(lambda: other.index.replica.predictions == 2)
    yield server, one, other
    await asyncio.gather(one.close(), other.close())
    server.kill()


async def test_a_request_that_ends_while_redis_is_away_is_withdrawn_when_it_is_back(stage):
    server, one, other = stage
    server.kill()
    one.index.withdraw(W, "ends")
    await until(lambda: not one.scripts.busy)
    server.start()
    await until(lambda: other.reader.up and other.index.replica.predictions == 1)
    assert other.index.match(SPACE, PATH).pending == {W: 3}
    one.index.withdraw(W, "goes on")
    await until(lambda: not other.index.replica.predictions)


async def test_a_withdrawal_that_a_failover_has_lost_is_sent_again(stage):
    _, one, other = stage
    ask, keys = one.scripts.ask, one.index.store.keys
    saved = {key: await ask("DUMP", key) for key in await ask("KEYS", f"{keys.tag(0)}*")}
    one.index.withdraw(W, "ends")
    await one.arrived()
    await until(lambda: other.index.replica.predictions == 1)
    # The new primary has not seen the withdrawal, and cuts all connections to the former one.
    for key, value in saved.items():
        await ask("RESTORE", key, 0, value, "REPLACE")
    await ask("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: other.index.replica.predictions == 2)
    await until(lambda: other.index.replica.predictions == 1)
    one.index.withdraw(W, "goes on")
    await until(lambda: not other.index.replica.predictions)
