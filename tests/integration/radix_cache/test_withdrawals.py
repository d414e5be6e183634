"""Predictions that end at about the same time reach other gateways as one change."""

import time
from array import array

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys, namespace_id
from radix_cache.shared.withdrawals import TOGETHER_MAX
from tests.fakes.replica import replica

BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 1000, "idle_seconds_max": 1000}
SPACE = Namespace(model="m", block_size=16)
W = WorkerId("w")


@pytest.fixture
async def two(valkey, tmp_path):
    """Two replicas that know the worker."""
    keys = Keys(prefix=tmp_path.name, shards=2)
    made = [await replica(valkey.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    for each in made:
        each.index.enrol(W, "first")
        await each.arrived()
    yield made
    for each in made:
        await each.close()


async def changes(one):
    keys = one.index.store.keys
    return int(await one.scripts.ask("HGET", keys.meta(keys.shard(namespace_id(SPACE))), "sequence") or 0)


def path(number):
    return array("Q", [1000 + number, 2000 + number])


async def test_predictions_that_end_together_are_one_change(two):
    one, other = two
    for number in range(10):
        one.index.record(SPACE, path(number), W, f"r{number}")
    await one.arrived()
    await other.arrived()
    assert other.index.replica.predictions == 10
    before = await changes(one)
    for number in range(10):
        one.index.withdraw(W, f"r{number}")
    await one.arrived()
    await other.arrived()
    assert other.index.replica.predictions == 0
    assert await changes(one) == before + 1


async def test_a_prediction_that_is_made_anew_at_once_stays(two):
    one, other = two
    one.index.record(SPACE, path(1), W, "r")
    await one.arrived()
    one.index.withdraw(W, "r")
    one.index.record(SPACE, path(1), W, "r")
    await one.arrived()
    await other.arrived()
    assert other.index.replica.predictions == 1


async def test_many_that_end_together_leave_in_bounded_changes(two):
    one, other = two
    for number in range(TOGETHER_MAX + 1):
        one.index.record(SPACE, path(number), W, f"r{number}")
    await one.arrived()
    before = await changes(one)
    for number in range(TOGETHER_MAX + 1):
        one.index.withdraw(W, f"r{number}")
    await one.arrived()
    await other.arrived()
    assert other.index.replica.predictions == 0
    assert await changes(one) == before + 2
