"""Other gateways are told when a predicted prompt is computed: once its worker holds the last of its blocks."""

import asyncio
import time
from array import array
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from tests.fakes.replica import replica

BOUNDS = {"blocks_max": 1000, "predicted_seconds": 600.0, "idle_seconds_max": 1000}
SPACE = Namespace(model="m", block_size=16)
W, X = WorkerId("w"), WorkerId("x")
SHARED = [1, 2, 3]


class Told:
    """A listener that notes how many new blocks were predicted, and which predictions are computed."""

    def __init__(self):
        self.new_blocks, self.computed, self.over = [], [], 0

    def predicted(self, identity, tenure, new_blocks, blocks, sent_at):
        self.new_blocks.append(new_blocks)

    def prompt_computed(self, identity):
        self.computed.append(identity)

    def prediction_over(self, identity):
        self.over += 1


@pytest.fixture
async def pair(valkey):
    """Two gateways' replicas, and what the second one is told of the predictions of the first."""
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one, other = [await replica(valkey.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    told = Told()
    other.index.replica.report_predictions(told, b"of other")
    for worker in (W, X):
        one.index.enrol(worker, "first")
    await one.arrived()
    yield one, other, told
    await asyncio.gather(one.close(), other.close())


async def test_a_prompt_is_computed_when_its_own_worker_holds_all_of_it_and_is_announced_once(pair):
    one, other, told = pair
    first, second = array("Q", [*SHARED, 4, 5]), array("Q", [*SHARED, 6, 7])
    one.index.record(SPACE, first, W, "first")
    one.index.record(SPACE, second, W, "second")
    await one.arrived()
    await other.arrived()
    assert told.new_blocks == [5, 2]
    one.index.confirm(SPACE, first, X)
    one.index.confirm(SPACE, array("Q", SHARED), W)
    await one.arrived()
    await other.arrived()
    assert told.computed == []
    for _ in range(2):
        one.index.confirm(SPACE, first, W)
        await one.arrived()
        await other.arrived()
        assert len(told.computed) == 1
    one.index.confirm(SPACE, second, W)
    await one.arrived()
    await other.arrived()
    assert len(set(told.computed)) == 2


async def test_nothing_is_kept_of_requests_that_ended_before_their_prompts_were_computed(pair):
    one, other, told = pair
    path = array("Q", [*SHARED, 4])
    for writer in ("ends", "goes to another worker"):
        one.index.record(SPACE, path, W, writer)
    await one.arrived()
    one.index.withdraw(W, "ends")
    one.index.withdraw(W, "goes to another worker")
    await one.arrived()
    one.index.confirm(SPACE, path, W)
    await one.arrived()
    await other.arrived()
    assert (told.computed, told.over) == ([], 2)
    assert not other.index.replica._prediction_table.awaited
