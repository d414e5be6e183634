"""A prediction is withdrawn from Redis also when Redis has lost its withdrawal, and when its gateway is gone."""

import asyncio
import time
from array import array
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.feed_lease_store import FeedLeaseStore, FeedLeaseTable
from radix_cache.shared.index_maintenance import LIVE_ROUNDS
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
    # By default a write reaches the file up to two seconds after its answer while an earlier one is synced.
    await one.scripts.ask("CONFIG", "SET", "appendfsync", "always")
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


async def test_a_gateway_that_is_alone_sends_no_predictions_and_follows_its_own(stage):
    _, one, other = stage
    longer = array("Q", [1, 2, 3, 4, 5])
    one.index.is_alone = lambda: True
    one.index.record(SPACE, longer, W, "of one alone")
    await one.arrived()
    assert one.index.match(SPACE, longer).pending == {W: 5}
    one.index.withdraw(W, "of one alone")
    assert one.index.match(SPACE, longer).pending == {W: 3}
    one.index.is_alone = lambda: False
    one.index.record(SPACE, longer, W, "of one of two")
    await until(lambda: other.index.match(SPACE, longer).pending == {W: 5})
    assert other.index.replica.predictions == 3


async def rounds(gateway, count):
    """Let a gateway maintain the index so often, one second after the other."""
    for _ in range(count):
        await gateway.maintenance.run_round()
        await gateway.arrived()


async def renew(gateway, milliseconds=60_000, *, follows=True):
    """Let a gateway count as live for so long from now on, and return the leases; 0: it leaves."""
    keys, identity = gateway.index.store.keys, gateway.index.sent_predictions.prefix
    store = FeedLeaseStore(gateway.scripts, keys, identity, follows=follows)
    return await store.renew(FeedLeaseTable(), milliseconds)


async def test_the_requests_of_a_gateway_that_is_gone_do_not_count_for_their_whole_time(stage):
    _, one, other = stage
    await renew(one)
    await renew(other)
    other.index.record(SPACE, PATH, W, "of the other")
    await rounds(other, 3 * LIVE_ROUNDS)
    assert other.index.replica.predictions == 3
    await renew(one, 0)
    await rounds(other, LIVE_ROUNDS)
    # It may only have been slow: the first look does not count.
    assert other.index.replica.predictions == 3
    await rounds(other, LIVE_ROUNDS)
    assert other.index.replica.predictions == 1
    assert await other.scripts.ask("HLEN", other.index.store.keys.predictions(0)) == 1


async def test_without_leases_no_gateway_is_taken_for_gone(stage):
    _, one, other = stage
    await renew(one, 0)
    await rounds(other, 3 * LIVE_ROUNDS)
    assert other.index.replica.predictions == 2


async def test_a_process_that_follows_no_worker_is_alive_and_gets_no_lease(stage):
    _, one, other = stage
    await renew(one, follows=False)
    await renew(other)
    table = await renew(other)
    assert table.gateways == {other.index.sent_predictions.prefix}
    await rounds(other, 3 * LIVE_ROUNDS)
    assert other.index.replica.predictions == 2
