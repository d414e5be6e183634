"""A worker that returns as another instance holds nothing, also before Redis has seen that."""

import time
from array import array
from uuid import uuid4

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from tests.fakes.replica import replica

SPACE = Namespace(model="m", block_size=16)
W = WorkerId("w")
PATH = array("Q", [1, 2, 3])


@pytest.mark.parametrize("change", ["held", "predicted"])
async def test_what_was_about_to_be_held_is_gone_with_the_instance(valkey, change):
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    one = await replica(
        valkey.url, keys, time.monotonic, blocks_max=200, predicted_seconds=60.0, idle_seconds_max=60.0
    )
    try:
        one.index.enrol(W, "first")
        await one.arrived()
        if change == "held":
            one.index.hold(SPACE, PATH, W)
        else:
            one.index.record(SPACE, PATH, W, "a request")
        before = one.index.match(SPACE, PATH)
        assert before.held(W) + before.pending.get(W, 0) >= 3
        one.index.enrol(W, "second")
        match = one.index.match(SPACE, PATH)
        assert match.held(W) == match.pending.get(W, 0) == 0
    finally:
        await one.close()
